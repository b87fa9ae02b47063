"""Factorisations of tall factors: their r x r parts, from which everything about `A @ B` follows without a d x d array.

numpy alone, on purpose: importing scipy.linalg takes longer than decomposing a layer of a small model, loads a second
BLAS, and its triangular solves gain nothing over the blockwise inverse below.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)

GRAM_CONDITION = 1e3
"""Largest condition number for the Gram method: its error grows as the square (Z is right to 1e-11 here)."""

_BLOCK = 16


@dataclass(frozen=True)
class Factor:
    """A tall matrix `M = Q R` (d, r), by its small part.

    Attributes:
        R: (r, r) upper triangular, positive diagonal when it comes from the Gram matrix.
        inverse: (r, r) `R^-1`; None where it was not needed or does not exist.
        condition: 1-norm condition number of R, inf if singular.
        norm: Frobenius norm of M.
        Q: (d, r) orthonormal columns; None when R comes from the Gram matrix.
    """

    R: Float
    inverse: Float | None
    condition: float
    norm: float
    Q: Float | None = None

    @property
    def well_conditioned(self) -> bool:
        """Whether the Gram method is accurate for this factor."""
        return self.inverse is not None and self.condition <= GRAM_CONDITION


def inverse_upper(R: Array) -> Float:
    """Inverses of upper triangular matrices, by halves (Golub and Van Loan, section 3.1.8).

    Args:
        R: (k, r, r).

    Raises:
        numpy.linalg.LinAlgError: one of them is exactly singular.
    """
    k, r, _ = R.shape
    if r <= _BLOCK or r % 2:
        return np.linalg.inv(R)
    half = r // 2
    # all diagonal blocks of one size are inverted in one call: at these sizes calls cost more than arithmetic
    halves = inverse_upper(np.concatenate([R[:, :half, :half], R[:, half:, half:]]))
    upper, lower = halves[:k], halves[k:]
    inverse = np.zeros((k, r, r))
    inverse[:, :half, :half] = upper
    inverse[:, half:, half:] = lower
    np.matmul(upper @ R[:, :half, half:], -lower, out=inverse[:, :half, half:])
    return inverse


def condition_upper(R: Array, inverse: Array) -> Float:
    """(k,) 1-norm condition numbers `||R||_1 ||R^-1||_1`: exact, where LAPACK's trcon estimates from below."""
    return np.asarray(np.abs(R).sum(axis=-2).max(axis=-1) * np.abs(inverse).sum(axis=-2).max(axis=-1))


def factor_gram(*matrices: Array) -> list[Factor]:
    """R of each `M = Q R` from the Cholesky factor of `M^T M`: one product, no Q.

    Args:
        matrices: (d, r) float64 each, in any memory order, all of one r.

    Returns:
        One factor per matrix. `inverse` is None and `condition` inf where the Gram matrix is not positive definite in
        float64, `norm` nan or inf where the matrix is not finite or too large to square.
    """
    r = matrices[0].shape[1]
    grams = np.empty((len(matrices), r, r))
    with np.errstate(over="ignore", invalid="ignore"):
        for M, gram in zip(matrices, grams, strict=True):
            np.matmul(M.T, M, out=gram)
        norms = np.sqrt(np.trace(grams, axis1=-2, axis2=-1))
    try:
        R = np.linalg.cholesky(grams).mT
        inverse = inverse_upper(R)
    except np.linalg.LinAlgError:
        if len(matrices) > 1:  # one of several must not spoil the others
            return [factor for M in matrices for factor in factor_gram(M)]
        return [Factor(np.zeros((r, r)), None, np.inf, float(norms[0]))]
    condition = condition_upper(R, inverse)
    return [Factor(R[k], inverse[k], float(condition[k]), float(norms[k])) for k in range(len(matrices))]


def factor_qr(M: Array) -> Factor:
    """`M = Q R` by Householder reflections: accurate for any condition, rank-deficient M included.

    Args:
        M: (d, r) float64. Where d < r, Q is (d, d) and R (d, r).
    """
    Q, R = np.linalg.qr(M)
    condition = np.inf
    if R.shape[0] == R.shape[1]:
        with suppress(np.linalg.LinAlgError):
            condition = float(condition_upper(R[None], inverse_upper(R[None]))[0])
    return Factor(R, None, condition if np.isfinite(condition) else np.inf, float(np.linalg.norm(R)), Q)
