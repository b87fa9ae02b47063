"""One layer's stored tensors -> W_Q, W_K, W_V, W_O of every head, and the factors of a head's two matrices.

Row-vector convention throughout: `q = x @ W_Q[h] + b_Q[h]`, and what head h writes is `a @ W_O[h]`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ArchitectureError, NumericError, ResultError
from headmaps.geometry import Geometry
from headmaps.layouts import LAYOUTS, Rows, Sizes, Split
from headmaps.records import read_arrays, write_array, write_arrays

Array = NDArray[Any]
MATRICES = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True)
class LayerHeads:
    """The heads of one layer.

    Attributes:
        W_Q: (H, d, r). MLA: the last `d_head_rope` columns are the rotated part.
        W_K: (KV, d, r). MLA: KV = H, and the rotated columns are the same for all heads.
        W_V: (KV, d, r_v).
        W_O: (H, r_v, d).
        extras: what the checkpoint has of b_Q (H, r), b_K (KV, r), b_V (KV, r_v), b_O (d), norm_weight (d), norm_bias
            (d), post_norm_weight (d), q_norm (H, r), k_norm (KV, r), sinks (H), W_G (H, d, r) ...
        d_head_rope: rotated columns of W_Q and W_K in MLA, else 0.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array
    extras: dict[str, Array] = field(default_factory=dict)
    d_head_rope: int = 0


@dataclass
class LayerTensors:
    """One layer's tensors by role, read when asked for, one in memory at a time, and checked to be finite.

    Attributes:
        names: role -> the tensor's name in the checkpoint.
        read: the values of a tensor by name, float32 or float64.
        where: the file or model, for messages.
        layer: its number, for messages.
    """

    names: Mapping[str, str]
    read: Callable[[str], Array]
    where: str
    layer: int
    _last: tuple[str, Array] | None = None

    def __getitem__(self, role: str) -> Array:
        """Values of a role's tensor.

        Raises:
            NumericError: one of them is NaN or infinite.
        """
        if self._last is not None and self._last[0] == role:
            return self._last[1]
        self._last = None  # before the next is read, so that two are never held
        values = self.read(self.names[role])
        for start in range(0, len(values), 1024):
            if not np.isfinite(values[start : start + 1024]).all():
                raise NumericError(
                    f"layer {self.layer}: the tensor {self.names[role]} contains NaN or infinity",
                    where=self.where,
                    expected="finite weights",
                    do="fetch the checkpoint again; if it is as published, leave this layer out with `layers`",
                )
        self._last = (role, values)
        return values


def matrices_of(tensors: LayerTensors, geometry: Geometry, transposed: bool) -> Iterator[tuple[str, Array]]:
    """W_Q, W_K, W_V, W_O and, after them, the large extras (W_G; in MLA W_Q_down, W_KV_down), one at a time.

    Args:
        transposed: the projections are stored (in, out).
    """
    if geometry.layout == "mla":
        yield from _mla_matrices(tensors, geometry)
        return
    split = split_of(geometry)
    stored = _Transposed(tensors) if transposed else tensors
    for name, rows in (("W_Q", split.query), ("W_K", split.key), ("W_V", split.value)):
        yield name, _reading(stored, rows)
    yield "W_O", _writing(stored["o"], geometry.n_heads, geometry.d_head_v)
    if split.gate:
        yield "W_G", _reading(stored, split.gate)


def split_of(geometry: Geometry) -> Split:
    """Which rows of the stored tensors are whose."""
    sizes = Sizes(geometry.n_heads, geometry.n_kv_heads, geometry.d_head, geometry.d_head_v)
    return LAYOUTS[geometry.layout](sizes)


class _Transposed:
    """Tensors stored (in, out), seen as (out, in)."""

    def __init__(self, tensors: LayerTensors) -> None:
        self.tensors = tensors

    def __getitem__(self, role: str) -> Array:
        return self.tensors[role].T


def _pick(stored: Array, rows: range | tuple[int, ...]) -> Array:
    """Rows of a stored tensor; a run of rows without a copy."""
    return stored[rows.start : rows.stop] if isinstance(rows, range) else stored[list(rows)]


def _reading(tensors: LayerTensors | _Transposed, heads: list[Rows]) -> Array:
    """(n, d, r): each head's rows, transposed."""
    matrix: Array | None = None
    for h, (role, rows) in enumerate(heads):
        stored = tensors[role]
        if matrix is None:
            matrix = np.empty((len(heads), stored.shape[1], len(rows)), stored.dtype)
        _copy_transposed(_pick(stored, rows), matrix[h])
    assert matrix is not None  # a layout has at least one head
    return matrix


