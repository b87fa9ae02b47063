"""The kernel: singular values of a head's matrix `W = A @ B` and how its output vectors lie to its input vectors.

With A (d, r), B (r, d) and `W = U diag(sigma) Vh`, everything asked of it follows from sigma (r,) and `Z = Vh @ U`
(r, r). With `A = Q_A R_A` and `B^T = Q_B R_B`, `u s vh = svd(R_A @ R_B^T)` gives `sigma = s`, `U = Q_A u`,
`Vh = vh Q_B^T`, hence `Z = vh R_B^-T (B A) R_A^-1 u`: no array larger than a factor is ever formed. R comes from the
Gram matrices `A^T A` and `B B^T` (three products in all), or from QR where a factor's condition number is above
`GRAM_CONDITION`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import NumericError
from headmaps.linalg import EPS, Factor, factor_gram, factor_qr

if TYPE_CHECKING:
    from headmaps.geometry import Geometry
    from headmaps.heads import LayerHeads

Array = NDArray[Any]
Float = NDArray[np.float64]

METHODS = ("gram", "qr", "rank_revealing", "zero")
"""How a decomposition was made; `layer-LL.npz` stores the position in this list as `method`."""


@dataclass(frozen=True)
class Decomposition:
    """`W = A @ B = U diag(sigma) Vh` of one head, without U and V.

    Attributes:
        sigma: (r,) singular values, descending; exactly 0 beyond the rank.
        Z: (r, r) `Z[i, j] = v_i . u_j`, rows are output vectors; rows and columns beyond the rank are 0.
        eigenvalues: (r,) complex eigenvalues of W by falling modulus, 0 beyond the rank (W has d - r further zeros).
        gap: (r,) distance to the nearest other sigma over sigma; see `gaps`.
        rank: number of pairs with `sigma_i > d eps sigma_1`.
        condition: the larger of the factors' 1-norm condition numbers, inf if one is singular.
        method: one of `METHODS`.
        norms: Frobenius norms of A and of B.
    """

    sigma: Float
    Z: Float
    eigenvalues: NDArray[np.complex128]
    gap: Float
    rank: int
    condition: float
    method: str
    norms: tuple[float, float]
    input_map: Float | None = None
    """(r, r): `U = A @ input_map`; None where that would lose accuracy, and U itself is kept."""
    output_map: Float | None = None
    """(r, r): `Vh = output_map @ B`."""
    U: Float | None = None
    Vh: Float | None = None

    def input_vectors(self, A: Array) -> Float:
        """U (d, r): column j is the direction u_j that pair j reads; 0 beyond the rank."""
        return self.U if self.input_map is None else np.asarray(A, np.float64) @ self.input_map  # type: ignore[return-value]

    def output_vectors(self, B: Array) -> Float:
        """Vh (r, d): row i is the direction v_i that pair i writes; 0 beyond the rank."""
        return self.Vh if self.output_map is None else self.output_map @ np.asarray(B, np.float64)  # type: ignore[return-value]

    def on_inputs(self, x: Array, A: Array) -> Float:
        """(r,) `x . u_j` of a vector x (d,)."""
        return np.asarray(x @ self.U if self.input_map is None else (x @ A) @ self.input_map)

    def on_outputs(self, x: Array, B: Array) -> Float:
        """(r,) `x . v_i` of a vector x (d,)."""
        return np.asarray(self.Vh @ x if self.output_map is None else self.output_map @ (B @ x))


@lru_cache(maxsize=8)
def probe(d: int) -> Float:
    """The fixed generic vector p (d,) that decides signs: `p . u_i >= 0`."""
    # squares modulo 2 pi wander without a period, so p is far from any direction that weights single out
    p = np.sin(np.arange(1, d + 1, dtype=np.float64) ** 2)
    p.setflags(write=False)
    return p


def gaps(sigma: Array) -> Float:
    """Distance of each singular value to its nearest neighbour, relative to itself.

    A pair with a tiny gap is defined only up to a rotation together with its neighbour.

    Args:
        sigma: (..., r), descending.

    Returns:
        (..., r): `min(sigma_{i-1} - sigma_i, sigma_i - sigma_{i+1}) / sigma_i`; inf where there is no other pair, and
        0 where sigma is 0.
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    steps = sigma[..., :-1] - sigma[..., 1:]
    edge = np.full((*sigma.shape[:-1], 1), np.inf)
    nearest = np.minimum(np.concatenate([edge, steps], -1), np.concatenate([steps, edge], -1))
    return np.asarray(np.divide(nearest, sigma, out=np.zeros_like(sigma), where=sigma > 0))


