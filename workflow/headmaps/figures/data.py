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
    """The rows of heads.csv as columns: `layer`, `head` (ints), `matrix` (str), the rest float, empty cells NaN.

    Args:
        path: heads.csv.

    Raises:
        ResultError: the file is missing, or a column that the figure needs is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, encoding="utf-8", newline="") as stream:
                rows = csv.reader(stream)
                self.columns = next(rows, [])
                self._cells = list(zip(*rows, strict=True))
        except FileNotFoundError:
            raise ResultError("a table that this figure needs is missing", where=str(path), do="run snakemake") from None
        except ValueError as error:
            raise ResultError(f"the table has rows of unequal length ({error})", where=str(path)) from None

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def text(self, column: str) -> tuple[str, ...]:
        """A column as it stands in the file."""
        if column not in self.columns:
            what = f"the table has no column {column!r}"
            raise ResultError(what, where=str(self.path), expected="columns " + ", ".join(self.columns[:8]) + ", ...")
        return self._cells[self.columns.index(column)] if self._cells else ()

    def of(self, matrix: str, columns: Iterable[str]) -> dict[str, Array]:
        """Columns of one matrix's rows as float arrays."""
        rows = [i for i, name in enumerate(self.text("matrix")) if name == matrix]
        cells = {column: self.text(column) for column in columns}
        return {
            column: np.array([float(values[i]) if values[i] else np.nan for i in rows])
            for column, values in cells.items()
        }

    def matrices(self) -> list[str]:
        """The matrices it has rows of, in the order of the file."""
        return list(dict.fromkeys(self.text("matrix")))


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
    """(H, r): which singular pairs exist, those below the head's rank."""
    sigma = decomposition["sigma"]
    if "rank" not in decomposition:
        return np.isfinite(sigma) & (sigma > 0)
    return np.arange(sigma.shape[1])[None, :] < decomposition["rank"][:, None]


def chosen_role(table: HeadsTable, matrix: str, role: str) -> tuple[int, int]:
    """The (layer, head) of a role: the largest, middle or smallest mean self of a matrix's heads.

    Ties go to the earlier layer and head; of an even number the upper middle one is the median.

    Raises:
        ResultError: no head has a self.
    """
    columns = table.of(matrix, ("layer", "head", "self_mean"))
    there = np.flatnonzero(np.isfinite(columns["self_mean"]))
    if not there.size:
        what = f"no head has a mean self, so that none can be chosen for {role}"
        raise ResultError(what, where=str(table.path), do="give layers and heads in figures.heads")
    layer, head = columns["layer"][there].astype(int), columns["head"][there].astype(int)
    order = np.lexsort((head, layer, -columns["self_mean"][there]))
    place = {"most-self": 0, "median-self": (len(order) - 1) // 2, "least-self": len(order) - 1}[role]
    return int(layer[order[place]]), int(head[order[place]])


def check_head(layer: int, head: int, n_heads: int, model: str) -> None:
    """Raise a ConfigError for a head that the model does not have."""
    if not 0 <= head < n_heads:
        what = f"model {model} has no head {head} in layer {layer}"
        raise ConfigError(what, where="figures.heads", expected=f"heads 0 to {n_heads - 1}", do="change the pair")
