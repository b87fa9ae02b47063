"""Per-head scalars that need the factors `A (d, r)` and `B (r, d)` and not only sigma and Z; never a d x d array.

Unlike the registry's, these depend on what is kept fixed: directionality and participation on the residual stream's
own coordinates (an orthogonal change of basis changes them; A G and G^-1 B do not). The bias terms are as gauge-free as
the score itself if the biases follow, `b_Q G` and `b_K G^-T`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.layer_factors import LayerFactors
from headmaps.linalg import EPS, Factor

Float = NDArray[np.float64]

THRESHOLD_SD = 2.0


@dataclass(frozen=True)
class FactorQuantity:
    """One per-head scalar from the factors, with what a reader must know of it (fields as in headmaps.quantities)."""

    name: str
    label: str
    formula: str
    meaning: str
    range: str
    source: str
    matrices: str = "all"
    unit: str = ""


_SAPONATI = "Saponati et al., The underlying structures of self-attention (2025), as their published code computes it"
_SCORE = "(x W_Q + b_Q) . (y W_K + b_K) = x W y^T + (b_Q W_K^T) . y + x . (W_Q b_K) + b_Q . b_K"
_ISOTROPIC = "mean square of each term for x, y with independent entries of mean 0 and variance 1, over their sum"

FACTOR_REGISTRY: dict[str, FactorQuantity] = {
    entry.name: entry
    for entry in (
        FactorQuantity(
            "directionality",
            "directionality",
            "(C - R) / (C + R), R = sum_a max(0, n_a - mean(n) - 2 sd(n)), n_a = ||W[a, :]||; C as R for ||W[:, a]||",
            "Whether outlier dimensions are written (in QK: of the keys; positive) or read (of the queries; negative).",
            "[-1, 1]; 0 where neither side has outliers",
            _SAPONATI,
        ),
        FactorQuantity(
            "input_participation",
            "residual dimensions read",
            "(sum_a n_a^2)^2 / sum_a n_a^4, n_a = ||W[a, :]||",
            "How many coordinates of the residual stream share the reading; small where few outlier dimensions rule.",
            "[1, d_model]",
            "inverse participation ratio of the squared row norms",
            unit="dimensions",
        ),
        FactorQuantity(
            "output_participation",
            "residual dimensions written",
            "(sum_a n_a^2)^2 / sum_a n_a^4, n_a = ||W[:, a]||",
            "How many coordinates of the residual stream share the writing.",
            "[1, d_model]",
            "inverse participation ratio of the squared column norms",
            unit="dimensions",
        ),
        FactorQuantity(
            "bias_key_share",
            "share of the query bias term in the score",
            "||b_Q W_K^T||^2 / (||W||_F^2 + ||b_Q W_K^T||^2 + ||W_Q b_K||^2 + (b_Q . b_K)^2)",
            "Share of the score that depends on the attended token alone, whatever the query is.",
            "[0, 1]",
            f"{_SCORE}; {_ISOTROPIC}",
            matrices="qk",
        ),
        FactorQuantity(
            "bias_query_share",
            "share of the key bias term in the score",
            "||W_Q b_K||^2 / (||W||_F^2 + ||b_Q W_K^T||^2 + ||W_Q b_K||^2 + (b_Q . b_K)^2)",
            "Share of the score that is the same for all attended tokens, which the softmax removes.",
            "[0, 1]",
            f"{_SCORE}; {_ISOTROPIC}",
            matrices="qk",
        ),
        FactorQuantity(
            "bias_constant_share",
            "share of the constant term in the score",
            "(b_Q . b_K)^2 / (||W||_F^2 + ||b_Q W_K^T||^2 + ||W_Q b_K||^2 + (b_Q . b_K)^2)",
            "Share of the score that is one number for all pairs of tokens, which the softmax removes.",
            "[0, 1]",
            f"{_SCORE}; {_ISOTROPIC}",
            matrices="qk",
        ),
        FactorQuantity(
            "bias_constant",
            "constant term of the score",
            "b_Q . b_K",
            "The score of two zero inputs, before scaling.",
            "(-inf, inf)",
            _SCORE,
            matrices="qk",
            unit="score",
        ),
        FactorQuantity(
            "bias_write_share",
            "share of the value bias in what is written",
            "||b_V W_O||^2 / (||W||_F^2 + ||b_V W_O||^2)",
            "Share of the head's writing that is the same whatever it attends to.",
            "[0, 1]",
            f"(x W_V + b_V) W_O; {_ISOTROPIC}",
            matrices="value",
        ),
        FactorQuantity(
            "bias_input_outside",
            "share of the input bias outside the row space",
            "||b - b P||^2 / ||b||^2; P projects on the row space of A, b = b_Q (QK) or b_V (value)",
            "Share of the bias that no input can produce: 0 for a factor of full rank. Singular values of A below"
            " sqrt(d eps) times its largest count as 0.",
            "[0, 1]",
            "orthogonal projection on the right singular vectors of A",
        ),
        FactorQuantity(
            "bias_input_reach",
            "input that the bias stands for",
            "||b A^+|| / sqrt(d)",
            "Size of the smallest input that would add the same as the bias, in units of a normed input's; large where"
            " the bias lies along directions that the weights hardly reach.",
            "[0, inf)",
            "minimum-norm solution of x A = b (its part in the row space)",
        ),
    )
}


def factor_quantities(
    layer: LayerFactors, head: int, A: Float, B: Float, factors: tuple[Factor, Factor]
) -> dict[str, float]:
    """Every quantity of `FACTOR_REGISTRY` that this matrix and checkpoint have, for one head.

    The cost is two products (d, r) x (r, r) and two small factorisations, against three products in the decomposition.

    Args:
        layer: the layer's factors (its biases and their treatment).
        head: query head.
        A: (d, r) reading factor.
        B: (r, d) writing factor.
        factors: `factor_gram(A, B.T)`.

    Returns:
        name -> value; NaN where a quantity does not exist (an all-zero matrix, a zero bias).
    """
    R_A, R_B = (_triangle(M, factor) for M, factor in zip((A, B.T), factors, strict=True))
    rows = _row_norms(A @ R_B.T)
    columns = _row_norms(B.T @ R_A.T)
    energy = float(rows @ rows)
    found = {
        "directionality": directionality(rows, columns) if energy > 0 else math.nan,
        "input_participation": _participation(rows**2),
        "output_participation": _participation(columns**2),
    }
    b_input, b_output = head_biases(layer, head)
    if b_input is not None:
        outside, reach = bias_reach(b_input, R_A, len(A))
        found |= {"bias_input_outside": outside, "bias_input_reach": reach}
    if layer.matrix == "value" and b_input is not None:
        found["bias_write_share"] = _over(float(np.sum((b_input @ B) ** 2)), energy)
    if layer.matrix == "qk" and not (b_input is None and b_output is None):
        b_Q = np.zeros(len(B)) if b_input is None else b_input
        b_K = np.zeros(len(B)) if b_output is None else b_output
        found |= score_biases(A, B, b_Q, b_K, energy)
    return found


def score_biases(A: Float, B: Float, b_Q: Float, b_K: Float, energy: float) -> dict[str, float]:
    """The bias terms of the score beside the bilinear one.

    Args:
        A: (d, r) W_Q of a head.
        B: (r, d) W_K^T.
        b_Q, b_K: (r,).
        energy: `||A @ B||_F^2`.

    Returns:
        `bias_key_share`, `bias_query_share`, `bias_constant_share`, `bias_constant`.
    """
    constant = float(b_Q @ b_K)
    terms = {"key": float(np.sum((b_Q @ B) ** 2)), "query": float(np.sum((A @ b_K) ** 2)), "constant": constant**2}
    others = energy + sum(terms.values())
    shares = {f"bias_{name}_share": term / others if others > 0 else math.nan for name, term in terms.items()}
    return shares | {"bias_constant": constant}


def directionality(row_norms: Float, column_norms: Float) -> float:
    """`(C - R) / (C + R)`: excess of column and row norms over their mean + 2 sd (sample sd); 0 without excess."""

    def excess(norms: Float) -> float:
        threshold = norms.mean() + THRESHOLD_SD * norms.std(ddof=1)
        return float(np.maximum(0.0, norms - threshold).sum())

    R, C = excess(row_norms), excess(column_norms)
    return (C - R) / (C + R) if C + R > 0 else 0.0


def bias_reach(b: Float, R: Float, d: int) -> tuple[float, float]:
    """How far a bias lies outside the row space of its factor, and what input would replace it.

    Args:
        b: (r,) bias.
        R: (r, r) with `A = Q R`.
        d: rows of A.

    Returns:
        (share of ||b||^2 outside the row space, norm of the smallest x with x A = b inside it, over sqrt(d)).
    """
    _, s, vh = np.linalg.svd(R)
    along = vh @ b
    reached = s > math.sqrt(d * EPS) * s[0]
    total = float(b @ b)
    outside = float(np.sum(along[~reached] ** 2)) / total if total > 0 else math.nan
    return outside, float(np.linalg.norm(along[reached] / s[reached])) / math.sqrt(d)


def head_biases(layer: LayerFactors, head: int) -> tuple[Float | None, Float | None]:
    """The biases (r,) that go with A and B of a head, with the norm's bias folded in where the treatment does so.

    Returns:
        (b_V, None) of a value matrix, (b_Q, b_K) of a QK matrix; None where there is none.
    """

    def one(name: str, index: int, W: Any) -> Float | None:
        stored = layer.heads.extras.get(name)
        folded = layer.fold.shift is not None and (name == "b_Q" or not layer.fold.only_queries)
        if stored is None and not folded:
            return None
        own = np.zeros(W.shape[1]) if stored is None else np.asarray(stored[index], dtype=np.float64)
        return np.asarray(own + layer.fold.read_bias(W) if folded else own, dtype=np.float64)

    i, j = layer.input_index(head), layer.output_index(head)
    if layer.matrix == "value":
        return one("b_V", i, layer.inputs[i]), None
    if layer.matrix == "qk":
        return one("b_Q", i, layer.inputs[i]), one("b_K", j, layer.outputs[j].T)
    return None, None


def _triangle(M: Float, factor: Factor) -> Float:
    return factor.R if factor.well_conditioned else np.asarray(np.linalg.qr(M, mode="r"))


def _row_norms(M: Float) -> Float:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", M, M)))


def _participation(squares: Float) -> float:
    fourth = float(squares @ squares)
    return float(squares.sum()) ** 2 / fourth if fourth > 0 else math.nan


def _over(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0 else math.nan
