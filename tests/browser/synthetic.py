"""Results of a made-up model, in the files and columns of real ones, with planted heads that tests can look for.

python -m browser.synthetic FOLDER --layers 80 --heads 64 --d-model 8192 --rank 128
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headmaps.geometry import Geometry, Norm, Position, write_geometry
from headmaps.haar import haar_means
from headmaps.quantities import REGISTRY, quantities
from headmaps.records import write_arrays, write_json

Array = NDArray[np.float64]

MATRICES = ("value", "qk")
PLANTED = {"layer": 1, "head": 2, "matrix": "value", "self": 0.9}
"""A head that copies: every pair has this self; the largest mean self of its model."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a made-up model."""

    layers: tuple[int, ...]
    n_heads: int
    d_model: int
    rank: int


def geometry_of(shape: Shape) -> Geometry:
    """Its geometry."""
    return Geometry(
        model_type="made-up",
        layout="separate",
        layers=list(shape.layers),
        n_layers=max(shape.layers) + 1,
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_heads,
        d_head=shape.rank,
        d_head_v=shape.rank,
        dtype="F32",
        scale=shape.rank**-0.5,
        position=Position(scheme="learned"),
        norm=Norm(kind="layer", place="pre", epsilon=1e-5, bias=True),
        biases=["b_V", "b_O"],
        notes=["These numbers are made up <by a test>."],
    )


def layer_arrays(shape: Shape, rng: np.random.Generator, planted: int | None) -> dict[str, Array]:
    """One decomposition file: random heads whose self grows with their number, and the planted one."""
    H, r = shape.n_heads, shape.rank
    Z = rng.standard_normal((H, r, r)) / np.sqrt(shape.d_model)
    diagonal = np.arange(r)
    strength = np.linspace(0.02, 0.5, H)
    for head in range(H):
        Z[head] *= 1 + head / H
        Z[head, diagonal, diagonal] = strength[head] * rng.uniform(0.5, 1.5, r) * rng.choice([-1, 1, 1, 1], r)
    if planted is not None:
        Z[planted] *= 0.1
        Z[planted, diagonal, diagonal] = PLANTED["self"]
    Z /= np.maximum(1, np.sqrt((Z**2).sum(axis=2, keepdims=True)) * 1.0001)
    sigma = -np.sort(-rng.gamma(2.0, 0.4, (H, r)), axis=1)
    gap = np.abs(np.diff(sigma, axis=1, append=0)) / sigma
    arrays = {"sigma": sigma, "Z": Z, "gap": gap, "rank": np.full(H, r)}
    arrays["eigenvalues"] = np.linalg.eigvals(sigma[:, :, None] * Z) if r <= 16 else spiral(sigma)
    for side in ("input", "output"):
        for name in ("b_O", "b_V_W_O"):
            arrays[f"bias_{side}_{name}"] = 0.05 * rng.standard_normal((H, r))
    return arrays


def spiral(sigma: Array) -> NDArray[np.complex128]:
    """Complex numbers of the size of half the singular values: stands in where eigenvalues would take long."""
    return 0.5 * sigma * np.exp(1j * np.arange(sigma.shape[1]))


def columns_of(arrays: dict[str, Array], layer: int, matrix: str, shape: Shape) -> dict[str, Array]:
    """Rows of heads.csv of one layer: the registry's quantities, and a gaussian baseline of the means."""
    H = shape.n_heads
    columns = {"layer": np.full(H, layer), "head": np.arange(H), "matrix": np.full(H, matrix), "rank": arrays["rank"]}
    names = [name for name in REGISTRY if shape.rank <= 16 or name in CHEAP]
    columns |= quantities(arrays["sigma"], arrays["Z"], arrays["eigenvalues"], names)
    for part, mean in zip(("self", "rotation", "ortho"), haar_means(shape.d_model, shape.rank), strict=True):
        name, sd = f"{part}_mean", 0.1 * mean / np.sqrt(shape.rank)
        columns[f"{name}_gaussian_mean"] = np.full(H, mean)
        columns[f"{name}_gaussian_sd"] = np.full(H, sd)
        columns[f"{name}_gaussian_z"] = (columns[name] - mean) / sd
        columns[f"{name}_gaussian_p"] = np.full(H, 1 / 4097)
    columns["gaussian_draws"] = np.full(H, 4096)
    return columns


CHEAP = ("self_mean", "rotation_mean", "ortho_mean", "overlap_mean", "self_energy", "rotation_energy", "ortho_energy")
CHEAP += ("frobenius_norm",)


