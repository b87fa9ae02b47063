"""Our numbers against the published ones of the article "Attention Matrix Plots", number by number.

The article does not say how the layer norm entered its weights. Each treatment is therefore compared by itself; the one
that reproduces every published number says what the article did. Differences are absolute: published quantities are
cosines, or singular values and projections of order one.
"""

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.comparison import read_heads
from headmaps.errors import ResultError
from headmaps.figures.ternary import linear_fit

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

TOLERANCE = 1e-4
"""A published number counts as reproduced below this difference: one in the fourth decimal is too many."""
BINS = 100
_EDGES = np.linspace(-1.0, 1.0, BINS + 1)
_PARTS = {"self": "self_mean", "ortho": "ortho_mean", "rotation": "rotation_mean"}
_MAKEUP = {"self": "self", "ortho": "ortho", "rotation": "rot"}


@dataclass(frozen=True)
class Reference:
    """Published numbers of one model.

    Attributes:
        layer, head: the head whose singular values are published.
        makeup: `layer`, `head`, `self`, `ortho`, `rotation` of every head, value matrix.
        sigma: matrix -> `sigma` (r,) and sigma times `self`, `ortho`, `rotation`.
        rows: numbers of the published rows of Z. Z: (len(rows), r) those rows. diagonal: (r,) of Z.
        counts: (H, 100) histogram of sigma_i overlap_i on [-1, 1] at `layer`.
        line: (a, b) of the fit ortho' = a + b self'.
        bias: (matrix, side) -> (r,) a bias vector's projections, side `input` or `output`.
    """

    layer: int
    head: int
    makeup: Columns
    sigma: Mapping[str, Mapping[str, Float]]
    rows: tuple[int, ...]
    Z: Float
    diagonal: Float
    counts: Int
    line: tuple[float, float]
    bias: Mapping[tuple[str, str], Float]


@dataclass(frozen=True)
class Compared:
    """One quantity, number by number; all arrays have one length.

    Attributes:
        quantity, matrix: what.
        layer, head, index: where; -1 where a number has none.
        published, ours: the two.
        difference: how far they are apart; infinite where nothing of ours can be it.
    """

    quantity: str
    matrix: str
    layer: Int
    head: Int
    index: Int
    published: Float
    ours: Float
    difference: Float

    @property
    def largest(self) -> float:
        """The largest difference."""
        return float(self.difference.max())

    @property
    def reproduced(self) -> bool:
        """Whether every number is."""
        # what is published is rounded to six decimals or seven digits, and sigma times a part twice: a change of one in
        # the fourth decimal may come out a few 1e-6 smaller, and still is one
        return bool(self.largest < 0.95 * TOLERANCE)


@dataclass(frozen=True)
class BiasCandidate:
    """One bias vector, or a sum of several, against the published line of one side of a matrix."""

    matrix: str
    side: str
    names: tuple[str, ...]
    largest: float

    @property
    def matches(self) -> bool:
        """Whether every projection agrees up to its sign."""
        return self.largest < TOLERANCE


# --- reading ----------------------------------------------------------------------------------------------------------


def read_reference(files: Sequence[Path]) -> Reference:
    """Read the published numbers.

    Args:
        files: as `references.reference_files` lists them.

    Raises:
        ResultError: one cannot be read.
    """
    makeup_csv, makeup_json, sigma_value, sigma_qk, rows, diagonal, histogram, bias = map(Path, files)
    layer, head = map(int, re.findall(r"\d+", sigma_value.stem)[-2:])
    makeup, table, counted = _columns(makeup_csv), _columns(rows), _columns(histogram)
    heads = int(makeup["head"].max()) + 1
    counts = np.zeros((heads, BINS), dtype=np.int64)
    counts[counted["head"].astype(int), counted["bin_index"].astype(int)] = counted["count"].astype(int)
    ends = json.loads(makeup_json.read_text(encoding="utf-8"))["linear_fit"]
    first, last = ends["first"]["ortho"], ends["last"]["ortho"]
    width = sum(name.startswith("c") for name in table)
    lines = _columns(bias, text=("matrix",))
    return Reference(
        layer,
        head,
        {"layer": makeup["layer"], "head": makeup["head"]} | {name: makeup[old] for name, old in _MAKEUP.items()},
        {"value": _sigma(sigma_value), "qk": _sigma(sigma_qk)},
        tuple(int(row) for row in table["row"]),
        np.stack([table[f"c{column}"] for column in range(width)], axis=1),
        _columns(diagonal)["z_kk"],
        counts,
        (first, last - first),
        {
            (matrix, side): lines[f"bias_{side}_side"][lines["matrix"] == matrix]
            for matrix in ("value", "qk")
            for side in ("input", "output")
        },
    )