def pair_quantities(Z: Array) -> tuple[Float, Float, Float, Float]:
    """What each output vector does with its input vector, from Z alone.

    Args:
        Z: (..., r, r), `Z[i, j] = v_i . u_j`.

    Returns:
        (overlap, self, rotation, ortho), each (..., r): `Z_ii`; `|Z_ii|`; `sqrt(sum_{j != i} Z_ij^2)`;
        `sqrt(1 - self^2 - rotation^2)`, the part of v_i outside the span of all u_j.
    """
    Z = np.asarray(Z, dtype=np.float64)
    overlap = np.diagonal(Z, axis1=-2, axis2=-1).copy()
    squares = Z**2
    index = np.arange(Z.shape[-1])
    # zeroed, not subtracted: a small rotation would drown in the rounding of a large self
    squares[..., index, index] = 0.0
    rotation2 = squares.sum(axis=-1)
    ortho = np.sqrt(np.maximum(0.0, 1.0 - overlap**2 - rotation2))
    return overlap, np.abs(overlap), np.sqrt(rotation2), ortho


def in_bases(A: Float, B: Float, factors: Sequence[Factor] | None = None) -> tuple[Float, Float, Float]:
    """`A @ B` in orthonormal bases of its two sides: `A = Q_A R_A`, `B^T = Q_B R_B`, `M = Q_B^T Q_A`.

    Args:
        A: (d, r).
        B: (r, d).
        factors: `factor_gram(A, B.T)`, if known.

    Returns:
        (R_A (r, r), R_B (r, r), M (r, r)), from which `sigma_and_Z` gives sigma and Z.
    """
    a, b = factors or factor_gram(A, B.T)
    if a.well_conditioned and b.well_conditioned:
        assert a.inverse is not None
        assert b.inverse is not None
        return a.R, b.R, b.inverse.T @ (B @ A) @ a.inverse
    a, b = factor_qr(A), factor_qr(B.T)
    assert a.Q is not None
    assert b.Q is not None
    return a.R, b.R, b.Q.T @ a.Q


def sigma_and_Z(core: Array, M: Array) -> tuple[Float, Float]:
    """sigma and Z of heads given in orthonormal bases, any number at once; the signs of single pairs are LAPACK's.

    Args:
        core: (..., r, r) `R_A @ R_B^T`.
        M: (..., r, r) `Q_B^T @ Q_A`.

    Returns:
        sigma (..., r), Z (..., r, r).
    """
    u, sigma, vh = np.linalg.svd(core)
    return sigma, vh @ M @ u


def decompose(A: Array, B: Array, factors: Sequence[Factor] | None = None) -> Decomposition:
    """Decompose `W = A @ B` without forming W.

    Args:
        A: (d, r) the reading factor: W_V[g] or W_Q[h].
        B: (r, d) the writing factor: W_O[h] or W_K[g].T.
        factors: `factor_gram(A, B.T)`, if known (grouped heads share one of the two).

    Raises:
        NumericError: a factor has NaN, infinity or entries too large to square; or the shapes do not fit.
    """
    A, B = np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)
    if A.ndim != 2 or B.ndim != 2 or A.shape != B.shape[::-1]:
        raise NumericError(
            f"factors of shapes {A.shape} and {B.shape} do not make a head's matrix",
            expected="A (d_model, d_head) and B (d_head, d_model)",
        )
    gram = factors or factor_gram(A, B.T)
    for name, factor in zip("AB", gram, strict=True):
        if not np.isfinite(factor.norm):
            raise NumericError(f"factor {name} has NaN, infinity, or entries too large to square in float64")
    found = _by_gram(A, B, *gram) if all(factor.well_conditioned for factor in gram) else _by_qr(A, B)
    eigenvalues = eigenvalues_of(found.sigma, found.Z)
    return replace(found, eigenvalues=eigenvalues, gap=gaps(found.sigma))


_NONE: Float = np.empty(0)
_NO_VALUES: NDArray[np.complex128] = np.empty(0, dtype=np.complex128)


def _by_gram(A: Float, B: Float, a: Factor, b: Factor) -> Decomposition:
    assert a.inverse is not None
    assert b.inverse is not None
    u, sigma, vh = np.linalg.svd(a.R @ b.R.T)
    input_map, output_map = a.inverse @ u, vh @ b.inverse.T
    signs = np.where((probe(len(A)) @ A) @ input_map < 0, -1.0, 1.0)
    input_map *= signs
    output_map *= signs[:, None]
    Z = output_map @ (B @ A) @ input_map
    condition, norms = max(a.condition, b.condition), (a.norm, b.norm)
    return Decomposition(
        sigma, Z, _NO_VALUES, _NONE, len(sigma), condition, "gram", norms, input_map=input_map, output_map=output_map
    )


def _by_qr(A: Float, B: Float) -> Decomposition:
    """As `_by_gram`, for any condition; pairs beyond the rank are cut off, since their vectors are arbitrary."""
    (d, r), a, b = A.shape, factor_qr(A), factor_qr(B.T)
    assert a.Q is not None
    assert b.Q is not None
    u, s, vh = np.linalg.svd(a.R @ b.R.T)
    rank = numerical_rank(s, d, a.norm * b.norm)
    sigma, U, Vh = np.zeros(r), np.zeros((d, r)), np.zeros((r, d))
    sigma[:rank] = s[:rank]
    np.matmul(a.Q, u[:, :rank], out=U[:, :rank])
    np.matmul(vh[:rank], b.Q.T, out=Vh[:rank])
    signs = np.where(probe(d) @ U < 0, -1.0, 1.0)
    U *= signs
    Vh *= signs[:, None]
    method = "zero" if rank == 0 else "rank_revealing" if rank < r else "qr"
    condition, norms = max(a.condition, b.condition), (a.norm, b.norm)
    return Decomposition(sigma, Vh @ U, _NO_VALUES, _NONE, rank, condition, method, norms, U=U, Vh=Vh)


