"""Per-head scalars of an attention head, from sigma, Z and the eigenvalues alone.

`REGISTRY` is the one place that knows them: heads.csv takes its columns from it, figures their labels, the baselines
what to evaluate on their draws, and `docs/quantities.md` is checked against it.

    >>> quantities(sigma, Z)["self_mean"]
"""

from collections.abc import Iterable

from headmaps.quantities.pairs import Array, Float, HeadPairs
from headmaps.quantities.quantity import HAAR_KINDS, KINDS, Quantity
from headmaps.quantities.table import ENTRIES, SPECTRUM

__all__ = [
    "FROM_THE_POOL",
    "HAAR_KINDS",
    "KINDS",
    "REGISTRY",
    "SPECTRAL_NAMES",
    "HeadPairs",
    "Quantity",
    "null_names",
    "quantities",
]

REGISTRY: dict[str, Quantity] = {entry.name: entry for entry in ENTRIES}

SPECTRAL_NAMES = tuple(entry.name for entry in SPECTRUM)
"""Quantities of sigma alone: they exist where Z does not (cross-attention)."""


FROM_THE_POOL = (
    *("self_mean", "rotation_mean", "ortho_mean", "overlap_mean", "negative_share", "subspace_overlap"),
    *("input_rotation_mean", "input_ortho_mean"),
    *("principal_angle_min", "principal_angle_mean", "principal_angle_max"),
    *("self_energy", "rotation_energy", "ortho_energy", "input_rotation_energy", "input_ortho_energy"),
    *("trace", "trace_share"),
)
"""What the Haar pool alone says of the spectrum null: quantities of the vectors, whose law is the same whatever the
spectrum, and those that are linear in squared entries or overlaps. The others need whole draws of Z with the head's own
sigma: they are drawn layer by layer, as the literal kinds are."""


def quantities(
    sigma: Array,
    Z: Array,
    eigenvalues: Array | None = None,
    names: Iterable[str] | None = None,
    rank: Array | None = None,
) -> dict[str, Float]:
    """Evaluate per-head scalars on a batch of heads or of random draws.

    Args:
        sigma: (..., r) singular values, descending.
        Z: (..., r, r), `Z[i, j] = v_i . u_j`.
        eigenvalues: (..., r) eigenvalues of W, any order; computed from `diag(sigma) Z` when needed and not given.
        names: which quantities (default: all of the registry). Pieces that several share are computed once.
        rank: (...) number of pairs that count; by default those with `sigma_i > r eps sigma_1`.

    Returns:
        name -> (...) float64. NaN where a quantity does not exist (an all-zero head).

    Raises:
        KeyError: a name is not in the registry.
        ValueError: the shapes of sigma and Z do not fit.
    """
    pairs = HeadPairs(sigma, Z, eigenvalues, rank)
    return {name: REGISTRY[name].compute(pairs) for name in (REGISTRY if names is None else names)}


def null_names(kind: str, costs: Iterable[str] = ("products",)) -> tuple[str, ...]:
    """Names of the quantities that a baseline kind asks something of.

    Args:
        kind: one of `KINDS`.
        costs: what an evaluation may need; add "svd" or "eigenvalues" where a factorisation of each draw is affordable.

    Raises:
        KeyError: the kind is unknown.
    """
    if kind not in KINDS:
        raise KeyError(kind)
    allowed = set(costs)
    return tuple(name for name, entry in REGISTRY.items() if kind in entry.nulls and entry.cost in allowed)
