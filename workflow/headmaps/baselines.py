"""Matched baselines: what sigma and Z of a head would be if some of what it is were left to chance.

`KINDS` is the table: a kind is what it keeps of the head, what it asks, and a function that draws. Adding a kind is
adding an entry. Every draw has its own random stream, keyed by seed, model, layer, head, matrix, kind and number, so
that neither the order of draws nor an interruption changes a result.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import in_bases, numerical_rank, sigma_and_Z
from headmaps.haar import COSTLY_DRAWS, gaussian_sigmas, haar_blocks, pool_blocks
from headmaps.layer_factors import LayerFactors
from headmaps.quantities import FROM_THE_POOL, REGISTRY, null_names, quantities
from headmaps.seeds import generator

if TYPE_CHECKING:
    from headmaps.geometry import Geometry
    from headmaps.heads import LayerHeads

Float = NDArray[np.float64]
Pairs = tuple[Float, Float]
"""sigma (N, r) and Z (N, r, r) of N draws."""

ALL_COSTS = ("products", "svd", "eigenvalues")


@dataclass
class Sampler:
    """The draws of one matrix kind in one layer.

    Attributes:
        layer: the factors, treated.
        key: seed, model and layer number: the head of every random stream's key.
        draws: N, the number of draws asked for.
        shared: draws that several heads share, by number of the reading factor.
    """

    layer: LayerFactors
    key: tuple[object, ...]
    draws: int
    shared: dict[int, Pairs] = field(default_factory=dict)

    def generators(self, kind: str, head: int) -> list[np.random.Generator]:
        """One random stream per draw."""
        return [generator(*self.key, head, self.layer.matrix, kind, number) for number in range(self.draws)]

    def factors(self, head: int) -> tuple[Float, Float]:
        """A (d, r) and B (r, d) of a head."""
        return self.layer.A(self.layer.input_index(head)), self.layer.B(self.layer.output_index(head))

    def pairs(self, kind: str, head: int) -> Pairs:
        """Draw sigma (N, r) and Z (N, r, r) of one kind for one head; N may be smaller for `unpaired`."""
        return KINDS[kind].draw(self, head)

    def unpaired_outputs(self, index: int) -> list[int]:
        """Numbers of the output factors that no head combines with input factor `index`: at most `draws` of them."""
        layer = self.layer
        real = {layer.output_index(head) for head in range(layer.n_heads) if layer.input_index(head) == index}
        choices = [number for number in range(len(layer.outputs)) if number not in real]
        if len(choices) > self.draws:
            chosen = generator(*self.key, index, layer.matrix, "unpaired").permutation(len(choices))[: self.draws]
            choices = [choices[number] for number in sorted(chosen)]
        return choices


def _in_turn(made: list[tuple[Float, Float, Float]], r: int) -> Pairs:
    """sigma and Z of factors in orthonormal bases, all in one LAPACK call."""
    if not made:
        return np.empty((0, r)), np.empty((0, r, r))
    return sigma_and_Z(np.stack([a @ b.T for a, b, _ in made]), np.stack([M for _, _, M in made]))


def draw_gaussian(sampler: Sampler, head: int) -> Pairs:
    """iid normal factors, each scaled to its factor's Frobenius norm; see `headmaps.haar`."""
    A, B = sampler.factors(head)
    streams = sampler.generators("gaussian", head)
    Z = haar_blocks(streams, *A.shape)
    return gaussian_sigmas(streams, *A.shape) * (np.linalg.norm(A) * np.linalg.norm(B)), Z


def draw_spectrum(sampler: Sampler, head: int) -> Pairs:
    """The head's own sigma, with independent Haar U and V."""
    A, B = sampler.factors(head)
    R_A, R_B, _ = in_bases(A, B)
    sigma = np.linalg.svd(R_A @ R_B.T, compute_uv=False)
    return np.tile(sigma, (sampler.draws, 1)), haar_blocks(sampler.generators("spectrum", head), *A.shape)


def draw_shuffle(sampler: Sampler, head: int) -> Pairs:
    """The entries of each factor in random order."""
    A, B = sampler.factors(head)
    entries = [np.ravel(W).copy() for W in (A, B)]
    made = []
    for stream in sampler.generators("shuffle", head):
        drawn_A, drawn_B = (stream.permutation(own).reshape(W.shape) for own, W in zip(entries, (A, B), strict=True))
        made.append(in_bases(drawn_A, drawn_B))
    return _in_turn(made, A.shape[1])


def draw_rows(sampler: Sampler, head: int) -> Pairs:
    """The norm of each d_model row of W_V, W_Q, W_K and of each column of W_O kept, its direction random."""
    A, B = sampler.factors(head)
    norms_A, norms_B = np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=0)
    made = []
    for stream in sampler.generators("rows", head):
        # B is drawn transposed: rows of both are directions of the residual stream
        drawn_A, drawn_B = (_random_rows(stream, norms, A.shape[1]) for norms in (norms_A, norms_B))
        made.append(in_bases(drawn_A, drawn_B.T))
    return _in_turn(made, A.shape[1])


def _random_rows(stream: np.random.Generator, norms: Float, r: int) -> Float:
    """(d, r): rows of the given norms, directions uniform on the sphere."""
    rows = stream.standard_normal((len(norms), r))
    rows *= (norms / np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, None]
    return rows


def draw_internal(sampler: Sampler, head: int) -> Pairs:
    """A Q B with Q Haar in O(r): both subspaces stay as they are, what is paired with what inside them does not."""
    A, B = sampler.factors(head)
    R_A, R_B, M = in_bases(A, B)
    r = A.shape[1]
    Q = haar_blocks(sampler.generators("internal", head), r, r)
    return sigma_and_Z(R_A @ Q @ R_B.T, np.broadcast_to(M, Q.shape))


