"""The Haar null: what self, rotation and ortho are when the two subspaces have nothing to do with each other.

Two independent random r-frames U and V in R^d (iid Gaussian factors have just these) give `Z = V^T U`, an r x r block
of a Haar orthogonal d x d matrix. Per output vector (self^2, rotation^2, ortho^2) ~ Dirichlet(1/2, (r-1)/2, (d-r)/2),
from which the means follow in closed form. Draws need no d x r matrix: the QR of a Gaussian one has a triangle of known
law (Bartlett's decomposition), and its part outside r fixed directions enters only through its own triangle.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import NumericError
from headmaps.linalg import inverse_upper
from headmaps.quantities import null_names, quantities
from headmaps.seeds import generator

Float = NDArray[np.float64]

COSTLY_DRAWS = 512
"""How many of a pool's draws the quantities that need a factorisation of Z (angles, eigenvalues) are evaluated on."""

_BATCH_ELEMENTS = 1 << 19


# --- closed form ------------------------------------------------------------------------------------------------------


def _check(d: int, r: int) -> None:
    if not 1 <= r <= d:
        raise NumericError(f"there are no {r} orthonormal vectors in {d} dimensions", expected="1 <= d_head <= d_model")


def dirichlet_parameters(d: int, r: int) -> tuple[float, float, float]:
    """Parameters of the law of (self^2, rotation^2, ortho^2) of one vector: (1/2, (r-1)/2, (d-r)/2)."""
    _check(d, r)
    return 0.5, (r - 1) / 2, (d - r) / 2


def haar_means(d: int, r: int) -> tuple[float, float, float]:
    """Exact means of (self, rotation, ortho) of one vector, and so of a head's mean over its pairs.

    The square of each is Beta(a, (d/2) - a), whose root has the mean `G(a + 1/2) G(d/2) / (G(a) G((d+1)/2))`.

    Args:
        d: d_model.
        r: d_head, at most d.
    """

    def mean_root(a: float) -> float:
        if a == 0:
            return 0.0
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a) + math.lgamma(d / 2) - math.lgamma((d + 1) / 2))

    own, rotation, ortho = dirichlet_parameters(d, r)
    return mean_root(own), mean_root(rotation), mean_root(ortho)


def haar_energy_shares(d: int, r: int) -> tuple[float, float, float]:
    """Exact means of the energy shares (self, rotation, ortho), whatever the spectrum: 1/d, (r-1)/d, (d-r)/d."""
    _check(d, r)
    return 1 / d, (r - 1) / d, (d - r) / d


# --- draws ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _above_diagonal(rows: int, r: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(rows, 1, r)


def trapezoids(generators: Iterable[np.random.Generator], n: int, r: int) -> Float:
    """Triangular factors of n x r standard Gaussian matrices: `T^T T` has the law of `G^T G`.

    Args:
        generators: one per draw.
        n: rows of the Gaussian matrix.
        r: its columns.

    Returns:
        (N, min(n, r), r): `T_ii = sqrt(chi2_{n-i})`, `T_ij ~ N(0, 1)` above, 0 below (Bartlett 1933).
    """
    rows = min(n, r)
    above = _above_diagonal(rows, r)
    shape = (n - np.arange(rows)) / 2.0
    drawn = [(g.standard_gamma(shape), g.standard_normal(len(above[0]))) for g in generators]
    T = np.zeros((len(drawn), rows, r))
    if rows and drawn:
        T[:, np.arange(rows), np.arange(rows)] = np.sqrt(2.0 * np.stack([diagonal for diagonal, _ in drawn]))
        T[:, above[0], above[1]] = np.stack([upper for _, upper in drawn])
    return T