def write_csv(path: Path, columns: dict[str, Array]) -> None:
    """heads.csv: numbers as the shortest text that reads back the same, what does not exist as an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    lines = [",".join("" if str(cell) == "nan" else str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")


def vectors_of(arrays: dict[str, Array], layer: int, matrix: str) -> dict[str, NDArray[np.generic]]:
    """Rows of vectors.parquet of one layer."""
    Z, sigma = arrays["Z"], arrays["sigma"]
    H, r = sigma.shape
    overlap = np.diagonal(Z, axis1=1, axis2=2)
    inside = (Z**2).sum(axis=2)
    grid = {
        "layer": np.full((H, r), layer),
        "head": np.broadcast_to(np.arange(H)[:, None], (H, r)),
        "matrix": np.full((H, r), matrix),
        "index": np.broadcast_to(np.arange(r), (H, r)),
        "sigma": sigma,
        "overlap": overlap,
        "self": np.abs(overlap),
        "rotation": np.sqrt(np.maximum(0, inside - overlap**2)),
        "ortho": np.sqrt(np.maximum(0, 1 - inside)),
        "gap": arrays["gap"],
    }
    return {name: np.ascontiguousarray(values).reshape(-1) for name, values in grid.items()}


def write_results(folder: Path, shape: Shape, treatments: Sequence[str] = ("raw",), seed: int = 0) -> None:
    """Write the results of a made-up model, in the layout of real ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_geometry(folder / "heads" / "geometry.json", geometry_of(shape))
    tensor = {"file": "model.safetensors", "dtype": "F32", "shape": [2, 2], "offset": 0, "nbytes": 16}
    layers = {str(layer): {f"layers.{layer}.v.weight": tensor} for layer in shape.layers}
    source = {"source": "local", "path": "made/up", "commit": "0" * 40, "format": "safetensors", "config": {}}
    write_json(folder / "checkpoint" / "source.json", source | {"layers": layers, "shared": {}, "notes": []})
    for number, treatment in enumerate(treatments):
        rows, pairs = [], []
        for place, matrix in enumerate(MATRICES):
            for layer in shape.layers:
                rng = np.random.default_rng([seed, number, place, layer])
                planted = PLANTED["head"] if (matrix, layer) == (PLANTED["matrix"], PLANTED["layer"]) else None
                arrays = layer_arrays(shape, rng, planted)
                write_arrays(folder / treatment / "decomposition" / matrix / f"layer-{layer:02d}.npz", arrays)
                rows.append(columns_of(arrays, layer, matrix, shape))
                pairs.append(vectors_of(arrays, layer, matrix))
        tables = folder / treatment / "tables"
        write_csv(tables / "heads.csv", {name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        joined = {name: np.concatenate([pair[name] for pair in pairs]) for name in pairs[0]}
        pq.write_table(
            pa.table({name: pa.array(values) for name, values in joined.items()}), tables / "vectors.parquet"
        )


def atlas_arguments(folder: Path, model: str, treatments: Sequence[str] = ("raw",)) -> list[str]:
    """Command line of the step `atlas` for results written here or by the workflow."""
    geometry = json.loads((folder / "heads" / "geometry.json").read_text(encoding="utf-8"))
    matrices = list(geometry["matrices"])
    spec = {"model": model, "layer_norms": list(treatments), "matrices": matrices, "baselines": {"kinds": ["gaussian"]}}
    files = [
        path
        for treatment in treatments
        for matrix in matrices
        for path in sorted((folder / treatment / "decomposition" / matrix).glob("layer-*.npz"))
    ]
    return [
        *("--spec", json.dumps(spec), "--geometry", str(folder / "heads" / "geometry.json")),
        *("--source", str(folder / "checkpoint" / "source.json")),
        *("--heads-csv", *(str(folder / treatment / "tables" / "heads.csv") for treatment in treatments)),
        *("--vectors", *(str(folder / treatment / "tables" / "vectors.parquet") for treatment in treatments)),
        *("--decompositions", *map(str, files)),
        *("--output", str(folder / "atlas.html"), "--record", str(folder / "atlas.json")),
    ]


def index_arguments(results: Path, models: Sequence[str]) -> list[str]:
    """Command line of the step `atlas_index` for several models' results in one folder."""
    listed = [
        {"name": name, "layer_norm": "raw", "matrices": list(MATRICES), "page": f"{name}/atlas.html"} for name in models
    ]
    return [
        *("--spec", json.dumps({"models": listed})),
        *("--geometries", *(str(results / name / "heads" / "geometry.json") for name in models)),
        *("--heads-csv", *(str(results / name / "raw" / "tables" / "heads.csv") for name in models)),
        *("--output", str(results / "atlas.html"), "--record", str(results / "atlas.json")),
    ]


def main() -> None:
    """Write results and their atlas."""
    from headmaps.steps import atlas

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for flag, default in (("--layers", 24), ("--heads", 32), ("--d-model", 2048), ("--rank", 64)):
        parser.add_argument(flag, type=int, default=default)
    given = parser.parse_args()
    shape = Shape(tuple(range(given.layers)), given.heads, given.d_model, given.rank)
    if not (given.folder / "raw" / "tables" / "vectors.parquet").exists():
        write_results(given.folder, shape)
    atlas.main(atlas_arguments(given.folder, given.folder.name))


if __name__ == "__main__":
    main()