def draw_unpaired(sampler: Sampler, head: int) -> Pairs:
    """The head's reading factor with the other factors of heads in other key/value groups, each once.

    Value: W_V[g] with W_O[h'], H - H/KV of them. QK: W_Q[h] with W_K[g'], KV - 1. None where KV = 1. Heads that share
    the reading factor share the draws.
    """
    layer, index = sampler.layer, sampler.layer.input_index(head)
    if index not in sampler.shared:
        sampler.shared.clear()  # heads come in order: only the current group's are needed
        choices = sampler.unpaired_outputs(index)
        A = layer.A(index) if choices else np.empty((0, layer.rank))
        sampler.shared[index] = _in_turn([in_bases(A, layer.B(number)) for number in choices], layer.rank)
    return sampler.shared[index]


@dataclass(frozen=True)
class Kind:
    """One kind of baseline.

    Attributes:
        draw: (sampler, head) -> sigma (N, r), Z (N, r, r).
        keeps: what of the head it keeps.
        asks: the question it answers.
        pooled: whether a shared pool of Haar frames serves it (`headmaps.haar.make_pool`).
    """

    draw: Callable[[Sampler, int], Pairs]
    keeps: str
    asks: str
    pooled: bool = False


KINDS: dict[str, Kind] = {
    "gaussian": Kind(draw_gaussian, "shape and norm of both factors", "more than a random initialisation?", True),
    "spectrum": Kind(draw_spectrum, "the singular values", "more than its spectrum gives by chance?", True),
    "shuffle": Kind(draw_shuffle, "the distribution of each factor's entries", "more than heavy tails give?"),
    "rows": Kind(draw_rows, "the norm of every d_model row", "more than a few large residual dimensions give?"),
    "internal": Kind(draw_internal, "both subspaces exactly", "is it the pairing of directions inside the subspaces?"),
    "unpaired": Kind(draw_unpaired, "real factors, of other groups", "is it this pair of factors?"),
}


def baseline_layer(
    heads: "LayerHeads",
    geometry: "Geometry",
    *,
    kind: str,
    draws: int,
    key: tuple[object, ...],
    matrices: list[str],
    treatment: str = "raw",
) -> dict[str, Float]:
    """Draw one kind for every head of a layer and evaluate the quantities it asks something of.

    Args:
        heads: the layer.
        geometry: the model's geometry.
        kind: a name in `KINDS`.
        draws: N per head; `unpaired` has at most as many as there are other factors.
        key: what the random streams depend on besides head, matrix, kind and number: seed, model, layer.
        matrices: which matrices.
        treatment: norm treatment, folded before drawing.

    Returns:
        `{matrix}.{quantity}` (H, N); N = 0 where nothing can be drawn (KV = 1) or Z means nothing (cross-attention).
        Of `spectrum` only what the Haar pool does not serve; its quantities without eigenvalues have `COSTLY_DRAWS`.
    """
    names = null_names(kind, ALL_COSTS)
    arrays: dict[str, Float] = {}
    for matrix in matrices:
        layer = LayerFactors(heads, geometry, matrix, treatment)
        if kind == "spectrum":
            arrays |= {f"{matrix}.{name}": found for name, found in spectrum_layer(layer, draws, key[0]).items()}
            continue
        sampler = Sampler(layer, key, draws)
        rows: list[dict[str, Float]] = []
        for head in range(layer.n_heads):
            sigma, Z = sampler.pairs(kind, head) if layer.comparable else _in_turn([], layer.rank)
            rows.append(quantities(sigma, Z, names=names) if len(sigma) else dict.fromkeys(names, np.empty(0)))
        arrays |= {f"{matrix}.{name}": np.stack([row[name] for row in rows]) for name in names}
    return arrays


def spectrum_layer(layer: LayerFactors, draws: int, seed: object) -> dict[str, Float]:
    """The spectrum null of what needs whole draws of Z: tr W^2, the commutator and eigenvalues.

    Z is the Haar pool's (`headmaps.haar.pool_blocks`), the same for all heads of a shape; sigma is each head's own.

    Args:
        layer: the factors, treated.
        draws: how many draws eigenvalues are evaluated on; the others are on `COSTLY_DRAWS`.
        seed: of the pool.

    Returns:
        quantity -> (H, N); NaN for a head of less than full rank, whose vectors live in fewer pairs than the draws'.
    """
    own = [name for name in null_names("spectrum", ALL_COSTS) if name not in FROM_THE_POOL]
    eigen = [name for name in own if REGISTRY[name].cost == "eigenvalues"]
    if not layer.comparable:
        return {name: np.empty((layer.n_heads, 0)) for name in own}
    d, r = layer.d_model, layer.rank
    Z = np.concatenate([Z for _, _, Z in pool_blocks(d, r, max(draws, COSTLY_DRAWS), seed)])
    parts = ((eigen, Z[:draws]), ([name for name in own if name not in eigen], Z[:COSTLY_DRAWS]))
    found = {name: np.full((layer.n_heads, len(some)), np.nan) for names, some in parts for name in names}
    for head, (A, B, factors) in enumerate(layer):
        R_A, R_B, _ = in_bases(A, B, factors)
        sigma = np.linalg.svd(R_A @ R_B.T, compute_uv=False)
        if numerical_rank(sigma, d, float(np.linalg.norm(R_A) * np.linalg.norm(R_B))) < r:
            continue
        for names, some in parts:
            values = quantities(np.broadcast_to(sigma, (len(some), r)), some, names=names)
            for name in names:
                found[name][head] = values[name]
    return found
