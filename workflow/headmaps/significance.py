"""How far a head is from its null draws: effect, z, p, and the correction for many heads. numpy only.

The effect (difference and ratio to the null mean) leads: almost every trained head rejects a Haar null, so that "beyond
chance" says little and "how far beyond" says much. Heads that share a key/value head share a factor, hence their p
values are dependent; the Benjamini-Hochberg procedure is kept for them as usual (it holds under positive dependence,
Benjamini and Yekutieli 2001), which for grouped heads is an assumption.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
LEVEL = 0.05  # false discovery rate that the adjusted p values are meant to be read at
TOLD_FROM_ZERO = 4.0
"""Standard errors between the mean of the draws and 0 from which on a ratio to it means something."""
_ROUNDING = 1e-12  # draws that differ by less, relative to their mean, are a constant with rounding on it


@dataclass(frozen=True)
class Significance:
    """What n heads are against their nulls; every array is (n,) float64, NaN where it does not exist.

    Attributes:
        mean: mean of the null draws.
        sd: their sample standard deviation (n - 1); NaN for fewer than two draws.
        difference: observed minus mean.
        ratio: observed over mean; NaN where the draws do not tell their mean from 0 (a trace, a signed overlap).
        z: difference over sd; NaN where the draws do not vary.
        p: two-sided Monte Carlo p.
        draws: number of draws per head.
    """

    mean: Float
    sd: Float
    difference: Float
    ratio: Float
    z: Float
    p: Float
    draws: NDArray[np.int64]


def monte_carlo_p(at_least: Any, at_most: Any, draws: Any) -> Float:
    """`min(1, 2 min(1 + #{T* >= T}, 1 + #{T* <= T}) / (N + 1))`, two-sided and never 0.

    The observed value counts as one of the N + 1 exchangeable ones (Davison and Hinkley 1997, section 4.2), so that
    under the null P(p <= a) <= a for every a; the smallest value it can take is 2 / (N + 1).

    Args:
        at_least: #{T* >= T}, the number of draws at or above the observed value.
        at_most: #{T* <= T}, the number at or below it; ties count on both sides.
        draws: N.
    """
    smaller = 1.0 + np.minimum(at_least, at_most)
    return np.asarray(np.minimum(1.0, 2.0 * smaller / (np.asarray(draws, dtype=np.float64) + 1.0)))


def significance(observed: Any, draws: Any) -> Significance:
    """Compare each head with its own null draws, or all with one pool.

    Args:
        observed: (n,) the heads' values; NaN where a head has none.
        draws: (n, N) each head's own draws, NaN where a head has fewer than N; or (N,) one pool for all, no NaN.
    """
    observed = np.asarray(observed, dtype=np.float64)
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim == 1:
        n_draws = np.full(observed.shape, draws.size)
        ordered = np.sort(draws)
        at_least = draws.size - np.searchsorted(ordered, observed, side="left")
        at_most = np.searchsorted(ordered, observed, side="right")
        mean, sd = (np.full(observed.shape, value) for value in _moments(draws[None, :], np.array([draws.size])))
    else:
        n_draws = np.count_nonzero(~np.isnan(draws), axis=1)
        at_least = np.count_nonzero(draws >= observed[:, None], axis=1)
        at_most = np.count_nonzero(draws <= observed[:, None], axis=1)
        mean, sd = _moments(draws, n_draws)
    exists = ~np.isnan(observed) & (n_draws > 0)
    p = np.where(exists, monte_carlo_p(at_least, at_most, n_draws), np.nan)
    difference = observed - mean
    from_zero = np.abs(mean) > TOLD_FROM_ZERO * np.nan_to_num(sd) / np.sqrt(np.maximum(n_draws, 1))
    ratio = np.where(from_zero, _divide(observed, mean), np.nan)
    return Significance(mean, sd, difference, ratio, _divide(difference, sd), p, n_draws)


def _moments(draws: Float, n_draws: NDArray[Any]) -> tuple[Float, Float]:
    """Mean and sample sd of each row of (n, N) draws, NaN entries left out."""
    present = ~np.isnan(draws)
    whole = bool(present.all())
    mean = _divide((draws if whole else np.where(present, draws, 0.0)).sum(axis=1), n_draws)
    deviation = draws - mean[:, None]
    squares = np.einsum("ij,ij->i", deviation, deviation) if whole else np.nansum(deviation**2, axis=1)
    sd = np.sqrt(_divide(squares, np.maximum(n_draws - 1, 0)))
    return mean, np.where(sd > _ROUNDING * np.abs(mean), sd, np.where(np.isnan(sd), np.nan, 0.0))


def _divide(top: Any, bottom: Any) -> Float:
    """Elementwise quotient, NaN where the denominator is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64))
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom != 0))


