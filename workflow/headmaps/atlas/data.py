"""What a model's page holds: a manifest of small facts, and blocks of packed numbers by name.

Blocks (decoded by `assets/blocks.js`; m, l number the matrices and layers of the grid, t the treatments):
    column-t-NAME   float64, one number per head matrix of the grid
    cloud-m         float32 (3, draws): self, ortho and rotation means of random heads
    spectrum-m      float32 (3, r): mean, 5th and 95th percentile of random spectra with sum of squares 1
    pairs-t-m-l     float32 (names, heads, r), names as in the manifest
    z-t-m-l         thousandths (heads, r, r)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headmaps.atlas.packing import pack_float64, pack_rounded, pack_thousandths
from headmaps.atlas.results import Float, Grid, grid_of, read_decomposition, read_heads_csv, read_pairs
from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.haar import gaussian_sigmas, generator, haar_blocks, haar_means
from headmaps.quantities import REGISTRY
from headmaps.records import sha256_of_file

ROOM = 7_000_000
"""Entries of Z that fit beside the main treatment's before a page grows beyond 25 MB (768 heads of 64 x 64, twice)."""

CLOUD_DRAWS, SPECTRUM_DRAWS = 400, 200

MATRICES = {
    "value": ("Value", "value matrix W_V W_O", "read from the attended token", "written to the current token"),
    "qk": ("QK", "query-key matrix W_Q W_K^T", "query (current token)", "key (attended token)"),
    "qk_nope": ("QK, position-free", "position-free part of W_Q W_K^T", "query (current token)", "key (attended token)"),
    "qk_rope": ("QK, rotated", "rotated part of W_Q W_K^T", "query (current token)", "key (attended token)"),
}
"""Matrix -> short name, long name, and what its input and output sides are."""

STATISTICS = {
    "z": "z-score",
    "difference": "difference from the mean",
    "ratio": "ratio to the mean",
    "p": "p-value",
    "p_adjusted": "adjusted p-value",
    "mean": "mean of the draws",
    "sd": "standard deviation of the draws",
}
"""Ending of a column -> what it is; the page groups the columns of a baseline in this order."""

DIVERGING = ("z", "difference")


@dataclass(frozen=True)
class Inputs:
    """The files of one model, in the order of the treatments.

    `decompositions` runs over the treatments, in each over the matrices, in each over the layers.
    """

    model: str
    treatments: tuple[str, ...]
    matrices: tuple[str, ...]
    geometry: Geometry
    heads_csv: tuple[Path, ...]
    vectors: tuple[Path, ...]
    decompositions: tuple[Path, ...]

    def __post_init__(self) -> None:
        expected = len(self.treatments) * len(self.matrices) * len(self.geometry.layers)
        counts = {
            "--heads-csv": (len(self.heads_csv), len(self.treatments)),
            "--vectors": (len(self.vectors), len(self.treatments)),
            "--decompositions": (len(self.decompositions), expected),
        }
        for flag, (found, needed) in counts.items():
            if found != needed:
                what = f"{flag} names {found} files"
                raise ResultError(what, expected=f"{needed}: treatments x matrices x layers, or one per treatment")

    def decomposition(self, treatment: int, matrix: int, layer: int) -> Path:
        """The file of a treatment, matrix and layer, each by its number."""
        return self.decompositions[(treatment * len(self.matrices) + matrix) * len(self.geometry.layers) + layer]


