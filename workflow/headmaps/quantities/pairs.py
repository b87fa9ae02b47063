"""What per-head quantities share: a batch of heads as sigma and Z, each derived piece computed once, on first use."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]


def ratio(numerator: Any, denominator: Any) -> Float:
    """`numerator / denominator` elementwise; NaN where the denominator is 0 (a head without values)."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom != 0))


class HeadPairs:
    """Heads `W = U diag(sigma) Vh` in the form the quantities need: sigma and `Z = Vh @ U`, over any leading axes.

    Only the pairs of a head's numerical rank count: beyond it singular vectors are arbitrary, so rows and columns of Z
    are dropped there. An all-zero head has no pairs, and NaN for every quantity that divides by their number or energy.

    Args:
        sigma: (..., r) singular values, descending.
        Z: (..., r, r), `Z[i, j] = v_i . u_j`; rows are output vectors.
        eigenvalues: (..., r) complex eigenvalues of W, if known; else computed from `diag(sigma) Z` when asked for.
        rank: (...) number of pairs that count; by default those with `sigma_i > r eps sigma_1`, the rule for an
            r x r core (decompositions record the rank by the wider rule `d eps sigma_1`).
    """

    def __init__(self, sigma: Array, Z: Array, eigenvalues: Array | None = None, rank: Array | None = None) -> None:
        self.sigma: Float = np.asarray(sigma, dtype=np.float64)
        self.Z: Float = np.asarray(Z, dtype=np.float64)
        r = self.sigma.shape[-1]
        if self.Z.shape != (*self.sigma.shape, r):
            raise ValueError(f"Z has shape {self.Z.shape}; sigma {self.sigma.shape} needs {(*self.sigma.shape, r)}")
        self._eigenvalues = eigenvalues
        if rank is None:
            self.mask = self.sigma > r * np.finfo(np.float64).eps * self.sigma[..., :1]
        else:
            self.mask = np.arange(r) < np.asarray(rank)[..., None]
        if not self.mask.all():
            self.sigma = np.where(self.mask, self.sigma, 0.0)
            self.Z = np.where(self.mask[..., :, None] & self.mask[..., None, :], self.Z, 0.0)

    @cached_property
    def rank(self) -> Float:
        """(...) number of pairs that count."""
        return np.asarray(self.mask.sum(axis=-1), dtype=np.float64)

    def mean(self, values: Array) -> Float:
        """(..., r) -> (...): plain mean over the pairs that count."""
        return ratio(np.where(self.mask, values, 0.0).sum(axis=-1), self.rank)

    def energy_share(self, squares: Array) -> Float:
        """(..., r) squared parts -> (...): `sum sigma_i^2 squares_i / sum sigma_i^2`."""
        return ratio((self.energy * squares).sum(axis=-1), self.total)

    @cached_property
    def energy(self) -> Float:
        """(..., r) `sigma_i^2`."""
        return self.sigma**2

    @cached_property
    def total(self) -> Float:
        """(...) `sum sigma_i^2 = ||W||_F^2`."""
        return np.asarray(self.energy.sum(axis=-1))

    @cached_property
    def overlap(self) -> Float:
        """(..., r) `Z_ii = v_i . u_i`, signed."""
        return np.diagonal(self.Z, axis1=-2, axis2=-1)

    @cached_property
    def self2(self) -> Float:
        """(..., r) squared self: `Z_ii^2`."""
        return self.overlap**2

    @cached_property
    def _off_diagonal(self) -> Float:
        # zeroed, not subtracted later: a rotation of 1e-12 would drown in the rounding of 1 - self^2
        squares = self.Z**2
        squares[..., np.arange(squares.shape[-1]), np.arange(squares.shape[-1])] = 0.0
        return squares

    @cached_property
    def rotation2(self) -> Float:
        """(..., r) squared rotation of the output vectors: `sum_{j != i} Z_ij^2`."""
        return np.asarray(self._off_diagonal.sum(axis=-1))

    @cached_property
    def input_rotation2(self) -> Float:
        """(..., r) squared rotation of the input vectors: `sum_{i != j} Z_ij^2`, by column."""
        return np.asarray(self._off_diagonal.sum(axis=-2))

    def remainder(self, rotation2: Array) -> Float:
        """(..., r) what self and rotation leave of a unit vector's square: `1 - self^2 - rotation^2`, never below 0."""
        return np.asarray(np.maximum(0.0, 1.0 - self.self2 - rotation2))

    @cached_property
    def ortho2(self) -> Float:
        """(..., r) squared ortho of the output vectors, `||v_i - U U^T v_i||^2`."""
        return self.remainder(self.rotation2)

    @cached_property
    def input_ortho2(self) -> Float:
        """(..., r) squared ortho of the input vectors, `||u_j - V V^T u_j||^2`."""
        return self.remainder(self.input_rotation2)

    @cached_property
    def SZ(self) -> Float:
        """(..., r, r) `diag(sigma) Z`: W in the basis V, and so the matrix with W's nonzero eigenvalues."""
        return np.asarray(self.sigma[..., :, None] * self.Z)

    @cached_property
    def eigenvalues(self) -> NDArray[np.complex128]:
        """(..., r) eigenvalues of W by falling modulus; 0 beyond the rank and within rounding of 0 (no sign)."""
        given = np.linalg.eigvals(self.SZ) if self._eigenvalues is None else np.asarray(self._eigenvalues)
        values = np.take_along_axis(given, np.argsort(-np.abs(given), axis=-1, kind="stable"), axis=-1)
        floor = values.shape[-1] * np.finfo(np.float64).eps * self.sigma[..., :1]
        return np.where(self.mask & (np.abs(values) > floor), values, 0.0).astype(np.complex128)

    @cached_property
    def modulus2(self) -> Float:
        """(..., r) `|lambda_k|^2`."""
        return np.asarray(np.abs(self.eigenvalues) ** 2)

    @cached_property
    def cosines(self) -> Float:
        """(..., r) cosines of the principal angles between the read and the written subspace: svd(Z), descending."""
        return np.asarray(np.minimum(np.linalg.svd(self.Z, compute_uv=False), 1.0))

    def entropy_rank(self, weights: Array) -> Float:
        """(...) `exp(-sum p_i log p_i)` for the shares `p_i = weights_i / sum weights`."""
        share = ratio(weights, weights.sum(axis=-1, keepdims=True))
        logarithm = np.log(share, out=np.zeros_like(share), where=share > 0)
        return np.asarray(np.exp(-(share * logarithm).sum(axis=-1)))

    @cached_property
    def commutator2(self) -> Float:
        """(...) `||W W^T - W^T W||_F^2 = 2 sum sigma_i^4 - 2 sum sigma_i^2 Z_ij^2 sigma_j^2`."""
        crossed = np.einsum("...i,...ij,...j->...", self.energy, self.Z**2, self.energy, optimize=True)
        return np.asarray(np.maximum(0.0, 2.0 * (self.energy**2).sum(axis=-1) - 2.0 * crossed))
