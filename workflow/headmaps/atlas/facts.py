"""How a model's results were made, as the page tells it: small titled lists of names and values."""

import importlib.metadata
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import headmaps
from headmaps.atlas.data import Inputs, files_read
from headmaps.atlas.page import plotly_js
from headmaps.geometry import Geometry

_SOURCE_ROWS = ("source", "repo", "package", "version", "revision", "commit", "path", "file", "folder", "format")
PACKAGES = ("numpy", "scipy", "pyarrow", "plotly")


def making(inputs: Inputs, source: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """What view "How this was made" shows.

    Args:
        inputs: the files of the page.
        source: `source.json`.
        spec: the step's spec; `entry` (the model's config entry) and `baselines` are shown if there.
    """
    shown = {key: spec[key] for key in ("entry", "baselines", "layer_norms", "matrices") if key in spec}
    return {
        "sections": [
            {"title": "Checkpoint", "rows": checkpoint_rows(source)},
            {"title": "Attention", "rows": geometry_rows(inputs.geometry)},
            {"title": "Analysis", "rows": analysis_rows(inputs, spec)},
            {"title": "Versions of the software that made this page", "rows": version_rows()},
        ],
        "config": shown,
        "geometry": inputs.geometry.to_json(),
        "files": files_read(inputs),
    }


def _rows(pairs: Sequence[tuple[str, Any]]) -> list[list[str]]:
    return [[name, str(value)] for name, value in pairs if value not in (None, "", [], {})]


def checkpoint_rows(source: Mapping[str, Any]) -> list[list[str]]:
    """Where the weights came from, to the commit and the files read."""
    pairs: list[tuple[str, Any]] = [(key, source.get(key)) for key in _SOURCE_ROWS]
    groups = [*source.get("layers", {}).values(), source.get("shared", {})]
    tensors = [tensor for group in groups for tensor in group.values()]
    pairs.append(("files read", ", ".join(sorted({str(tensor["file"]) for tensor in tensors}))))
    pairs.append(("tensors read", f"{len(tensors)}, {sum(int(t.get('nbytes', 0)) for t in tensors):,} bytes"))
    pairs += [("note", note) for note in source.get("notes", [])]
    return _rows(pairs)


def geometry_rows(geometry: Geometry) -> list[list[str]]:
    """The dimensions and conventions that decide what a head matrix is."""
    norm = geometry.norm
    return _rows(
        [
            ("model type", geometry.model_type),
            ("layers looked at", f"{len(geometry.layers)} of {geometry.n_layers}"),
            ("heads a layer", geometry.n_heads),
            ("key/value heads", geometry.n_kv_heads),
            ("d_model", geometry.d_model),
            ("d_head", geometry.d_head),
            ("d_head of values", geometry.d_head_v if geometry.d_head_v != geometry.d_head else None),
            ("stored as", geometry.dtype),
            ("positions", geometry.position.scheme),
            ("norm", f"{norm.kind}, {norm.place}" if norm.kind != "none" else "none"),
            ("biases", ", ".join(geometry.biases) or "none"),
            ("attention", "causal" if geometry.causal else "bidirectional"),
        ]
    )


def analysis_rows(inputs: Inputs, spec: Mapping[str, Any]) -> list[list[str]]:
    """What was computed: treatments, matrices, baselines."""
    baselines = spec.get("baselines") or {}
    settings = baselines if isinstance(baselines, Mapping) else {"kinds": list(baselines)}
    rows = [("norm treatments", ", ".join(inputs.treatments)), ("matrices", ", ".join(inputs.matrices))]
    rows += [
        (f"baseline {key}", ", ".join(value) if isinstance(value, list) else str(value))
        for key, value in settings.items()
    ]
    return _rows(rows)


def version_rows() -> list[list[str]]:
    """Versions at work in this process."""
    found = [("headmaps", headmaps.__version__), ("python", platform.python_version())]
    found += [(name, importlib.metadata.version(name)) for name in PACKAGES]
    banner = re.search(r"plotly\.js v([\w.-]+)", plotly_js()[:400])
    return _rows([*found, ("plotly.js", banner[1] if banner else None)])
