"""Reads what the atlas shows of a model: heads.csv, vectors.parquet and the decompositions, on one grid of heads."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.records import read_arrays

Float = NDArray[np.float64]

KEYS = ("layer", "head", "matrix")
MATRICES = {
    "value": ("Value", "value matrix W_V W_O", "read from the attended token", "written to the current token"),
    "qk": ("QK", "query-key matrix W_Q W_K^T", "query (current token)", "key (attended token)"),
    "qk_nope": (
        "QK, position-free",
        "position-free part of W_Q W_K^T",
        "query (current token)",
        "key (attended token)",
    ),
    "qk_rope": ("QK, rotated", "rotated part of W_Q W_K^T", "query (current token)", "key (attended token)"),
}
"""Matrix -> short name, long name, and what its input and output sides are."""

PAIR_COLUMNS = ("sigma", "overlap", "rotation", "ortho", "gap")
"""Columns of vectors.parquet that the page needs (self is |overlap|)."""


@dataclass(frozen=True)
class Grid:
    """The heads of a model in the order of every block of the page: matrix, then layer, then head."""

    matrices: tuple[str, ...]
    layers: tuple[int, ...]
    n_heads: int
    ranks: tuple[int, ...]
    """Largest possible rank of each matrix: the number of pairs kept for each of its heads."""

    @property
    def size(self) -> int:
        """Number of head matrices."""
        return len(self.matrices) * len(self.layers) * self.n_heads

    def index(self, matrix: str, layer: int, head: int) -> int:
        """Place of a head matrix; ValueError if the model has no such head."""
        if not 0 <= head < self.n_heads:
            raise ValueError(f"head {head} of {self.n_heads}")
        place = self.matrices.index(matrix) * len(self.layers) + self.layers.index(layer)
        return place * self.n_heads + head


def grid_of(geometry: Geometry, matrices: Sequence[str]) -> Grid:
    """The grid of a model's heads.

    Raises:
        ArchitectureError: the model has no such matrix.
    """
    ranks = tuple(geometry.rank_of(matrix) for matrix in matrices)
    return Grid(tuple(matrices), tuple(geometry.layers), geometry.n_heads, ranks)


def read_heads_csv(path: Path, grid: Grid) -> tuple[dict[str, Float], dict[str, list[str]]]:
    """Columns of heads.csv on the grid: numbers (an empty cell is NaN), and apart from them columns of words.

    Raises:
        ResultError: rows are missing, repeated or of heads that the model does not have.
    """
    with open(path, newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        rows = list(reader)
    missing = [key for key in KEYS if key not in header]
    if missing:
        raise ResultError(f"the table of heads has no column {', '.join(missing)}", where=str(path), do="run snakemake")
    order = _order(path, header, rows, grid)
    numbers, words = {}, {}
    for column, name in enumerate(header):
        if name in KEYS:
            continue
        cells = [row[column] for row in rows]
        placed = [""] * grid.size
        for place, cell in zip(order, cells, strict=True):
            placed[place] = cell
        try:
            numbers[name] = np.array([float(cell) if cell else math.nan for cell in placed])
        except ValueError:
            words[name] = placed
    return numbers, words


def _order(path: Path, header: list[str], rows: list[list[str]], grid: Grid) -> list[int]:
    layer, head, matrix = (header.index(key) for key in KEYS)
    order = []
    for number, row in enumerate(rows, start=2):
        try:
            order.append(grid.index(row[matrix], int(row[layer]), int(row[head])))
        except (ValueError, IndexError) as error:
            what = f"line {number} of the table of heads is not of a head of this model ({error})"
            raise ResultError(what, where=str(path), do="run snakemake") from None
    if len(order) != grid.size or len(set(order)) != grid.size:
        raise ResultError(
            f"the table of heads has {len(set(order))} different heads in {len(order)} rows",
            where=str(path),
            expected=f"{grid.size} rows: {len(grid.layers)} layers x {grid.n_heads} heads x {', '.join(grid.matrices)}",
            do="run snakemake",
        )
    return order


def read_pairs(path: Path, grid: Grid) -> dict[str, list[Float]]:
    """Columns of vectors.parquet: name -> per matrix (layers, heads, r); NaN where a pair has no row.

    Raises:
        ResultError: a column is missing, or a row is of a pair that the model does not have.
    """
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=[*KEYS, "index", *PAIR_COLUMNS])
    except (OSError, ValueError, KeyError) as error:
        raise ResultError(f"the table of pairs cannot be read ({error})", where=str(path), do="run snakemake") from None
    column = {name: table.column(name).to_numpy() for name in (*KEYS, "index", *PAIR_COLUMNS) if name != "matrix"}
    matrix = np.asarray(table.column("matrix").to_pylist(), dtype=str)
    row_of_layer = np.full(max(grid.layers) + 1, -1)
    row_of_layer[list(grid.layers)] = np.arange(len(grid.layers))
    pairs: dict[str, list[Float]] = {name: [] for name in PAIR_COLUMNS}
    for name, rank in zip(grid.matrices, grid.ranks, strict=True):
        chosen = np.flatnonzero(matrix == name)
        layer, head, index = (column[key][chosen].astype(np.int64) for key in ("layer", "head", "index"))
        known = (layer >= 0) & (layer < row_of_layer.size) & (head >= 0) & (head < grid.n_heads)
        known &= (index >= 0) & (index < rank)
        known[known] &= row_of_layer[layer[known]] >= 0
        if not known.all():
            wrong = chosen[int(np.flatnonzero(~known)[0])]
            row = {key: column[key][wrong].item() for key in ("layer", "head", "index")}
            raise ResultError(
                f"the table of pairs has a row of no {name} head: {row}", where=str(path), do="run snakemake"
            )
        for quantity in PAIR_COLUMNS:
            values = np.full((len(grid.layers), grid.n_heads, rank), np.nan)
            values[row_of_layer[layer], head, index] = column[quantity][chosen]
            pairs[quantity].append(values)
    return pairs


def read_decomposition(path: Path, sigma: Float) -> dict[str, NDArray[Any]]:
    """One layer's decomposition, checked against the table made from it.

    Args:
        path: layer-LL.npz.
        sigma: (heads, r) the same layer's singular values in vectors.parquet, NaN beyond the rank.

    Raises:
        ResultError: the file is of another shape, or of another layer, matrix or run than the table.
    """
    arrays = read_arrays(path)
    heads, rank = sigma.shape
    shapes = {"sigma": (heads, rank), "Z": (heads, rank, rank), "eigenvalues": (heads, rank)}
    for name, shape in shapes.items():
        found = arrays[name].shape if name in arrays else "nothing"
        if found != shape:
            raise ResultError(f"{name} has shape {found}", where=str(path), expected=str(shape), do="run snakemake")
    there = np.isfinite(sigma)
    if not np.allclose(arrays["sigma"][there], sigma[there], rtol=1e-5, atol=0):
        what = (
            "the singular values differ from those in the table of pairs: they are not of the same run, layer or matrix"
        )
        raise ResultError(what, where=str(path), do="run snakemake")
    return arrays