def haar_blocks(generators: Iterable[np.random.Generator], d: int, r: int) -> Float:
    """r x r corners of Haar orthogonal d x d matrices, by numbers of which none grows with d.

    The first r columns of a Haar matrix are `G R^-1` with G (d, r) Gaussian and `R = chol(G^T G)`. Their first r rows
    need only the first r rows of G, and of the others the triangle `T(d - r)`.

    Args:
        generators: one per draw.
        d: d_model.
        r: d_head, at most d.

    Returns:
        (N, r, r) draws of Z.
    """
    _check(d, r)
    generators = list(generators)
    G = np.stack([g.standard_normal((r, r)) for g in generators]) if generators else np.empty((0, r, r))
    T = trapezoids(generators, d - r, r)
    if d < 2 * r:
        # a nearly square Gaussian matrix is ill-conditioned: QR, with the signs that make R's diagonal positive
        Q, R = np.linalg.qr(np.concatenate([G, T], axis=1))
        signs = np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
        return np.ascontiguousarray(Q[:, :r] * signs[:, None, :])
    L = np.linalg.cholesky(G.mT @ G + T.mT @ T)
    return np.asarray(G @ inverse_upper(L.mT))


def gaussian_sigmas(generators: Iterable[np.random.Generator], d: int, r: int) -> Float:
    """Singular values of `A @ B` for iid Gaussian factors, each scaled to Frobenius norm 1; independent of their Z.

    Args:
        generators: one per draw.
        d: d_model.
        r: d_head, at most d.

    Returns:
        (N, r), descending.
    """
    _check(d, r)
    generators = list(generators)
    A, B = trapezoids(generators, d, r), trapezoids(generators, d, r)
    scale = np.linalg.norm(A, axis=(1, 2)) * np.linalg.norm(B, axis=(1, 2))
    return np.asarray(np.linalg.svd(A @ B.mT, compute_uv=False) / scale[:, None])


def pool_blocks(d: int, r: int, draws: int, seed: object) -> Iterator[tuple[int, list[np.random.Generator], Float]]:
    """The Z blocks of a pool, in batches that stay small.

    Yields:
        (number of the first draw, the draws' generators after drawing Z, (n, r, r) Z).
    """
    batch = max(1, _BATCH_ELEMENTS // (r * r))
    for start in range(0, draws, batch):
        generators = [generator(seed, "haar", d, r, number) for number in range(start, min(start + batch, draws))]
        yield start, generators, haar_blocks(generators, d, r)


def make_pool(d: int, r: int, draws: int, seed: int) -> dict[str, Float]:
    """The pool that all heads of one shape share.

    Args:
        d: d_model.
        r: d_head.
        draws: N, at least 4096 in the workflow.
        seed: base seed.

    Returns:
        `self2`, `rotation2`, `overlap` (N, r): per output vector, from which the spectrum null of any head's energy
        shares follows as one matrix product; and for every registered quantity its values under the gaussian null,
        for factors of Frobenius norm 1: (N,), or (COSTLY_DRAWS,) where a factorisation of Z is needed.
    """
    cheap = null_names("gaussian")
    costly = tuple(name for name in null_names("gaussian", ("products", "svd", "eigenvalues")) if name not in cheap)
    parts: dict[str, list[Float]] = {}
    for start, generators, Z in pool_blocks(d, r, draws, seed):
        sigma = gaussian_sigmas(generators, d, r)
        found = quantities(sigma, Z, names=cheap)
        found["overlap"] = np.diagonal(Z, axis1=-2, axis2=-1)
        found["self2"] = found["overlap"] ** 2
        found["rotation2"] = np.maximum(0.0, (Z**2).sum(axis=-1) - found["self2"])
        if (few := min(len(Z), COSTLY_DRAWS - start)) > 0:
            found |= quantities(sigma[:few], Z[:few], names=costly)
        for name, values in found.items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def pool_arrays(d: int, ranks: Iterable[int], draws: int, seed: int) -> dict[str, NDArray[Any]]:
    """Contents of `haar.npz`: the pools of a model's ranks, arrays named `{rank}.{quantity}`."""
    pools = {r: make_pool(d, r, draws, seed) for r in sorted(set(ranks))}
    return {f"{r}.{name}": values for r, pool in pools.items() for name, values in pool.items()}
