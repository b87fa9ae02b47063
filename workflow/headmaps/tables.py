"""heads.csv and vectors.parquet from decompositions: one layer of one matrix at a time, so that memory does not grow.

Rows run by matrix, then layer, then head (then pair). Numbers are written as the shortest text that reads back as the
same float64; what does not exist (NaN) is an empty cell. Equal inputs give equal bytes.
"""

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.blocks import BLOCK_MEANS, block_labels, block_quantities, block_summary
from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.null_columns import Heads, null_columns, read_literal, read_pool
from headmaps.quantities import HAAR_KINDS, REGISTRY, SPECTRAL_NAMES, HeadPairs
from headmaps.records import atomic_path, read_arrays
from headmaps.significance import overlap_p

Float = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

KEYS = ("layer", "head", "matrix")
FIRST = (
    "rank",
    *("self_mean", "rotation_mean", "ortho_mean", "self_energy", "rotation_energy", "ortho_energy", "frobenius_norm"),
)
"""Columns after the keys, in this order; the registry's others follow."""

FACTOR_PREFIX, PRECISION_PREFIX = "fq_", "precision_"
"""Per-head scalars (H,) of a decomposition file that become columns of heads.csv, the first without its prefix."""

PAIR_PREFIX, BIAS_PREFIX = "pair_", "bias_"
"""Numbers per pair (H, r) of a decomposition file that become columns of vectors.parquet, the first without prefix."""


@dataclass(frozen=True)
class Layer:
    """One decomposition file.

    Attributes:
        matrix: value, qk, ...
        layer: its number.
        path: the .npz.
    """

    matrix: str
    layer: int
    path: Path


def layers_of(paths: Iterable[Path], matrices: Sequence[str], layers: Sequence[int]) -> list[Layer]:
    """The decomposition files in the order of the tables' rows.

    Args:
        paths: files `.../{matrix}/layer-LL.npz`, in any order.
        matrices: the matrices of the model, in the order wanted.
        layers: the layers of the model, ascending.

    Raises:
        ResultError: a file is missing, there twice, or of a matrix or layer that the model does not have.
    """
    found: dict[tuple[str, int], Path] = {}
    for path in paths:
        key = (path.parent.name, layer_of(path))
        if key[0] not in matrices or key[1] not in layers:
            what = f"a decomposition is of no matrix or layer of this model: {key[0]}, layer {key[1]}"
            raise ResultError(what, where=str(path), expected=f"{', '.join(matrices)}; layers {list(layers)}")
        if key in found:
            raise ResultError(f"layer {key[1]} of {key[0]} is given twice", where=f"{found[key]}, {path}")
        found[key] = path
    wanted = [(matrix, layer) for matrix in matrices for layer in layers]
    if missing := [key for key in wanted if key not in found]:
        what = "decompositions are missing: " + ", ".join(f"{matrix} layer {layer}" for matrix, layer in missing[:8])
        raise ResultError(what, do="run snakemake decompositions")
    return [Layer(matrix, layer, found[matrix, layer]) for matrix, layer in wanted]


def layer_of(path: Path) -> int:
    """The layer number of a file named `layer-LL.npz`.

    Raises:
        ResultError: it is not named so.
    """
    number = path.stem.removeprefix("layer-")
    if not path.stem.startswith("layer-") or not number.isdigit():
        raise ResultError(f"the file name {path.name} names no layer", where=str(path), expected="layer-LL.npz")
    return int(number)


def read_decomposition(layer: Layer, n_heads: int) -> Columns:
    """Arrays of one decomposition file, their shapes checked.

    Raises:
        ResultError: an array is missing or of the wrong shape.
    """
    arrays = read_arrays(layer.path)
    r = arrays["sigma"].shape[-1] if "sigma" in arrays else 0
    pair, head = (n_heads, r), (n_heads,)
    expected = {"sigma": pair, "Z": (n_heads, r, r), "eigenvalues": pair, "gap": pair, "rank": head}
    expected |= {"input_norm": head, "output_norm": head, "condition": head}
    for name, shape in expected.items():
        if name not in arrays or arrays[name].shape != shape:
            what = f"{name} has shape {arrays[name].shape}" if name in arrays else f"{name} is missing"
            raise ResultError(what, where=str(layer.path), expected=f"shape {shape}", do="run snakemake")
    return arrays