def _sigma(path: Path) -> dict[str, Float]:
    columns = _columns(path)
    return {"sigma": columns["sigma"]} | {name: columns[f"{old}_weighted"] for name, old in _MAKEUP.items()}


def _columns(path: Path, text: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        return {name: np.array([row[name] if name in text else float(row[name]) for row in rows]) for name in rows[0]}
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise ResultError(f"published numbers cannot be read ({error})", where=str(path)) from None


# --- comparing --------------------------------------------------------------------------------------------------------


def compared(
    reference: Reference, heads: Columns, value: Mapping[str, NDArray[Any]], qk: Mapping[str, NDArray[Any]]
) -> list[Compared]:
    """Every published number against ours under one treatment.

    Args:
        heads: heads.csv as columns, rows of the value matrix.
        value, qk: the decompositions of the reference's layer.

    Raises:
        ResultError: the model has other layers, heads or dimensions than the published one.
    """
    _check_shape(reference, heads, value, qk)
    return [
        *_makeup(reference, heads),
        *_line(reference, heads),
        *_singular_values(reference, {"value": value, "qk": qk}),
        *_overlaps(reference, np.asarray(value["Z"][reference.head])),
        _histogram(reference, value),
    ]


def _check_shape(reference: Reference, heads: Columns, *decompositions: Mapping[str, NDArray[Any]]) -> None:
    ours = sorted(zip(heads["layer"].tolist(), heads["head"].tolist(), strict=True))
    theirs = sorted(zip(reference.makeup["layer"].tolist(), reference.makeup["head"].tolist(), strict=True))
    rank = len(reference.sigma["value"]["sigma"])
    ranks = {found["sigma"].shape[1] for found in decompositions}
    if ours != theirs or ranks != {rank}:
        what = f"the model has {len(ours)} heads of dimension {sorted(ranks)}: it is not the published one"
        raise ResultError(what, where="published", expected=f"{len(theirs)} heads of dimension {rank}")


def _one(quantity: str, matrix: str, reference: Reference, published: Float, ours: Float) -> Compared:
    count = len(published)
    layer, head = np.full(count, reference.layer), np.full(count, reference.head)
    return Compared(quantity, matrix, layer, head, np.arange(count), published, ours, _apart(published, ours))


def _apart(published: Float, ours: Float) -> Float:
    return np.nan_to_num(np.abs(published - ours), nan=np.inf)


def _makeup(reference: Reference, heads: Columns) -> Iterator[Compared]:
    theirs = np.lexsort((reference.makeup["head"], reference.makeup["layer"]))
    mine = np.lexsort((heads["head"], heads["layer"]))
    layer, head = (reference.makeup[name][theirs].astype(np.int64) for name in ("layer", "head"))
    for name, column in _PARTS.items():
        published, ours = reference.makeup[name][theirs], np.asarray(heads[column][mine], dtype=np.float64)
        none = np.full(len(layer), -1)
        yield Compared(name, "value", layer, head, none, published, ours, _apart(published, ours))


def _line(reference: Reference, heads: Columns) -> Iterator[Compared]:
    there = np.isfinite(heads["self_mean"])
    ours = linear_fit(*(np.asarray(heads[column][there], dtype=np.float64) for column in _PARTS.values()))
    none = np.array([-1])
    for name, theirs, mine in zip(("fit a", "fit b"), reference.line, ours, strict=True):
        published, own = np.array([theirs]), np.array([mine])
        yield Compared(name, "value", none, none, none, published, own, _apart(published, own))


def _singular_values(reference: Reference, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> Iterator[Compared]:
    for matrix, arrays in found.items():
        sigma, Z = arrays["sigma"][reference.head], arrays["Z"][reference.head]
        own, row = np.abs(np.diagonal(Z)), (Z**2).sum(axis=1)
        parts = {
            "self": own,
            "ortho": np.sqrt(np.clip(1 - row, 0, None)),
            "rotation": np.sqrt(np.clip(row - own**2, 0, None)),
        }
        published = reference.sigma[matrix]
        yield _one("sigma", matrix, reference, published["sigma"], sigma)
        for name, part in parts.items():
            yield _one(f"sigma {name}", matrix, reference, published[name], sigma * part)


def _overlaps(reference: Reference, Z: Float) -> Iterator[Compared]:
    yield _one("overlap", "value", reference, reference.diagonal, np.diagonal(Z))
    ours = aligned(Z[list(reference.rows)], reference.Z, reference.rows)
    for number, row in enumerate(reference.rows):
        yield _one(f"Z row {row}", "value", reference, reference.Z[number], ours[number])


def aligned(ours: Float, published: Float, rows: Sequence[int]) -> Float:
    """Our rows of Z with the signs of singular pairs that bring them closest to the published ones.

    A pair's sign turns its row and its column of Z together, so that Z[i, j] becomes s_i s_j Z[i, j].

    Args:
        ours, published: (k, r) rows of Z. rows: their numbers.
    """
    best, smallest = ours, np.inf
    for signs in itertools.product((1.0, -1.0), repeat=len(rows)):
        turned = np.array(signs)[:, None] * ours
        keep, flip = np.abs(turned - published).max(axis=0), np.abs(turned + published).max(axis=0)
        columns = np.where(keep <= flip, 1.0, -1.0)
        columns[list(rows)] = signs
        error = float(np.abs(turned * columns - published).max())
        if error < smallest:
            best, smallest = turned * columns, error
    return best


def _histogram(reference: Reference, value: Mapping[str, NDArray[Any]]) -> Compared:
    """How far a value of ours must move for the published counts to come out, at each edge of each head's bins.

    Compared are the numbers of pairs below each edge: a value close to an edge may have been counted on its other side.
    """
    parts = []
    place = np.arange(value["sigma"].shape[1])
    for head, counts in enumerate(reference.counts):
        used = place < value["rank"][head]
        ours = np.sort((value["sigma"][head] * np.diagonal(value["Z"][head]))[used])
        parts.append(moves(ours, counts))
    below, published, distance = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    heads, edges = len(reference.counts), BINS + 1
    return Compared(
        "histogram",
        "value",
        np.full(heads * edges, reference.layer),
        np.repeat(np.arange(heads), edges),
        np.tile(np.arange(edges), heads),
        published.astype(np.float64),
        below.astype(np.float64),
        distance,
    )


def moves(values: Float, counts: Int) -> tuple[Int, Int, Float]:
    """What separates sorted values from published counts on [-1, 1], edge by edge (101,).

    Returns:
        how many of our values lie below each edge; how many of the published; and how far the values between the two
        numbers lie from the edge, at most (infinite where the counts are of more values than there are).
    """
    below = np.searchsorted(values, _EDGES, side="left")
    published = below[0] + np.concatenate([[0], np.cumsum(counts)])
    padded = np.append(values, np.inf)
    up = padded[np.clip(published - 1, 0, len(values))] - _EDGES
    down = _EDGES - padded[np.clip(published, 0, len(values))]
    distance = np.where(published > below, up, np.where(published < below, down, 0.0))
    return below, published, np.where(published > len(values), np.inf, distance)


def value_rows(heads_csv: Path) -> Columns:
    """heads.csv as columns, the rows of the value matrix alone."""
    heads = read_heads(heads_csv)
    rows = heads["matrix"] == "value"
    return {name: values[rows] for name, values in heads.items()}


def comparison_table(found: Mapping[str, Sequence[Compared]]) -> dict[str, NDArray[Any]]:
    """Every comparison under every treatment as one table; an empty cell is a number that ours lacks.

    Args:
        found: treatment -> what `compared` returned.
    """
    parts = [(treatment, one) for treatment, each in found.items() for one in each]
    names = [(treatment, one.quantity, one.matrix, len(one.published)) for treatment, one in parts]
    table: dict[str, NDArray[Any]] = {
        column: np.concatenate([np.full(name[-1], name[place]) for name in names])
        for place, column in enumerate(("treatment", "quantity", "matrix"))
    }
    for name in ("layer", "head", "index", "published", "ours", "difference"):
        table[name] = np.concatenate([getattr(one, name) for _, one in parts])
    table["difference"] = np.where(np.isfinite(table["difference"]), table["difference"], np.nan)
    return table


def bias_candidates(reference: Reference, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[BiasCandidate]:
    """Every stored bias vector and every sum of up to three, against the published bias lines; best first.

    Args:
        found: matrix -> decomposition of the reference's layer, with its `bias_input_NAME` and `bias_output_NAME`.
    """
    candidates = []
    for (matrix, side), published in reference.bias.items():
        start = f"bias_{side}_"
        lines = {key.removeprefix(start): value for key, value in found[matrix].items() if key.startswith(start)}
        for size in (1, 2, 3):
            for names in itertools.combinations(sorted(lines), size):
                ours = sum(lines[name][reference.head] for name in names)
                largest = float(_apart(np.abs(published), np.abs(ours)).max())
                candidates.append(BiasCandidate(matrix, side, names, largest))
    return sorted(candidates, key=lambda one: (one.matrix, one.side, one.largest))