def _writing(stored: Array, n_heads: int, d_head_v: int) -> Array:
    """(H, r_v, d) from the output projection (d, H * r_v)."""
    matrix = np.empty((n_heads, d_head_v, stored.shape[0]), stored.dtype)
    for h in range(n_heads):
        _copy_transposed(stored[:, h * d_head_v : (h + 1) * d_head_v], matrix[h])
    return matrix


_TILE = 64


def _copy_transposed(source: Array, target: Array) -> None:
    """`target[:] = source.T` in tiles that stay in the cache: several times faster for a wide model."""
    rows, columns = source.shape
    for i in range(0, rows, _TILE):
        for j in range(0, columns, _TILE * 16):
            target[j : j + _TILE * 16, i : i + _TILE] = source[i : i + _TILE, j : j + _TILE * 16].T


def _mla_matrices(tensors: LayerTensors, g: Geometry) -> Iterator[tuple[str, Array]]:
    """MLA's matrices as products of its two low-rank maps, the gain of the norm between them folded in.

    q = norm(x @ q_a.T) @ q_b.T and [k_nope, v] = norm(c) @ kv_b.T with [c, k_rope] = x @ kv_a.T (DeepseekV3Attention).
    The norm's division by the root mean square is left out: it is one positive factor per token. Products are taken in
    float64 and rounded to the stored precision.
    """
    rope = g.d_head_rope or 0
    nope = g.d_head - rope
    down_q: Array | None = None
    if "q_a" in tensors.names:
        down_q = tensors["q_a"].T.astype(np.float64)
        query = _products(down_q * tensors["q_a_norm"].astype(np.float64), tensors["q_b"], g.n_heads, g.d_head)
        yield "W_Q", query
        del query
    else:
        yield "W_Q", _reading(tensors, [Rows("q", range(h * g.d_head, (h + 1) * g.d_head)) for h in range(g.n_heads)])
    kv_a = tensors["kv_a"].T.astype(np.float64)
    latent = kv_a.shape[1] - rope
    down = kv_a[:, :latent] * tensors["kv_a_norm"].astype(np.float64)
    up = tensors["kv_b"].reshape(g.n_heads, nope + g.d_head_v, latent)
    keys = np.empty((g.n_heads, g.d_model, g.d_head), up.dtype)
    keys[:, :, :nope] = _products(down, up[:, :nope].reshape(-1, latent), g.n_heads, nope)
    keys[:, :, nope:] = kv_a[:, latent:]
    yield "W_K", keys
    del keys
    yield "W_V", _products(down, up[:, nope:].reshape(-1, latent), g.n_heads, g.d_head_v)
    yield "W_O", _writing(tensors["o"], g.n_heads, g.d_head_v)
    if down_q is not None:
        yield "W_Q_down", down_q.astype(up.dtype)
    yield "W_KV_down", kv_a[:, :latent].astype(up.dtype)


def _products(down: NDArray[np.float64], up: Array, n: int, width: int) -> Array:
    """(n, d, width): `down @ up_h.T` for each head's rows of `up`."""
    matrix = np.empty((n, len(down), width), up.dtype)
    for h in range(n):
        matrix[h] = down @ up[h * width : (h + 1) * width].T.astype(np.float64)
    return matrix


def extras_of(tensors: LayerTensors, geometry: Geometry) -> dict[str, Array]:
    """The small extras: biases by head, norms, q/k norm gains (n, r), sinks and shared tables."""
    extras: dict[str, Array] = {}
    if geometry.layout != "mla":
        split = split_of(geometry)
        biased = {"b_Q": split.query, "b_K": split.key, "b_V": split.value, "b_G": split.gate}
        for name, heads in biased.items():
            if heads and f"{heads[0].role}_bias" in tensors.names:
                rows = [_pick(tensors[f"{role}_bias"], rows) for role, rows in heads]
                extras[name] = np.stack(rows)
    if "o_bias" in tensors.names:
        extras["b_O"] = tensors["o_bias"]
    for side, n in (("q_norm", geometry.n_heads), ("k_norm", geometry.n_kv_heads)):
        for name in (side, f"{side}_bias"):
            if name in tensors.names:
                extras[name] = _per_head(tensors[name], n, geometry)
        if f"{side}.0" in tensors.names:
            extras[side] = np.stack([tensors[f"{side}.{h}"] for h in range(n)])
    for name in tensors.names:
        if name in _AS_STORED:
            extras[name] = tensors[name]
    return extras


