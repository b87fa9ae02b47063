"""How far the heads of two checkpoints have moved apart: angles between their subspaces, and change of weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.comparison import Columns, Member, changes, shared_matrices
from headmaps.decomposition import decompose
from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.heads import LayerHeads, read_layer_heads
from headmaps.layer_factors import LayerFactors

Array = NDArray[Any]
Float = NDArray[np.float64]

COLUMNS = ("weight_change", "input_angle_mean", "input_angle_max", "output_angle_mean", "output_angle_max")
"""Columns of the table of two checkpoints: the change of weights relative to the first, and angles in degrees."""


def principal_angles(one: Array, two: Array) -> Float:
    """Principal angles between two subspaces, ascending, in radians.

    From sines up to 45 degrees and from cosines beyond, so that neither small nor large ones lose accuracy
    (Bjorck and Golub 1973; Knyazev and Argentati 2002).

    Args:
        one: (d, k) orthonormal columns.
        two: (d, l) orthonormal columns.

    Returns:
        (min(k, l),); empty where a subspace is.
    """
    if one.shape[1] < two.shape[1]:
        one, two = two, one
    product = one.T @ two
    cosines = np.clip(np.linalg.svd(product, compute_uv=False), 0.0, 1.0)
    sines = np.clip(np.sort(np.linalg.svd(two - one @ product, compute_uv=False)), 0.0, 1.0)
    return np.asarray(np.where(cosines**2 > 0.5, np.arcsin(sines), np.arccos(cosines)))


def relative_change(A1: Array, B1: Array, A2: Array, B2: Array) -> float:
    """`||A2 B2 - A1 B1||_F / ||A1 B1||_F` from the factors: (d, r) and (r, d) each.

    The difference is `[A2, -A1] [B2; B1]`, a product of factors of width 2 r: nothing cancels. NaN if A1 B1 = 0.
    """
    size = _norm_of_product(A1, B1)
    return _norm_of_product(np.hstack([A2, -A1]), np.vstack([B2, B1])) / size if size > 0 else float("nan")


def _norm_of_product(A: Array, B: Array) -> float:
    """`||A B||_F` of A (d, n) and B (n, d), through their n x n triangular parts."""
    R_A, R_B = np.asarray(np.linalg.qr(A, mode="r")), np.asarray(np.linalg.qr(B.T, mode="r"))
    return float(np.linalg.norm(R_A @ R_B.T))


def layer_subspaces(
    one: LayerHeads, two: LayerHeads, geometry: Geometry, matrix: str, treatment: str = "raw"
) -> dict[str, Float]:
    """One layer of two checkpoints: `COLUMNS`, each (H,); angles are NaN where a head is zero.

    Args:
        one: the first checkpoint's layer.
        two: the second's, of the same shape.
        geometry: of either.
        matrix: value, qk, ...
        treatment: norm treatment, the same for both.
    """
    rows = []
    pairs = zip(
        LayerFactors(one, geometry, matrix, treatment), LayerFactors(two, geometry, matrix, treatment), strict=True
    )
    for (A1, B1, factors1), (A2, B2, factors2) in pairs:
        first, second = decompose(A1, B1, factors1), decompose(A2, B2, factors2)
        U1, U2 = (found.input_vectors(A)[:, : found.rank] for found, A in ((first, A1), (second, A2)))
        V1, V2 = (found.output_vectors(B)[: found.rank].T for found, B in ((first, B1), (second, B2)))
        angles = [np.degrees(principal_angles(*sides)) for sides in ((U1, U2), (V1, V2))]
        row = [relative_change(A1, B1, A2, B2)]
        for side in angles:
            row += [side.mean(), side.max()] if side.size else [np.nan, np.nan]
        rows.append(row)
    return dict(zip(COLUMNS, np.array(rows, dtype=np.float64).T, strict=True))


def pair_table(one: Member, two: Member, layer_norm: str, first: Sequence[Path], second: Sequence[Path]) -> Columns:
    """changes.csv: `comparison.changes` with `COLUMNS` after the keys; one layer of each model is read at a time.

    Args:
        one: the first model (base).
        two: the second (fine-tuned), of the same shape.
        layer_norm: norm treatment of both.
        first: the first model's head folders, one a layer, ascending.
        second: the second's.

    Raises:
        ConfigError: the shapes differ.
        ResultError: a folder is missing, or the tables' rows differ.
    """
    table, layers = changes(one, two), one.geometry.layers
    if not len(layers) == len(first) == len(second):
        what = f"{len(first)} and {len(second)} head folders were given for {len(layers)} layers"
        raise ResultError(what, where="--first, --second", expected="one for each layer, ascending")
    found: Columns = {name: np.full(len(table["head"]), np.nan) for name in COLUMNS}
    for layer, old, new in zip(layers, first, second, strict=True):
        pair = read_layer_heads(old, one.geometry), read_layer_heads(new, two.geometry)
        for matrix in shared_matrices([one, two]):
            rows = (table["matrix"] == matrix) & (table["layer"] == layer)
            for name, values in layer_subspaces(*pair, one.geometry, matrix, layer_norm).items():
                found[name][rows] = values[table["head"][rows]]
    keys = {name: table[name] for name in ("matrix", "layer", "head")}
    return keys | found | {name: values for name, values in table.items() if name not in keys}


def rows_of_largest(table: Columns, column: str, count: int) -> Columns:
    """The rows with the largest values of a column, largest first, NaN last; equal ones in the table's order."""
    order = np.argsort(-np.nan_to_num(table[column], nan=-np.inf), kind="stable")[:count]
    return {name: values[order] for name, values in table.items()}
