"""What figures read: columns of heads.csv and single arrays of decompositions, no more than is drawn."""

import csv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ConfigError, ResultError

Array = NDArray[np.float64]


class HeadsTable:
    """The rows of heads.csv, of which only the columns asked for are read (there are hundreds).

    Args:
        path: heads.csv.

    Raises:
        ResultError: the file is missing or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, encoding="utf-8", newline="") as stream:
                self.columns = next(csv.reader(stream), [])
        except FileNotFoundError:
            raise ResultError(
                "a table that this figure needs is missing", where=str(path), do="run snakemake"
            ) from None
        self._read: dict[str, NDArray[Any]] = {}
        self._need(["matrix"])

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def _need(self, names: Iterable[str]) -> None:
        """Read those columns that are not here yet, all in one pass."""
        new = [name for name in dict.fromkeys(names) if name not in self._read]
        for name in new:
            if name not in self.columns:
                what = f"the table has no column {name!r}"
                raise ResultError(
                    what, where=str(self.path), expected="a heads.csv of this version", do="run snakemake"
                )
        if not new:
            return
        # not pyarrow: loading it, and the pandas that its conversion to numpy loads, takes longer than drawing a figure
        places = [self.columns.index(name) for name in new]
        cells: list[list[str]] = []
        with open(self.path, encoding="utf-8", newline="") as stream:
            rows = csv.reader(stream)
            next(rows)
            for row in rows:
                if len(row) != len(self.columns):
                    what = f"the table cannot be read: line {rows.line_num} has {len(row)} cells"
                    raise self._unreadable(what, f"{len(self.columns)} cells")
                cells.append([row[place] for place in places])
        for name, column in zip(new, zip(*cells, strict=True) if cells else [()] * len(new), strict=True):
            try:
                self._read[name] = np.array(column if name == "matrix" else [float(cell or "nan") for cell in column])
            except ValueError as error:
                raise self._unreadable(f"the table's column {name} cannot be read ({error})", "numbers") from None

    def _unreadable(self, what: str, expected: str) -> ResultError:
        do = f"delete {self.path} and run snakemake"
        return ResultError(what, where=str(self.path), expected=expected, do=do)

    def of(self, matrix: str, columns: Iterable[str]) -> dict[str, Array]:
        """Columns of one matrix's rows as float arrays; empty cells are NaN.

        Raises:
            ResultError: the table has no such column, or cannot be read.
        """
        wanted = list(columns)
        self._need(wanted)
        mine = self._read["matrix"] == matrix
        return {name: self._read[name][mine] for name in wanted}


def grid(layer: Array, head: Array, values: Array) -> tuple[NDArray[np.int64], Array]:
    """The layers (L,), ascending, and values as (L, H); NaN where a layer has no such head."""
    layers, row = np.unique(layer.astype(np.int64), return_inverse=True)
    heads = int(head.max()) + 1 if head.size else 0
    table = np.full((len(layers), heads), np.nan)
    table[row, head.astype(np.int64)] = values
    return layers, table


def arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that a decomposition has (all by default); the others are not read.

    Raises:
        ResultError: the file is missing or unreadable.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = archive.files if names is None else names
            return {name: archive[name] for name in wanted if name in archive.files}
    except FileNotFoundError:
        raise ResultError("a file that this step needs is missing", where=str(path), do="run snakemake") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        what = f"a results file cannot be read as arrays ({error})"
        raise ResultError(what, where=str(path), do=f"delete {path} and run snakemake") from None


def pairs_in_use(decomposition: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(H, r): which singular pairs have an overlap: those below the head's rank, and none between two streams."""
    comparable = np.bool_(decomposition.get("comparable", True))
    place = np.arange(decomposition["sigma"].shape[1])
    return np.asarray((place[None, :] < decomposition["rank"][:, None]) & comparable, dtype=np.bool_)


def chosen_role(table: HeadsTable, matrix: str, role: str) -> tuple[int, int] | None:
    """The (layer, head) of a role: the largest, middle or smallest mean self of a matrix's heads; None without any.

    Ties go to the earlier layer and head; of an even number the upper middle one is the median.
    """
    columns = table.of(matrix, ("layer", "head", "self_mean"))
    there = np.flatnonzero(np.isfinite(columns["self_mean"]))
    if not there.size:
        return None
    layer, head = columns["layer"][there].astype(int), columns["head"][there].astype(int)
    order = np.lexsort((head, layer, -columns["self_mean"][there]))
    place = {"most-self": 0, "median-self": (len(order) - 1) // 2, "least-self": len(order) - 1}[role]
    return int(layer[order[place]]), int(head[order[place]])


def check_head(layer: int, head: int, n_heads: int, model: str) -> None:
    """Raise a ConfigError for a head that the model does not have."""
    if not 0 <= head < n_heads:
        what = f"model {model} has no head {head} in layer {layer}"
        raise ConfigError(what, where="figures.heads", expected=f"heads 0 to {n_heads - 1}", do="change the pair")
