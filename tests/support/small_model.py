"""A small model's folder as the heads step leaves it, and further results of it, for tests of single steps."""

import json
from pathlib import Path

import numpy as np

from headmaps.geometry import Geometry, Norm, Position, Rotary, write_geometry
from headmaps.heads import LayerHeads
from headmaps.records import write_array, write_arrays, write_json
from headmaps.steps import decompose, haar_pool, tables

LAYERS, D, H, KV, R = 3, 32, 4, 2, 6
SOURCE = {"source": "local", "path": "weights", "notes": []}


def small_geometry(**changes):
    """Three pre-norm layers of four grouped rotary heads."""
    return Geometry(
        **{
            "model_type": "test", "layout": "separate", "layers": list(range(LAYERS)), "n_layers": LAYERS, "d_model": D,
            "n_heads": H, "n_kv_heads": KV, "d_head": R, "d_head_v": R, "dtype": "F32", "scale": 1.0,
            "position": Position("rotary", {"default": Rotary("half", R, 100.0)}),
            "norm": Norm("layer", "pre", bias=True),
        }
        | changes
    )  # fmt: skip


def small_layers(geometry, seed=0):
    """Gaussian heads, layer by layer."""
    rng = np.random.default_rng(seed)
    g = geometry

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return [
        LayerHeads(
            normal(g.n_heads, g.d_model, g.d_head), normal(g.n_kv_heads, g.d_model, g.d_head),
            normal(g.n_kv_heads, g.d_model, g.d_head_v), normal(g.n_heads, g.d_head_v, g.d_model),
            {"norm_weight": np.abs(normal(g.d_model)), "norm_bias": normal(g.d_model)},
        )
        for _ in g.layers
    ]  # fmt: skip


def write_model(folder: Path, geometry, layers) -> Path:
    """`checkpoint/source.json`, `heads/geometry.json` and `heads/layer-LL/` with their records."""
    write_json(folder / "checkpoint/source.json", SOURCE)
    write_geometry(folder / "heads/geometry.json", geometry)
    for layer, heads in zip(geometry.layers, layers, strict=True):
        directory = folder / f"heads/layer-{layer:02d}"
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            write_array(directory / f"{name}.npy", getattr(heads, name))
        write_arrays(directory / "extras.npz", heads.extras)
        write_json(directory.with_suffix(".json"), {"step": "heads"})
    return folder


def call(step, spec, **flags):
    """Run a step's main with a spec and flags: a path, a number, or a list of paths."""
    argv = ["--spec", json.dumps(spec)]
    for name, value in flags.items():
        argv += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    step.main(argv)


def heads_folders(folder: Path) -> list[Path]:
    """The folders of head matrices, ascending."""
    return sorted(path for path in (folder / "heads").iterdir() if path.is_dir())


def write_tables(folder: Path, treatment="raw", kinds=("gaussian",)) -> Path:
    """Decompositions, a small Haar pool and tables of a model's folder; returns heads.csv."""
    geometry = folder / "heads/geometry.json"
    pool = folder / "baselines/haar.npz"
    if kinds:
        call(haar_pool, {"draws": 64, "seed": 0}, geometry=geometry, output=pool, record=pool.with_suffix(".json"))
    found = []
    for matrix in ("value", "qk"):
        for number, heads in enumerate(heads_folders(folder)):
            output = folder / treatment / "decomposition" / matrix / f"{heads.name}.npz"
            spec = {"matrix": matrix, "layer_norm": treatment}
            call(
                decompose, spec, geometry=geometry, heads=heads, layer=number, output=output,
                record=output.with_suffix(".json"),
            )  # fmt: skip
            found.append(output)
    place = folder / treatment / "tables"
    call(
        tables, {"matrices": ["value", "qk"], "kinds": list(kinds)}, geometry=geometry, decompositions=found,
        baselines=[pool] if kinds else [], heads_csv=place / "heads.csv", vectors=place / "vectors.parquet",
        record=place / "tables.json",
    )  # fmt: skip
    return place / "heads.csv"