def numerical_rank(sigma: Array, d: int, scale: float) -> int:
    """Number of singular values above rounding.

    Args:
        sigma: (r,) descending.
        d: d_model.
        scale: `||A||_F ||B||_F`. Where the factors nearly cancel, the product is not known better than `eps` times
            this; elsewhere the first term of the threshold is the larger one.
    """
    return int(np.count_nonzero(sigma > EPS * max(d * float(sigma[0]), scale))) if len(sigma) else 0


def eigenvalues_of(sigma: Array, Z: Array) -> NDArray[np.complex128]:
    """Eigenvalues of W by falling modulus, from `diag(sigma) Z`.

    W, `B A` and `diag(sigma) Z` have the same nonzero eigenvalues; the last is W in an orthonormal basis, so that the
    choice of the factors costs no accuracy.

    Args:
        sigma: (r,).
        Z: (r, r).

    Returns:
        (r,) complex; equal moduli in the order LAPACK gives them (a conjugate pair: positive imaginary part first).
    """
    live = np.count_nonzero(sigma)
    values = np.zeros(len(sigma), dtype=np.complex128)
    if live:
        found = np.linalg.eigvals(sigma[:live, None] * Z[:live, :live])
        values[:live] = found[np.argsort(-np.abs(found), kind="stable")]
    return values


def decompose_layer(
    heads: "LayerHeads", geometry: "Geometry", matrix: str, treatment: str = "raw"
) -> dict[str, NDArray[Any]]:
    """Decompose one matrix kind of every head of a layer: the arrays of `layer-LL.npz`.

    Args:
        heads: the layer; its arrays may be memory-mapped, one head's factors at a time are held in float64.
        geometry: the model's geometry.
        matrix: `value` | `qk` | `qk_nope` | `qk_rope`.
        treatment: norm treatment, folded here.

    Returns:
        `sigma` (H, r), `Z` (H, r, r), `eigenvalues` (H, r) complex, `gap` (H, r), `rank` (H,), `condition` (H,),
        `method` (H,) positions in `METHODS`, `input_norm` and `output_norm` (H,) Frobenius norms of A and B,
        `comparable` () bool, `fq_NAME` (H,) as in `headmaps.factor_quantities`, and `bias_input_NAME`,
        `bias_output_NAME` (H, r) as in `headmaps.bias_lines`. Where the two sides are different streams
        (cross-attention) `comparable` is False, Z and the eigenvalues are 0, and the last two groups are left out.

    Raises:
        NumericError: a weight is not finite (`where` names the head).
    """
    from headmaps.bias_lines import bias_vectors
    from headmaps.factor_quantities import factor_quantities
    from headmaps.layer_factors import LayerFactors

    layer = LayerFactors(heads, geometry, matrix, treatment)
    rows: list[dict[str, Any]] = []
    for head, (A, B, grams) in enumerate(layer):
        try:
            found = decompose(A, B, grams) if layer.comparable else _spectrum_only(A, B)
        except NumericError as error:
            raise NumericError(error.what, where=f"head {head}, {matrix} matrix", expected=error.expected) from None
        row: dict[str, Any] = {
            "sigma": found.sigma,
            "Z": found.Z,
            "eigenvalues": found.eigenvalues,
            "gap": found.gap,
            "rank": np.int64(found.rank),
            "condition": np.float64(found.condition),
            "method": np.int8(METHODS.index(found.method)),
            "input_norm": np.float64(found.norms[0]),
            "output_norm": np.float64(found.norms[1]),
        }
        if layer.comparable:
            row |= {f"fq_{name}": value for name, value in factor_quantities(layer, head, A, B, grams).items()}
            for name, vector in bias_vectors(layer, head, A, B).items():
                row[f"bias_input_{name}"] = found.on_inputs(vector, A)
                row[f"bias_output_{name}"] = found.on_outputs(vector, B)
        rows.append(row)
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return arrays | {"comparable": np.array(layer.comparable)}


def _spectrum_only(A: Float, B: Float) -> Decomposition:
    """sigma alone, for sides of different width or meaning: Z and eigenvalues are 0."""
    a, b = factor_qr(A), factor_qr(B.T)
    r, norms = A.shape[1], (a.norm, b.norm)
    s = np.linalg.svd(a.R @ b.R.T, compute_uv=False)
    rank = numerical_rank(s, max(len(A), B.shape[1]), a.norm * b.norm)
    sigma = np.where(np.arange(r) < rank, np.pad(s, (0, r - len(s))), 0.0)
    method = "zero" if rank == 0 else "rank_revealing" if rank < r else "qr"
    zeros, none = np.zeros((r, r)), np.zeros(r, dtype=np.complex128)
    return Decomposition(sigma, zeros, none, gaps(sigma), rank, max(a.condition, b.condition), method, norms)
