"""Composition between heads: how much of what an earlier head writes a later head reads.

The writer's value matrix is `W1 = U1 S1 Vh1`. A later head reads it with its value matrix (way V, `W1 W2`), with its
queries (way Q, `W1 W_QK`) or with its keys (way K, `W1 W_QK^T`). The composition score of Elhage et al. 2021 ("A
mathematical framework for transformer circuits") is the Frobenius norm of that product over those of its two parts:

    V: ||S1 (Vh1 U2) S2||,    Q: ||S1 (Vh1 U_qk) S_qk||,    K: ||S1 (Vh1 V_qk) S_qk||,    each over ||S1|| ||S||.

With `M = Vh1 U` (r x r) its square is `sum_ij s1_i^2 M_ij^2 s2_j^2 / (sum s1^2 sum s2^2)`: no d x d matrix is formed,
and the same M gives the overlap without singular values, `||M||^2 / r`.

Null: of two heads that know nothing of each other (M a block of a Haar orthogonal matrix) the square has mean `1/d`
and the variance of `null_sd`. Scores are told apart from it as `square - 1/d` and as z.

Writers and readers are taken under a norm treatment that folds gains: a reader sees the stream through its own gain.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import decompose
from headmaps.geometry import Geometry
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors

Array = NDArray[Any]
Float = NDArray[np.float64]

BLOCK_BYTES = 64 << 20
"""How much memory one block of products M may take."""


@dataclass(frozen=True)
class Way:
    """One way in which a head reads: a side of one of its matrices.

    Attributes:
        name: V, Q or K; of the two QK matrices of latent attention Q_nope, K_nope, Q_rope, K_rope.
        matrix: the matrix it belongs to.
        side: `input` (left singular vectors) or `output` (right singular vectors).
    """

    name: str
    matrix: str
    side: str


@dataclass(frozen=True)
class Writers:
    """What the heads of one layer write: `Vh` and the singular values of their value matrices."""

    vectors: Float
    """(H, r, d), rows v_i; zero beyond the rank."""
    sigma: Float
    """(H, r)."""


@dataclass(frozen=True)
class Readers:
    """What the heads of one layer read in one way; heads that share a key/value head share a basis."""

    basis: Float
    """(G, d, r) orthonormal columns, one for each group of heads."""
    maps: Float | None
    """(H, r, r): head h reads the columns of `basis[h // (H // G)] @ maps[h]`; None where each head has its own."""
    sigma: Float
    """(H, r)."""


def ways_of(geometry: Geometry) -> list[Way]:
    """The ways in which the heads of a model read the stream that earlier heads of its stack write to.

    Keys and values of cross-attention read another stack's stream, to which none of these heads writes.
    """
    crossed = geometry.stack == "cross" or geometry.d_source is not None
    ways = [] if crossed or "value" not in geometry.matrices else [Way("V", "value", "input")]
    for matrix in (name for name in geometry.matrices if name != "value"):
        part = matrix.removeprefix("qk")
        ways.append(Way(f"Q{part}", matrix, "input"))
        if not crossed:
            ways.append(Way(f"K{part}", matrix, "output"))
    return ways


# --- the two sides ------------------------------------------------------------------------------------------------


def writers_of(heads: LayerHeads, geometry: Geometry, treatment: str) -> Writers:
    """The output side of a layer's value matrices under a norm treatment."""
    factors = LayerFactors(heads, geometry, "value", treatment)
    vectors = np.empty((geometry.n_heads, factors.rank, geometry.d_model))
    sigma = np.empty(vectors.shape[:2])
    for head, (A, B, known) in enumerate(factors):
        found = decompose(A, B, known)
        vectors[head], sigma[head] = found.output_vectors(B), found.sigma
    return Writers(vectors, sigma)


def readers_of(heads: LayerHeads, geometry: Geometry, treatment: str) -> dict[str, Readers]:
    """All ways in which a layer's heads read, by name, under a norm treatment; one decomposition a head and matrix."""
    ways = ways_of(geometry)
    found: dict[str, Readers] = {}
    for matrix in dict.fromkeys(way.matrix for way in ways):
        sides = [way for way in ways if way.matrix == matrix]
        collected = {way.name: _Collector(_groups(way, geometry)) for way in sides}
        for A, B, factors in LayerFactors(heads, geometry, matrix, treatment):
            head = decompose(A, B, factors)
            for way in sides:
                factor = A if way.side == "input" else B.T
                read = head.input_vectors(A) if way.side == "input" else head.output_vectors(B).T
                collected[way.name].add(factor, read, head.sigma, geometry.n_heads)
        found |= {name: collector.readers() for name, collector in collected.items()}
    return {way.name: found[way.name] for way in ways}