def smallest_p(draws: int) -> float:
    """The smallest p that N draws can give: 2 / (N + 1), at most 1."""
    return min(1.0, 2.0 / (draws + 1.0))


def heads_needed(draws: int, heads: int, level: float = LEVEL) -> int:
    """How many of `heads` must reach the smallest p before Benjamini-Hochberg rejects any of them at `level`.

    The procedure rejects k heads if the k-th smallest p is at most `level k / heads`.
    """
    return math.ceil(smallest_p(draws) * heads / level - 1e-9)


def can_reject(draws: int, heads: int, level: float = LEVEL) -> bool:
    """Whether adjusted p values say anything: whether the draws are many enough to find a few heads (5 %, or one).

    With fewer draws the correction hides every head unless most of them are extreme, so none is reported.
    """
    return heads > 0 and heads_needed(draws, heads, level) <= max(1, math.floor(0.05 * heads))


def benjamini_hochberg(p: Any) -> Float:
    """Adjusted p values: `min_{j >= k} m p_(j) / j`, at most 1 (Benjamini and Hochberg 1995).

    Args:
        p: (n,) p values; NaN entries are no test: they stay NaN and do not count in m.
    """
    p = np.asarray(p, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    m = order.size
    stepped = p[order] * m / np.arange(1, m + 1)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(stepped[::-1])[::-1])
    return adjusted


def overlap_p(overlap: Any, d_model: int) -> Float:
    """Exact two-sided p of one pair's overlap under the Haar null: `P(|v . u| >= |overlap|)`.

    For independent uniform unit vectors in R^d, `(v . u)^2 ~ Beta(1/2, (d - 1) / 2)` (design, section 2), whence
    `p = I_{1 - overlap^2}((d - 1) / 2, 1/2)` with I the regularised incomplete beta function. Values below 1e-308
    become 0.

    Args:
        overlap: any shape, in [-1, 1] up to rounding; NaN stays NaN.
        d_model: d >= 2.
    """
    if d_model < 2:
        raise ValueError(f"d_model is {d_model}; a direction needs at least 2 dimensions")
    square = np.minimum(np.asarray(overlap, dtype=np.float64) ** 2, 1.0)
    return _beta_tail(square.ravel(), (d_model - 1) / 2.0).reshape(square.shape)


def _beta_tail(x: Float, b: float) -> Float:
    """`P(X >= x)` for X ~ Beta(1/2, b), by the continued fraction that converges fast on each side of the mean."""
    tail = np.where(np.isnan(x), np.nan, np.where(x >= 1.0, 0.0, 1.0))
    near = (x > 0.0) & (x < 1.5 / (b + 2.5))
    far = (x >= 1.5 / (b + 2.5)) & (x < 1.0)
    tail[near] = 1.0 - _incomplete_beta(x[near], 1.0 - x[near], 0.5, b)
    tail[far] = _incomplete_beta(1.0 - x[far], x[far], b, 0.5)
    return tail


def _incomplete_beta(x: Float, complement: Float, a: float, b: float) -> Float:
    """Regularised `I_x(a, b)` for `x < (a + 1) / (a + b + 2)`, 0 < x < 1.

    Lentz's evaluation of the continued fraction 26.5.8 of Abramowitz and Stegun; it needs O(sqrt(max(a, b))) terms.
    """
    if x.size == 0:
        return x
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.log(a)
    front = np.exp(constant + a * np.log(x) + b * np.log(complement))
    tiny = 1e-300
    c = np.ones_like(x)
    d = 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0), tiny)
    fraction = d.copy()
    for m in range(1, 20 + 10 * math.ceil(math.sqrt(max(a, b)))):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d, tiny)
            c = _nonzero(1.0 + term / c, tiny)
            step = c * d
            fraction *= step
        if np.max(np.abs(step - 1.0)) < 1e-15:
            break
    return np.asarray(front * fraction)


def _nonzero(values: Float, tiny: float) -> Float:
    return np.where(np.abs(values) < tiny, tiny, values)