def comparable(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether input and output vectors live in one stream (not in cross-attention), so that Z means something."""
    return bool(arrays.get("comparable", True))


def head_columns(layer: Layer, arrays: Mapping[str, NDArray[Any]], pairs: HeadPairs) -> Columns:
    """Columns of heads.csv for one layer of one matrix, baselines apart: name -> (H,)."""
    H = len(arrays["sigma"])
    columns: Columns = {
        "layer": np.full(H, layer.layer),
        "head": np.arange(H),
        "matrix": np.full(H, layer.matrix),
        "rank": np.asarray(arrays["rank"], dtype=np.int64),
    }
    asked = [*FIRST[1:], *(name for name in REGISTRY if name not in FIRST)]
    exists = REGISTRY if comparable(arrays) else SPECTRAL_NAMES
    columns |= {name: REGISTRY[name].compute(pairs) if name in exists else np.full(H, np.nan) for name in asked}
    there = pairs.mask & np.isfinite(arrays["gap"])
    columns["gap_min"] = np.where(there.any(axis=-1), np.where(there, arrays["gap"], np.inf).min(axis=-1), np.nan)
    blocks = block_summary(pairs, labels_of(arrays, pairs))
    if not comparable(arrays):
        blocks |= {name: np.full(H, np.nan) for name in BLOCK_MEANS}
    columns |= blocks | {"factor_condition": np.where(np.isfinite(arrays["condition"]), arrays["condition"], np.nan)}
    columns |= {name.removeprefix(FACTOR_PREFIX): arrays[name] for name in _starting(arrays, FACTOR_PREFIX, H)}
    return columns | {name: arrays[name] for name in _starting(arrays, PRECISION_PREFIX, H)}


def _starting(arrays: Mapping[str, NDArray[Any]], prefix: str, H: int) -> list[str]:
    """Names of the per-head scalars with a prefix, sorted."""
    return sorted(name for name, array in arrays.items() if name.startswith(prefix) and array.shape == (H,))


def labels_of(arrays: Mapping[str, NDArray[Any]], pairs: HeadPairs) -> NDArray[np.int64]:
    """(H, r) number of the block of near-equal singular values that each pair is in, by the storage's precision."""
    noise = arrays.get(f"{PRECISION_PREFIX}sigma")
    return block_labels(pairs.sigma, pairs.mask, np.zeros(len(pairs.sigma)) if noise is None else noise)


def vector_columns(
    layer: Layer, arrays: Mapping[str, NDArray[Any]], pairs: HeadPairs, d_model: int, extras: Iterable[str] = ()
) -> Columns:
    """Columns of vectors.parquet for one layer of one matrix: name -> (pairs,); pairs beyond the rank are left out.

    Args:
        extras: further arrays (H, r) of decomposition files to take over; NaN where this file has none.
    """
    H, r = pairs.sigma.shape
    labels = labels_of(arrays, pairs)
    blocks = block_quantities(pairs.Z, labels)
    geometric: Columns = {
        "overlap": pairs.overlap,
        "self": np.abs(pairs.overlap),
        "rotation": np.sqrt(pairs.rotation2),
        "ortho": np.sqrt(pairs.ortho2),
        "overlap_p": overlap_p(pairs.overlap, d_model),
        "input_rotation": np.sqrt(pairs.input_rotation2),
        "input_ortho": np.sqrt(pairs.input_ortho2),
        "block_overlap": blocks["block_overlap"],
        "block_captured": blocks["block_captured"],
    }
    if not comparable(arrays):
        geometric = {name: np.full((H, r), np.nan) for name in geometric}
    grid: Columns = {
        "layer": np.full((H, r), layer.layer),
        "head": np.broadcast_to(np.arange(H)[:, None], (H, r)),
        "index": np.broadcast_to(np.arange(r), (H, r)),
        "sigma": pairs.sigma,
        **geometric,
        "gap": np.where(np.isfinite(arrays["gap"]), arrays["gap"], np.nan),
        "block": labels,
        "block_size": blocks["block_size"],
        **{name.removeprefix(PAIR_PREFIX): arrays.get(name, np.full((H, r), np.nan)) for name in extras},
    }
    return {name: np.ascontiguousarray(values[pairs.mask]) for name, values in grid.items()}


def pair_arrays(layers: Iterable[Layer]) -> list[str]:
    """Names of the arrays per pair that any decomposition file has beside the ones all have, sorted.

    Raises:
        ResultError: a file is not a .npz.
    """
    names: set[str] = set()
    for layer in layers:
        try:
            with zipfile.ZipFile(layer.path) as archive:
                names |= {entry.removesuffix(".npy") for entry in archive.namelist()}
        except (OSError, zipfile.BadZipFile) as error:
            what = f"a results file cannot be read as arrays ({error})"
            raise ResultError(what, where=str(layer.path), do=f"delete {layer.path} and run snakemake") from None
    return sorted(name for name in names if name.startswith((PAIR_PREFIX, BIAS_PREFIX)))


def write_tables(
    geometry: Geometry,
    matrices: Sequence[str],
    kinds: Sequence[str],
    decompositions: Iterable[Path],
    baselines: Iterable[Path],
    *,
    heads_csv: Path,
    vectors: Path,
) -> dict[str, Any]:
    """Read every decomposition and baseline of one model under one treatment, and write both tables.

    Args:
        geometry: the model's geometry.
        matrices: its matrices, in the order of the rows.
        kinds: baseline kinds, in the order of the columns.
        decompositions: `.../{matrix}/layer-LL.npz`, one for each matrix and layer.
        baselines: `haar.npz` if a Haar kind is asked for, and `.../{kind}/layer-LL.npz` of the literal kinds.
        heads_csv, vectors: where the tables go.

    Returns:
        Facts for the record: rows, columns, and per matrix and kind what its draws allow to conclude.

    Raises:
        ResultError: a file is missing, malformed or superfluous.
    """
    baselines = list(baselines)
    haar = [path for path in baselines if path.name == "haar.npz"]
    literal = [path for path in baselines if path.name != "haar.npz"]
    if set(kinds) & set(HAAR_KINDS) and len(haar) != 1:
        raise ResultError(f"{len(haar)} Haar pools are given", expected="one haar.npz", do="run snakemake baselines")
    parts, facts = [], {}
    by_layer = layers_of(decompositions, matrices, geometry.layers)
    extras = pair_arrays(by_layer)
    with atomic_path(vectors) as temporary, VectorsFile(temporary) as file:
        for matrix in matrices:
            own, sigma, scale = [], [], []
            for layer in (layer for layer in by_layer if layer.matrix == matrix):
                arrays = read_decomposition(layer, geometry.n_heads)
                pairs = HeadPairs(arrays["sigma"], arrays["Z"], arrays["eigenvalues"], arrays["rank"])
                own.append(head_columns(layer, arrays, pairs))
                file.write(matrix, vector_columns(layer, arrays, pairs, geometry.d_model, extras))
                sigma.append(pairs.sigma)
                scale.append(arrays["input_norm"] * arrays["output_norm"])
            heads = Heads(joined(own), np.concatenate(sigma), np.concatenate(scale))
            pool = read_pool(haar[0], geometry.rank_of(matrix)) if haar else {}
            nulls, facts[matrix] = null_columns(kinds, heads, pool, read_literal(literal, matrix, geometry.layers))
            parts.append(heads.columns | nulls)
    columns = joined(parts)
    write_csv(heads_csv, columns)
    return {"rows": len(columns["layer"]), "columns": len(columns), "baselines": facts}


WHOLE = ("layer", "head", "index", "block", "block_size")
"""Columns of vectors.parquet that are int32; `matrix` is a string, the rest float64."""


class VectorsFile:
    """vectors.parquet, written one layer of one matrix (a row group) at a time; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> "VectorsFile":
        return self

    def write(self, matrix: str, columns: Columns) -> None:
        """Append one row group. The first one sets the file's columns: all row groups have the same.

        Raises:
            ResultError: the columns differ from the first row group's.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            fields = [pa.field(name, pa.int32() if name in WHOLE else pa.float64()) for name in columns]
            fields.insert(2, pa.field("matrix", pa.string()))
            # no pandas or Arrow metadata: the bytes depend on the numbers and on the library's version alone
            self._writer = pq.ParquetWriter(
                self._path,
                pa.schema(fields),
                version="2.6",
                compression="zstd",
                use_dictionary=["matrix", *WHOLE],
                store_schema=False,
            )
        schema = self._writer.schema
        rows = len(columns["layer"])
        cells = {name: _arrow(values, name in WHOLE) for name, values in columns.items()}
        text = matrix.encode()
        ends = np.arange(rows + 1, dtype=np.int32) * len(text)
        cells["matrix"] = pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(text * rows))
        table = pa.Table.from_arrays([cells[field.name] for field in schema], schema=schema)
        self._writer.write_table(table, row_group_size=max(rows, 1))

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _arrow(values: NDArray[Any], whole: bool) -> Any:
    """A numpy array as Arrow's, by its memory: `pyarrow.array` would load pandas, which takes longer than a table."""
    import pyarrow as pa

    plain = np.ascontiguousarray(values, dtype=np.int32 if whole else np.float64)
    return pa.Array.from_buffers(pa.int32() if whole else pa.float64(), len(plain), [None, pa.py_buffer(plain)])


def write_csv(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns of equal length as CSV, whole or not at all."""
    cells = [_cells(values) for values in columns.values()]
    lines = [",".join(columns), *map(",".join, zip(*cells, strict=True))]
    with atomic_path(path) as temporary:
        temporary.write_bytes(("\n".join(lines) + "\n").encode())


def _cells(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "f":
        # repr of a Python float is the shortest text that reads back as the same number
        return ["" if math.isnan(value) else repr(value) for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def joined(parts: Sequence[Columns]) -> Columns:
    """Columns of several layers, one below the other; NaN where a layer has no such column."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    lengths = [len(part["layer"]) for part in parts]
    empty = [np.full(length, np.nan) for length in lengths]
    return {
        name: np.concatenate([part.get(name, gap) for part, gap in zip(parts, empty, strict=True)]) for name in names
    }