def _groups(way: Way, geometry: Geometry) -> int:
    """How many different factors the heads of a layer have on a side: queries are each head's own."""
    if way.side == "input" and way.matrix != "value":
        return geometry.n_heads
    return geometry.kv_heads_of(way.matrix)


class _Collector:
    """Gathers the heads of one layer and way; the first head of a group brings the group's basis."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.basis: list[Float] = []
        self.maps: list[Float] = []
        self.sigma: list[Float] = []

    def add(self, factor: Float, read: Float, sigma: Float, n_heads: int) -> None:
        if self.groups == n_heads:
            self.basis.append(read)
        else:
            if len(self.sigma) % (n_heads // self.groups) == 0:
                # orthonormal columns whatever the factor's condition: maps then lose no accuracy
                self.basis.append(np.linalg.qr(factor)[0])
            self.maps.append(self.basis[-1].T @ read)
        self.sigma.append(sigma)

    def readers(self) -> Readers:
        maps = np.stack(self.maps) if self.maps else None
        return Readers(np.stack(self.basis), maps, np.stack(self.sigma))


# --- scores -------------------------------------------------------------------------------------------------------


def compose(writers: Writers, readers: Readers) -> tuple[Float, Float]:
    """Composition of every writer of one layer with every reader of a later one.

    Args:
        writers: H1 heads.
        readers: H2 heads in one way.

    Returns:
        (square, overlap), each (H1, H2): the squared composition score and `||Vh1 U2||^2 / min(rank1, rank2)`, the
        mean squared cosine of the principal angles. Both lie in [0, 1]; NaN where a head is zero.
    """
    square = np.empty((len(writers.sigma), len(readers.sigma)))
    overlap = np.empty_like(square)
    energy1, energy2 = writers.sigma**2, readers.sigma**2
    for head, M2 in _products(writers, readers):
        square[:, head] = np.einsum("wi,wi->w", energy1, M2 @ energy2[head])
        overlap[:, head] = M2.sum(axis=(1, 2))
    rank1, rank2 = (np.count_nonzero(s, axis=1) for s in (writers.sigma, readers.sigma))
    square = _over(square, np.outer(energy1.sum(axis=1), energy2.sum(axis=1)))
    return square, _over(overlap, np.minimum.outer(rank1, rank2))


def _products(writers: Writers, readers: Readers) -> Iterator[tuple[int, Float]]:
    """For each reader: its number and `M^2` elementwise, (H1, r, r), M = Vh1 U2; a few groups a product."""
    n_writers, r, d = writers.vectors.shape
    groups, _, width = readers.basis.shape
    each = len(readers.sigma) // groups
    rows = writers.vectors.reshape(n_writers * r, d)
    at_once = max(1, BLOCK_BYTES // (8 * n_writers * r * width))
    for start in range(0, groups, at_once):
        block = readers.basis[start : start + at_once]
        columns = np.ascontiguousarray(block.transpose(1, 0, 2)).reshape(d, -1)
        products = (rows @ columns).reshape(n_writers, r, len(block), width)
        for index in range(len(block)):
            for head in range((start + index) * each, (start + index + 1) * each):
                M = products[:, :, index]
                yield head, (M if readers.maps is None else M @ readers.maps[head]) ** 2


def _over(numerator: Any, denominator: Any) -> Float:
    top, bottom = np.broadcast_arrays(numerator, denominator)
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0))


def participation(sigma: Array) -> Float:
    """Participation ratio `(sum s^2)^2 / sum s^4` of singular values (..., r): how many of them carry the energy."""
    energy = np.asarray(sigma, dtype=np.float64) ** 2
    return _over(energy.sum(axis=-1) ** 2, (energy**2).sum(axis=-1))


def null_sd(participation1: Any, participation2: Any, d: int) -> Float:
    """Standard deviation of the squared composition score of two heads that know nothing of each other.

    M is an r x r block of a Haar orthogonal d x d matrix, whose fourth moments are known (Collins and Sniady 2006):
    `E M_ij^4 = 3 / (d (d+2))`, `E M_ij^2 M_ik^2 = 1 / (d (d+2))`, `E M_ij^2 M_kl^2 = (d+1) / (d (d-1) (d+2))`. Hence
    `var = 2 (d/pr1 - 1) (d/pr2 - 1) / (d^2 (d-1) (d+2))`, about `2 / (pr1 pr2 d^2)` where pr is well below d.

    Args:
        participation1: participation ratios of the writers.
        participation2: of the readers; the two are broadcast.
        d: d_model.
    """
    product = np.maximum(0.0, d / np.asarray(participation1) - 1) * np.maximum(0.0, d / np.asarray(participation2) - 1)
    return np.sqrt(2 * product / (d**2 * (d - 1) * (d + 2.0)))


def z_of(square: Any, participation1: Any, participation2: Any, d: int) -> Float:
    """`(square - 1/d) / sd` of the squared composition score against the null; arguments broadcast.

    For the overlap pass `overlap min(rank1, rank2) / (rank1 rank2)` and the two ranks as participations: all singular
    values alike.
    """
    sd = null_sd(participation1, participation2, d)
    return _over(np.asarray(square, dtype=np.float64) - 1.0 / d, sd)


# --- a layer's file, and the table of all -------------------------------------------------------------------------


def layer_composition(
    readers: Mapping[str, Readers], writers: Iterable[tuple[int, Writers]], n_heads: int
) -> dict[str, Array]:
    """One reading layer against every earlier layer, as stored in `composition/layer-LL.npz`.

    Args:
        readers: `readers_of` the layer.
        writers: (layer, `writers_of` it) of each earlier layer, one at a time.
        n_heads: H.

    Returns:
        `writer_layers` (n,), `writer_rank` and `writer_participation` (n, H); for each way W `square_W` and `overlap_W`
        (n, H writers, H readers), `rank_W` and `participation_W` (H,).
    """
    layers: list[int] = []
    spectra: list[Float] = []
    found: dict[str, list[tuple[Float, Float]]] = {way: [] for way in readers}
    for layer, written in writers:
        layers.append(layer)
        spectra.append(written.sigma)
        for way, read in readers.items():
            found[way].append(compose(written, read))
    none = np.empty((0, n_heads, n_heads))
    arrays: dict[str, Array] = {
        "writer_layers": np.array(layers, dtype=np.int64),
        "writer_rank": np.array([np.count_nonzero(s, axis=1) for s in spectra], dtype=np.int64).reshape(-1, n_heads),
        "writer_participation": np.array([participation(s) for s in spectra]).reshape(-1, n_heads),
    }
    for way, read in readers.items():
        arrays[f"square_{way}"] = np.stack([square for square, _ in found[way]]) if layers else none
        arrays[f"overlap_{way}"] = np.stack([overlap for _, overlap in found[way]]) if layers else none
        arrays[f"rank_{way}"] = np.count_nonzero(read.sigma, axis=1).astype(np.int64)
        arrays[f"participation_{way}"] = participation(read.sigma)
    return arrays


COLUMNS = (
    "way", "writer_layer", "writer_head", "reader_layer", "reader_head", "composition", "square", "square_null",
    "square_excess", "z", "overlap", "overlap_null", "overlap_z",
)  # fmt: skip
"""Columns of composition.csv: `composition` is the root of `square`, `square_excess` is `square - square_null`."""


def strongest(layers: Iterable[tuple[int, Mapping[str, Array]]], d: int, way: str, count: int) -> list[dict[str, Any]]:
    """The pairs of heads that compose most in one way, by `square - 1/d`; one layer's arrays are held at a time.

    Args:
        layers: (reading layer, its arrays as of `layer_composition`).
        d: d_model.
        way: V, Q, K ...
        count: how many pairs.

    Returns:
        Rows with the keys `COLUMNS`, strongest first; equal ones in the order of their heads.
    """
    rows: list[dict[str, Any]] = []
    for layer, arrays in layers:
        square = arrays[f"square_{way}"]
        order = np.argsort(-np.nan_to_num(square, nan=-1.0), axis=None, kind="stable")[:count]
        places = [tuple(int(i) for i in np.unravel_index(flat, square.shape)) for flat in order]
        rows += [_row(layer, arrays, d, way, place) for place in places if np.isfinite(square[place])]
        rows = sorted(rows, key=lambda row: -row["square"])[:count]
    return rows


def _row(layer: int, arrays: Mapping[str, Array], d: int, way: str, place: tuple[int, ...]) -> dict[str, Any]:
    index, writer, reader = place
    square, overlap = float(arrays[f"square_{way}"][place]), float(arrays[f"overlap_{way}"][place])
    pr1, pr2 = arrays["writer_participation"][index, writer], arrays[f"participation_{way}"][reader]
    rank1, rank2 = int(arrays["writer_rank"][index, writer]), int(arrays[f"rank_{way}"][reader])
    spread = min(rank1, rank2) / (rank1 * rank2)
    values = (
        way, int(arrays["writer_layers"][index]), writer, layer, reader, square**0.5, square, 1 / d, square - 1 / d,
        float(z_of(square, pr1, pr2, d)), overlap, max(rank1, rank2) / d,
        float(z_of(overlap * spread, rank1, rank2, d)),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