_AS_STORED = (
    "norm_weight",
    "norm_bias",
    "post_norm_weight",
    "post_norm_bias",
    "sinks",
    "relative_bias",
    "rope_factors",
)


def _per_head(gain: Array, n: int, geometry: Geometry) -> Array:
    """(n, r) from a gain over the full width (n * r), of each head (n, r), or one for all heads (r)."""
    if geometry.qk_norm is not None and geometry.qk_norm.span == "width":
        return gain.reshape(n, -1)
    return gain if gain.ndim == 2 else np.tile(gain, (n, 1))


def layer_heads(tensors: LayerTensors, geometry: Geometry, transposed: bool = False) -> LayerHeads:
    """All of one layer's heads in memory.

    Raises:
        NumericError: a tensor contains NaN or infinity.
    """
    matrices = dict(matrices_of(tensors, geometry, transposed))
    main = {name: matrices.pop(name) for name in MATRICES}
    return LayerHeads(**main, extras=extras_of(tensors, geometry) | matrices, d_head_rope=geometry.d_head_rope or 0)


def write_layer_heads(directory: Path, tensors: LayerTensors, geometry: Geometry, transposed: bool) -> dict[str, Path]:
    """Write one layer's `W_Q.npy W_K.npy W_V.npy W_O.npy extras.npz`, never holding more than one of them.

    Returns:
        name -> path of what was written.

    Raises:
        NumericError: a tensor contains NaN or infinity.
    """
    extras: dict[str, Array] = {}
    files = {}
    for name, matrix in matrices_of(tensors, geometry, transposed):
        if name in MATRICES:
            files[name] = Path(directory, f"{name}.npy")
            write_array(files[name], matrix)
        else:
            extras[name] = matrix
    files["extras"] = Path(directory, "extras.npz")
    write_arrays(files["extras"], extras | extras_of(tensors, geometry))
    return files


def read_layer_heads(directory: Path, geometry: Geometry) -> LayerHeads:
    """Read what `write_layer_heads` wrote. The four matrices are memory-mapped: a head is read when it is used.

    Raises:
        ResultError: a file is missing, not an array, or of another shape than the geometry says.
    """
    g = geometry
    expected = {
        "W_Q": (g.n_heads, g.d_model, g.d_head),
        "W_K": (g.n_kv_heads, g.d_source or g.d_model, g.d_head),
        "W_V": (g.n_kv_heads, g.d_source or g.d_model, g.d_head_v),
        "W_O": (g.n_heads, g.d_head_v, g.d_model),
    }
    matrices = {}
    for name, shape in expected.items():
        path = Path(directory, f"{name}.npy")
        try:
            matrices[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ResultError("a file that this step needs is missing", where=str(path), do="run snakemake") from None
        except ValueError as error:
            what = f"a file of the results is not an array ({error})"
            raise ResultError(what, where=str(path), do=f"delete {path} and run snakemake") from None
        if matrices[name].shape != shape:
            raise ResultError(
                f"{name} has shape {matrices[name].shape}",
                where=str(path),
                expected=str(shape),
                do=f"delete {path} and run snakemake",
            )
    return LayerHeads(**matrices, extras=read_arrays(Path(directory, "extras.npz")), d_head_rope=g.d_head_rope or 0)


def factors(heads: LayerHeads, matrix: str) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The factors A (d, r) and B (r, d) of each query head's matrix, float64.

    Args:
        matrix: `value`: W_V[g], W_O[h], with g = h // (H // KV). `qk`: W_Q[h], W_K[g].T.
            MLA: `qk_nope`, `qk_rope`: the columns before and from the rotated part on.

    Raises:
        ArchitectureError: these heads have no such matrix.
    """
    known = ("value", "qk_nope", "qk_rope") if heads.d_head_rope else ("value", "qk")
    if matrix not in known:
        raise ArchitectureError(f"these heads have no {matrix!r} matrix", expected=", ".join(known))
    cut = heads.W_Q.shape[2] - heads.d_head_rope
    columns = {"qk_nope": slice(cut), "qk_rope": slice(cut, None)}.get(matrix, slice(None))
    group = len(heads.W_Q) // len(heads.W_K)
    for h in range(len(heads.W_Q)):
        g = h // group
        A, B = (heads.W_V[g], heads.W_O[h]) if matrix == "value" else (heads.W_Q[h], heads.W_K[g].T)
        if matrix != "value":
            A, B = A[:, columns], B[columns]
        yield np.array(A, dtype=np.float64), np.array(B, dtype=np.float64)
