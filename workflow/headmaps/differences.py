"""Two runs side by side: which numbers differ and by how much, which figures changed."""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headmaps.errors import ResultError
from headmaps.lockfile import results_folder, results_of
from headmaps.records import read_arrays, read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABELS = ("model", "treatment", "quantity", "composition", "layer", "head", "matrix", "distance", "index", "step")
"""Columns that say what a row is of."""
FIGURES = (".svg", ".png", ".pdf", ".html")

Kind = Literal["number", "array", "figure", "file", "only in A", "only in B"]


@dataclass(frozen=True)
class Difference:
    """One difference between A and B.

    Attributes:
        path: the file, relative to the results folder.
        kind: `number` (a cell of a table), `array` (the entry of an array or column that differs most), `figure`,
            `file` (bytes differ and no number says how), `only in A`, `only in B`.
        where: for numbers, their place.
        a, b: the numbers; None where one is empty or there is none.
    """

    path: str
    kind: Kind
    where: str = ""
    a: float | None = None
    b: float | None = None

    @property
    def delta(self) -> float | None:
        """b - a, None where one is missing."""
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Comparison:
    """All differences, and how many figures there are of which none differs."""

    differences: list[Difference]
    same_figures: int


def compare(a: Path, b: Path, tolerance: float) -> Comparison:
    """What differs between two results folders or lock files.

    Args:
        a, b: results folders (or project folders that hold one) or lock files.
        tolerance: numbers that differ by no more are equal. Numbers are compared where both are folders; a lock holds
            hashes alone.

    Raises:
        ResultError: one is neither a folder nor a lock file.
    """
    in_a, in_b = results_of(a), results_of(b)
    found: list[Difference] = []
    for path in sorted(in_a.keys() | in_b.keys()):
        if path not in in_b:
            found.append(Difference(path, "only in A"))
        elif path not in in_a:
            found.append(Difference(path, "only in B"))
        elif in_a[path] != in_b[path]:
            found += _changed(path, a, b, tolerance)
    same = sum(path.endswith(FIGURES) and in_b.get(path) == digest for path, digest in in_a.items())
    return Comparison(found, same)


def _changed(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    if path.endswith(FIGURES):
        yield Difference(path, "figure")
        return
    compared = _READERS.get(Path(path).suffix)
    if compared is None or not (a.is_dir() and b.is_dir()):
        yield Difference(path, "file")
        return
    try:
        yield from compared(path, results_folder(a) / path, results_folder(b) / path, tolerance)
    except (ResultError, ValueError):
        yield Difference(path, "file")


# --- tables -----------------------------------------------------------------------------------------------------------


def _cells(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    rows_a, rows_b = _rows(a), _rows(b)
    for key in list(rows_a | rows_b):
        left, right = rows_a.get(key, {}), rows_b.get(key, {})
        for column in list(left | right):
            then, now = left.get(column, ""), right.get(column, "")
            if then == now:
                continue
            x, y = _number(then), _number(now)
            if x is None and y is None:
                yield Difference(path, "file", f"{key}: {column} was {then!r}, is {now!r}")
            elif _differ(x, y, tolerance):
                yield Difference(path, "number", f"{key}: {column}", x, y)


def _rows(path: Path) -> dict[str, dict[str, str]]:
    """Label -> the other cells; rows without labels of their own, or with equal ones, go by their number."""
    with open(path, newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    labels = [name for name in LABELS if table and name in table[0]]
    names = [" ".join(f"{name} {row[name]}" for name in labels) for row in table]
    if len(set(names)) != len(names):
        names, labels = [f"row {number}" for number in range(len(table))], []
    return {
        label: {name: cell for name, cell in row.items() if name not in labels}
        for label, row in zip(names, table, strict=True)
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _differ(a: float | None, b: float | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is not b
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) != math.isnan(b)
    return a != b and not abs(a - b) <= tolerance


# --- arrays -----------------------------------------------------------------------------------------------------------


def _npz(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    yield from _arrays(path, read_arrays(a), read_arrays(b), tolerance)


def _npy(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    import numpy as np

    left, right = ({"array": np.load(each, allow_pickle=False)} for each in (a, b))
    yield from _arrays(path, left, right, tolerance)


def _parquet(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    import pyarrow.parquet

    left, right = (
        {name: table[name].to_numpy() for name in table.column_names}
        for table in (pyarrow.parquet.read_table(each) for each in (a, b))
    )
    yield from _arrays(path, left, right, tolerance)


def _arrays(
    path: str, a: "Mapping[str, NDArray[Any]]", b: "Mapping[str, NDArray[Any]]", tolerance: float
) -> Iterator[Difference]:
    import numpy as np

    for name in list({**a, **b}):
        if name not in a or name not in b:
            yield Difference(path, "file", f"{name} is only in {'A' if name in a else 'B'}")
            continue
        left, right = a[name], b[name]
        if left.shape != right.shape:
            yield Difference(path, "file", f"{name} has shape {left.shape} and {right.shape}")
        elif left.dtype.kind not in "biufc" or right.dtype.kind not in "biufc":
            if not np.array_equal(left, right):
                yield Difference(path, "file", f"{name} differs")
        elif (found := _largest(path, name, left, right, tolerance)) is not None:
            yield found


def _largest(path: str, name: str, left: "NDArray[Any]", right: "NDArray[Any]", tolerance: float) -> Difference | None:
    """The entry that differs most, and how many differ; None within the tolerance."""
    import numpy as np

    kind = complex if "c" in {left.dtype.kind, right.dtype.kind} else float
    x, y = np.asarray(left, dtype=kind), np.asarray(right, dtype=kind)
    both = np.isnan(x) & np.isnan(y)
    apart = np.where(both | (x == y), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    beyond = apart > tolerance
    if not beyond.any():
        return None
    place = np.unravel_index(int(apart.argmax()), apart.shape)
    index = "" if apart.ndim == 0 else f"[{', '.join(map(str, map(int, place)))}]"
    where = f"{name}{index}, the largest of {int(beyond.sum())} in {apart.size}"
    one, other = (None if np.isnan(each[place]) else float(np.real(each[place])) for each in (x, y))
    return Difference(path, "array", where, one, other)


# --- records ----------------------------------------------------------------------------------------------------------


def _json(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    """Records differ by the hashes of files that are compared themselves; what else differs is said here."""
    if not _alike(read_json(a), read_json(b), tolerance):
        yield Difference(path, "file")


def _alike(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = {key for key in a.keys() | b.keys() if key not in {"sha256", "size"}}
        return all(key in a and key in b and _alike(a[key], b[key], tolerance) for key in keys)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return not _differ(a, b, tolerance)
    return bool(a == b)


_READERS: dict[str, Any] = {".csv": _cells, ".npz": _npz, ".npy": _npy, ".parquet": _parquet, ".json": _json}
