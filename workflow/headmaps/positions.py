"""The QK matrix at a distance: rotary position embeddings and query/key norms applied to W_Q and W_K.

A rotary model turns the query at position m by R(m) and the key at position n by R(n), so that the score is
`x_m W_Q R(m) R(n)^T W_K^T x_n^T`: it depends on the distance D = m - n >= 0 (current minus attended position) alone,
through the matrix `W_Q R(D) W_K^T` (Su et al. 2021, arXiv:2104.09864). R(D) acts on row vectors; on each pair of
dimensions it is [[c, s], [-s, c]], c = cos(D f), s = sin(D f), with the pair's own frequency f.

An attention factor a multiplies cos and sin of queries and of keys, so that R(D) carries a^2 on the rotated dimensions.
Unless a differs from 1, R(D) is orthogonal and so unchanged by D are: the subspace that is read and the one that is
written, hence the root mean square of ortho, and for full rank the product of the singular values. The Frobenius norm,
the single singular values and vectors, self and rotation do change.

Query/key norms stand before the rotation: `W_Q Gamma_q R(D) Gamma_k W_K^T`, with a centring projector before a
LayerNorm's gain. They also divide each query and each key by its own size, which no fixed matrix can do: the score is
then not exactly bilinear, and `position_notes` says so. ALiBi adds a number that depends on the distance alone, learned
positions are added to the embeddings: neither changes a head's matrix.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import Decomposition, decompose, pair_quantities
from headmaps.errors import ArchitectureError, ConfigError, NumericError
from headmaps.geometry import Geometry, Rotary
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors
from headmaps.quantities import quantities

Array = NDArray[Any]
Float = NDArray[np.float64]

QK_MATRICES = ("qk", "qk_nope", "qk_rope")


# --- frequencies --------------------------------------------------------------------------------------------------


def frequencies(rotary: Rotary, sequence_length: int | None = None) -> Float:
    """Angle per position (radians) of each pair of dimensions, scaled as the checkpoint asks.

    Args:
        rotary: base, rotary_dim and scaling.
        sequence_length: tokens in context, for scalings that depend on it (dynamic, longrope).

    Returns:
        (rotary_dim / 2,) float64. Models compute theirs in float32 and so differ by up to 6e-8 of a frequency.

    Raises:
        ConfigError: the scaling depends on a sequence length and none is given.
        ArchitectureError: the scaling is unknown or lacks a parameter, or rotary_dim is odd.
    """
    if rotary.rotary_dim % 2 or rotary.rotary_dim < 2:
        what = f"a rotary embedding of {rotary.rotary_dim} dimensions has no pairs to turn"
        raise ArchitectureError(what, where="geometry.json: position.rotary", expected="a positive even rotary_dim")
    plain = _plain(rotary.base, rotary.rotary_dim)
    if rotary.scaling is None:
        return plain
    kind = str(rotary.scaling.get("type", ""))
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / _number(rotary, "factor")
    if kind == "llama3":
        return _llama3(plain, rotary)
    if kind == "yarn":
        return _yarn(plain, rotary)
    if kind == "dynamic":
        return _dynamic(rotary, sequence_length)
    if kind == "longrope":
        return _longrope(plain, rotary, sequence_length)
    raise ArchitectureError(
        f"the rotary scaling {kind!r} is unknown",
        where="geometry.json: position.rotary.scaling",
        expected="linear, dynamic, llama3, yarn or longrope",
        do="set rope_offsets: [] for this model",
    )


def _plain(base: float, dimension: int) -> Float:
    return np.asarray(np.float64(base) ** (-np.arange(0, dimension, 2) / dimension))


def _llama3(plain: Float, rotary: Rotary) -> Float:
    """Long waves slowed down by `factor`, short ones kept, between them a linear blend (Llama 3.1)."""
    factor, low, high = (_number(rotary, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = _number(rotary, "original_max_position_embeddings") * plain / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / factor


def _yarn(plain: Float, rotary: Rotary) -> Float:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, section 3.2), with the rounding of the ramp that models in use have."""
    scaling, dimension = rotary.scaling or {}, rotary.rotary_dim
    original, factor = _number(rotary, "original_max_position_embeddings"), _number(rotary, "factor")

    def dimension_of(turns: float) -> float:
        return dimension * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rotary.base))

    low, high = dimension_of(scaling.get("beta_fast") or 32), dimension_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimension - 1)
    high += 0.001 if low == high else 0.0
    slowed = np.clip((np.arange(dimension // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray(slowed * plain / factor + (1 - slowed) * plain)


def _dynamic(rotary: Rotary, sequence_length: int | None) -> Float:
    """Dynamic NTK: the base grows with the context beyond the trained length; below it nothing changes."""
    length, dimension = _required(sequence_length, "dynamic"), rotary.rotary_dim
    trained, factor = _number(rotary, "max_position_embeddings"), _number(rotary, "factor")
    growth = factor * max(length, trained) / trained - (factor - 1)
    return _plain(rotary.base * growth ** (dimension / (dimension - 2)), dimension)


def _longrope(plain: Float, rotary: Rotary, sequence_length: int | None) -> Float:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): one list of divisors up to the trained length, another beyond."""
    length = _required(sequence_length, "longrope")
    beyond = length > _number(rotary, "original_max_position_embeddings")
    name = "long_factor" if beyond else "short_factor"
    divisors = np.asarray((rotary.scaling or {}).get(name), dtype=np.float64)
    if divisors.shape != plain.shape:
        raise ArchitectureError(
            f"the rotary scaling has {divisors.size} numbers under {name}",
            where="geometry.json: position.rotary.scaling",
            expected=f"one per pair of dimensions: {plain.size}",
        )
    return plain / divisors


def _number(rotary: Rotary, name: str) -> float:
    value = (rotary.scaling or {}).get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ArchitectureError(
            f"the rotary scaling {(rotary.scaling or {}).get('type')!r} needs {name}, found {value!r}",
            where="geometry.json: position.rotary.scaling",
            expected="a number, from rope_scaling or rope_parameters of the checkpoint's config.json",
        )
    return float(value)


def _required(sequence_length: int | None, kind: str) -> int:
    if sequence_length is None:
        raise ConfigError(
            f"this model's rotary scaling ({kind}) depends on the number of tokens in context",
            where="models: sequence_length",
            expected="sequence_length: 4096, or any other number of tokens",
            do="add it to the model's entry, or set rope_offsets: []",
        )
    return sequence_length


# --- rotation -----------------------------------------------------------------------------------------------------


def rotation(rotary: Rotary, offset: int, dimension: int, sequence_length: int | None = None) -> Float:
    """R(D), for row vectors: `q @ rotation(...)` is the query turned as at position D.

    Args:
        rotary: the layer's rotation.
        offset: D, in positions.
        dimension: r, the head's width; dimensions from rotary_dim on stay as they are.
        sequence_length: see `frequencies`.

    Returns:
        (r, r) float64, a^2 times a rotation on the first rotary_dim dimensions (a = attention factor), identity beyond.

    Raises:
        ArchitectureError: the head is narrower than rotary_dim, or the style is unknown.
    """
    first, second = _pairs(rotary, dimension)
    angle = offset * frequencies(rotary, sequence_length)
    cosine, sine = rotary.attention_factor**2 * np.cos(angle), rotary.attention_factor**2 * np.sin(angle)
    R = np.eye(dimension)
    R[first, first], R[first, second] = cosine, sine
    R[second, first], R[second, second] = -sine, cosine
    return R


def _pairs(rotary: Rotary, dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The two dimensions of each pair."""
    if rotary.rotary_dim > dimension:
        what = f"a head of {dimension} dimensions cannot have {rotary.rotary_dim} of them turned"
        raise ArchitectureError(what, where="geometry.json: position.rotary", expected=f"at most {dimension}")
    half = rotary.rotary_dim // 2
    if rotary.style == "half":
        return np.arange(half), np.arange(half, rotary.rotary_dim)
    if rotary.style == "interleaved":
        return np.arange(0, rotary.rotary_dim, 2), np.arange(1, rotary.rotary_dim, 2)
    what = f"the rotary style {rotary.style!r} is unknown"
    raise ArchitectureError(what, where="geometry.json: position.rotary", expected="half or interleaved")


def rotary_qk(W_Q: Array, offset: int, geometry: Geometry, layer: int) -> Float:
    """`W_Q R(D)`: with W_K^T untouched, the first factor of the QK matrix at distance D.

    Args:
        W_Q: (..., d, r); of a model with latent attention the rotated part alone.
        offset: D = current minus attended position, at least 0.
        geometry: the model.
        layer: its layer, since rotations can differ by layer.

    Returns:
        (..., d, r) float64; unchanged where the layer has no rotary embedding.
    """
    W_Q = np.asarray(W_Q, dtype=np.float64)
    rotary = geometry.rotary_of(layer)
    return W_Q if rotary is None else W_Q @ rotation(rotary, offset, W_Q.shape[-1], geometry.sequence_length)


# --- query/key norms, and both together ---------------------------------------------------------------------------


def factors_at(
    heads: LayerHeads,
    geometry: Geometry,
    layer: int,
    offset: int,
    treatment: str = "raw",
    matrix: str = "qk",
) -> Iterator[tuple[Float, Float]]:
    """The factors of every query head's QK matrix at distance D, with query/key norms and the treatment of layer norms.

    Yields:
        (A (d, r), B (r, d)) in float64: `A B = W_Q Gamma_q R(D) Gamma_k W_K^T`. `qk_nope` has no rotation.

    Raises:
        ArchitectureError: the matrix is not a QK matrix of this model.
    """
    turn = turn_of(geometry, layer, offset, matrix)
    for A, B in normed_factors(heads, geometry, treatment, matrix):
        yield (A if turn is None else A @ turn), B


def turn_of(geometry: Geometry, layer: int, offset: int, matrix: str = "qk") -> Float | None:
    """R(D) (r, r) of a layer's QK matrix, None where nothing is turned; errors as of `factors_at` and `rotation`."""
    if matrix not in QK_MATRICES or matrix not in geometry.matrices:
        what = f"positions do not enter the {matrix!r} matrix of this model"
        raise ArchitectureError(what, expected=", ".join(m for m in geometry.matrices if m in QK_MATRICES))
    rotary = geometry.rotary_of(layer)
    if rotary is None or matrix == "qk_nope":
        return None
    return rotation(rotary, offset, geometry.rank_of(matrix), geometry.sequence_length)


def normed_factors(
    heads: LayerHeads, geometry: Geometry, treatment: str, matrix: str = "qk"
) -> Iterator[tuple[Float, Float]]:
    """`W_Q [P] Gamma_q` (d, r) and `([P] Gamma_k W_K^T)` (r, d) of every query head, without any rotation."""
    factors = LayerFactors(heads, geometry, matrix, treatment)
    if geometry.qk_norm is None or matrix != "qk":
        for A, B, _ in factors:
            yield A, B
        return
    mean_Q, mean_K = _width_means(factors, geometry)
    for head, (A, B, _) in enumerate(factors):
        queries = _normed(A - mean_Q, heads, geometry, "q_norm", head)
        keys = _normed(B.T - mean_K, heads, geometry, "k_norm", geometry.group_of(head))
        yield queries, keys.T


def _normed(W: Float, heads: LayerHeads, geometry: Geometry, name: str, index: int) -> Float:
    """`W [P] Gamma` of one head's W_Q or W_K (d, r): the linear part of its norm, P = I - 11^T/r for a LayerNorm."""
    norm = geometry.qk_norm
    assert norm is not None
    if name not in heads.extras:
        what = f"the layer has no {name}, which the norm on queries and keys needs"
        raise NumericError(what, where="extras.npz", do="recompute the heads of this layer")
    gain = np.asarray(heads.extras[name][index], dtype=np.float64) + (1.0 if norm.plus_one else 0.0)
    if norm.kind == "layer" and norm.span == "head":
        W = W - W.mean(axis=1, keepdims=True)
    return W * gain


def _width_means(factors: LayerFactors, geometry: Geometry) -> tuple[Float | float, Float | float]:
    """What a LayerNorm over all heads' queries (keys) at once subtracts from each column of W_Q (W_K): (d, 1), or 0."""
    norm = geometry.qk_norm
    if norm is None or norm.kind != "layer" or norm.span != "width":
        return 0.0, 0.0
    query = sum(factors.A(i).mean(axis=1, keepdims=True) for i in range(len(factors.inputs))) / len(factors.inputs)
    key = sum(factors.B(j).mean(axis=0)[:, None] for j in range(len(factors.outputs))) / len(factors.outputs)
    return query, key


def position_notes(geometry: Geometry, layer: int, matrix: str = "qk") -> list[str]:
    """What stands between a head's QK matrix at a distance and its attention scores, one sentence each."""
    position, rotary, notes = geometry.position, geometry.rotary_of(layer), []
    if position.scheme == "rotary" and matrix == "qk_nope":
        notes.append("the position-free part of q.k: no rotation")
    elif rotary is not None:
        scaling = (rotary.scaling or {}).get("type", "none")
        turned = f"{rotary.rotary_dim} dimensions in {rotary.style} pairs"
        notes.append(f"rotary embedding: {turned}, base {rotary.base:g}, scaling {scaling}")
        if rotary.attention_factor != 1.0:
            notes.append(f"attention factor {rotary.attention_factor:g}: its square on the rotated dimensions")
    elif position.scheme == "rotary":
        notes.append("no rotary embedding in this layer: the matrix is the same at every distance")
    elif position.scheme == "alibi":
        notes.append("ALiBi adds a number that depends on head and distance alone: the matrix is left alone")
    elif position.scheme == "relative":
        notes.append("a learned bias per distance is added to the score: the matrix is left alone")
    elif position.scheme == "learned":
        notes.append("positions are added to the embeddings: the matrix is left alone")
    else:
        notes.append("no position scheme: the matrix is the same at every distance")
    if geometry.qk_norm is not None and matrix == "qk":
        notes.append(
            f"{geometry.qk_norm.kind} norm on queries and keys: gains folded; the sizes it divides by depend on the "
            "token, so the score is not exactly bilinear"
        )
    if geometry.softcap is not None:
        notes.append(f"scores are soft-capped at {geometry.softcap:g}: not part of the matrix")
    if geometry.sinks:
        notes.append("attention sinks take part of the softmax: not part of the matrix")
    if geometry.clip is not None:
        notes.append(f"queries and keys are clipped at {geometry.clip:g}: not part of the matrix")
    if geometry.gate is not None:
        notes.append("the head's output is gated: not part of the QK matrix")
    return notes


# --- one layer at several distances -------------------------------------------------------------------------------


def decompose_at(
    heads: LayerHeads,
    geometry: Geometry,
    layer: int,
    offsets: Sequence[int],
    treatment: str = "raw",
    matrix: str = "qk",
) -> dict[str, Array]:
    """Decompose every head's QK matrix in a layer at several distances, as stored in `rotary/{matrix}/layer-LL.npz`.

    Args:
        heads: the layer.
        geometry: the model.
        layer: its number.
        offsets: distances D, at least 0 each; n of them.
        treatment: norm treatment.
        matrix: qk, qk_nope or qk_rope.

    Returns:
        `offsets` (n,); `sigma`, `overlap`, `rotation`, `ortho` (n, H, r); `rank` (n, H); and every quantity of the
        registry under its name with the prefix `q_`, (n, H).
    """
    turns = [turn_of(geometry, layer, offset, matrix) for offset in offsets]
    found: list[list[Decomposition]] = [[] for _ in offsets]
    for A, B in normed_factors(heads, geometry, treatment, matrix):
        for place, turn in zip(found, turns, strict=True):
            place.append(decompose(A if turn is None else A @ turn, B))

    def stacked(name: str) -> Array:
        return np.array([[getattr(head, name) for head in place] for place in found])

    sigma, Z, rank = stacked("sigma"), stacked("Z"), stacked("rank")
    overlap, _, rotated, ortho = pair_quantities(Z)
    scalars = quantities(sigma, Z, stacked("eigenvalues"), rank=rank)
    arrays = {"offsets": np.array(offsets, dtype=np.int64), "sigma": sigma, "overlap": overlap, "rotation": rotated}
    return arrays | {"ortho": ortho, "rank": rank} | {f"q_{name}": values for name, values in scalars.items()}
