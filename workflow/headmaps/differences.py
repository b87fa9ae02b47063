"""Two runs side by side: which numbers of the tables differ and by how much, which figures changed."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headmaps.lockfile import results_of
from headmaps.plan import RESULTS

KEYS = ("layer", "head", "matrix")
FIGURES = (".svg", ".png", ".pdf", ".html")


@dataclass(frozen=True)
class Difference:
    """One difference between A and B.

    Attributes:
        path: the file, relative to the results folder.
        kind: `number` (a cell of heads.csv), `figure`, `file`, `only in A`, `only in B`.
        where: for a number, its row and column.
        a, b: the numbers; None where one is empty or the file is not a table.
    """

    path: str
    kind: Literal["number", "figure", "file", "only in A", "only in B"]
    where: str = ""
    a: float | None = None
    b: float | None = None

    @property
    def delta(self) -> float | None:
        """b - a, None where one is missing."""
        return None if self.a is None or self.b is None else self.b - self.a


def differences(a: Path, b: Path, tolerance: float) -> list[Difference]:
    """What differs between two results folders or lock files.

    Args:
        a, b: results folders (or project folders that hold one) or lock files.
        tolerance: numbers of heads.csv that differ by no more are equal; they are compared where both are folders.

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
    return found


def _changed(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    if path.endswith(FIGURES):
        yield Difference(path, "figure")
    elif path.endswith("tables/heads.csv") and a.is_dir() and b.is_dir():
        yield from _cells(path, _inside(a, path), _inside(b, path), tolerance)
    else:
        yield Difference(path, "file")


def _inside(place: Path, path: str) -> Path:
    return (place / RESULTS if (place / RESULTS).is_dir() else place) / path


def _cells(path: str, a: Path, b: Path, tolerance: float) -> Iterator[Difference]:
    rows_a, rows_b = _rows(a), _rows(b)
    for key in sorted(rows_a.keys() | rows_b.keys()):
        left, right = rows_a.get(key, {}), rows_b.get(key, {})
        for column in list(left | right):
            then, now = _number(left.get(column, "")), _number(right.get(column, ""))
            if _differ(then, now, tolerance):
                where = f"layer {key[0]} head {key[1]} {key[2]}: {column}"
                yield Difference(path, "number", where, then, now)


def _rows(path: Path) -> dict[tuple[int, int, str], dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return {
            (int(row["layer"]), int(row["head"]), row["matrix"]): {k: v for k, v in row.items() if k not in KEYS}
            for row in csv.DictReader(stream)
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
    return abs(a - b) > tolerance