class ModelData:
    """Everything of one model's page: `manifest()` and `blocks()`, the blocks one at a time (Z does not fit in memory)."""

    def __init__(self, inputs: Inputs, facts: Mapping[str, Any]) -> None:
        self.inputs, self.facts = inputs, facts
        self.grid: Grid = grid_of(inputs.geometry, inputs.matrices)
        self.tables = [read_heads_csv(path, self.grid) for path in inputs.heads_csv]
        entries = sum(len(self.grid.layers) * self.grid.n_heads * rank * rank for rank in self.grid.ranks)
        with_Z = max(1, ROOM // max(entries, 1))
        self.drawn = range(min(with_Z, len(inputs.treatments)))
        self.pair_names = self._pair_names()

    def _pair_names(self) -> list[str]:
        with np.load(self.inputs.decomposition(0, 0, 0), allow_pickle=False) as arrays:
            lines = sorted(name for name in arrays.files if name.startswith(("bias_", "band_")))
        return ["sigma", "overlap", "rotation", "ortho", "gap", "eigenvalue_real", "eigenvalue_imaginary", *lines]

    def manifest(self) -> dict[str, Any]:
        """The small facts, as plain JSON values."""
        names = list(dict.fromkeys(name for numbers, _ in self.tables for name in numbers))
        geometry = self.inputs.geometry
        return {
            "model": self.inputs.model,
            "treatments": [
                {"name": name, "columns": list(numbers), "words": words, "drawn": place in self.drawn}
                for place, (name, (numbers, words)) in enumerate(
                    zip(self.inputs.treatments, self.tables, strict=True)
                )
            ],
            "matrices": [
                {"name": name, "rank": rank, **dict(zip(("label", "long", "input", "output"), MATRICES[name], strict=True))}
                for name, rank in zip(self.grid.matrices, self.grid.ranks, strict=True)
            ],
            "layers": list(self.grid.layers),
            "n_heads": self.grid.n_heads,
            "d_model": geometry.d_model,
            "n_kv_heads": geometry.n_kv_heads,
            "notes": list(geometry.notes),
            "columns": describe_columns(names),
            "quantities": describe_quantities(),
            "pairs": self.pair_names,
            "reference": [
                dict(zip(("self", "rotation", "ortho"), haar_means(geometry.d_model, rank), strict=True))
                for rank in self.grid.ranks
            ],
            "making": dict(self.facts),
        }

    def blocks(self) -> Iterator[tuple[str, str]]:
        """(name, packed text) of every block, those of the first view first."""
        for t, (numbers, _) in enumerate(self.tables):
            for name, values in numbers.items():
                yield f"column-{t}-{name}", pack_float64(values)
        for m, rank in enumerate(self.grid.ranks):
            yield f"cloud-{m}", pack_rounded(random_means(self.inputs.geometry.d_model, rank))
            yield f"spectrum-{m}", pack_rounded(random_spectra(self.inputs.geometry.d_model, rank))
        for t in self.drawn:
            pairs = read_pairs(self.inputs.vectors[t], self.grid)
            for m in range(len(self.grid.matrices)):
                for l in range(len(self.grid.layers)):  # noqa: E741
                    yield from self._layer(t, m, l, {name: values[m][l] for name, values in pairs.items()})

    def _layer(self, t: int, m: int, l: int, pairs: dict[str, Float]) -> Iterator[tuple[str, str]]:  # noqa: E741
        path = self.inputs.decomposition(t, m, l)
        arrays = read_decomposition(path, pairs["sigma"])
        lines = dict(pairs)
        lines["eigenvalue_real"] = arrays["eigenvalues"].real
        lines["eigenvalue_imaginary"] = arrays["eigenvalues"].imag
        empty = np.full(pairs["sigma"].shape, np.nan)
        stacked = np.stack([lines.get(name, arrays.get(name, empty)) for name in self.pair_names])
        yield f"pairs-{t}-{m}-{l}", pack_rounded(stacked)
        try:
            yield f"z-{t}-{m}-{l}", pack_thousandths(arrays["Z"])
        except ValueError as error:
            raise ResultError(f"Z: {error}", where=str(path), do=f"delete {path} and run snakemake") from None


def random_means(d: int, r: int) -> Float:
    """(3, draws): mean self, ortho and rotation of random heads of this shape, the cloud of the scatter."""
    Z = haar_blocks((generator("atlas", "cloud", d, r, draw) for draw in range(CLOUD_DRAWS)), d, r)
    overlap = np.diagonal(Z, axis1=1, axis2=2)
    inside = (Z**2).sum(axis=2)
    parts = (np.abs(overlap), np.sqrt(np.maximum(0, 1 - inside)), np.sqrt(np.maximum(0, inside - overlap**2)))
    return np.stack([part.mean(axis=1) for part in parts])


def random_spectra(d: int, r: int) -> Float:
    """(3, r): mean, 5th and 95th percentile of the spectra of random heads, their squares scaled to sum 1."""
    sigma = gaussian_sigmas((generator("atlas", "spectrum", d, r, draw) for draw in range(SPECTRUM_DRAWS)), d, r)
    sigma = sigma / np.linalg.norm(sigma, axis=1, keepdims=True)
    return np.stack([sigma.mean(axis=0), *np.quantile(sigma, [0.05, 0.95], axis=0)])


def describe_columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """What each column of heads.csv is: a quantity of the registry, or a statistic of it against a baseline kind."""
    kinds = [name.removesuffix("_draws") for name in names if name.endswith("_draws")]
    columns = []
    for name in names:
        quantity, kind, statistic = _parts(name, kinds)
        entry = REGISTRY.get(quantity)
        label = entry.label if entry else quantity.replace("_", " ")
        if kind:
            words = "number of draws" if statistic == "draws" else STATISTICS[statistic]
            label = f"{kind}: {words}" if statistic == "draws" else f"{label}, {words} ({kind})"
        columns.append(
            {"name": name, "label": label, "quantity": quantity, "kind": kind, "statistic": statistic}
            | {"diverging": statistic in DIVERGING}
        )
    return columns


def _parts(name: str, kinds: Sequence[str]) -> tuple[str, str, str]:
    for kind in kinds:
        if name == f"{kind}_draws":
            return "", kind, "draws"
        match = re.fullmatch(rf"(.+)_{re.escape(kind)}_({'|'.join(STATISTICS)})", name)
        if match:
            return match[1], kind, match[2]
    return name, "", ""


def describe_quantities() -> list[dict[str, str]]:
    """The registry as the page shows it, in its order."""
    keys = ("name", "label", "formula", "meaning", "range", "source", "unit")
    return [{key: getattr(entry, key) for key in keys} for entry in REGISTRY.values()]


def files_read(inputs: Inputs) -> list[dict[str, str]]:
    """Name and sha256 of every results file that the page is made of (the name within the model's results)."""
    files = [*inputs.heads_csv, *inputs.vectors, *inputs.decompositions]
    return [{"file": "/".join(path.parts[-4:]), "sha256": sha256_of_file(path)} for path in files]
