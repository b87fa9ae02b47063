"""What each column of heads.csv is, for readers: its words, its group, and which columns follow from others."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.factor_quantities import FACTOR_REGISTRY, FactorQuantity
from headmaps.quantities import KINDS, REGISTRY, Quantity

Float = NDArray[np.float64]

STATISTICS = {
    "z": "z-score",
    "difference": "difference from the mean",
    "ratio": "ratio to the mean",
    "p": "p-value",
    "p_adjusted": "adjusted p-value",
    "mean": "mean of the draws",
    "sd": "standard deviation of the draws",
    "draws": "number of draws",
}
"""Ending of a column -> what it is."""

DIVERGING = ("z", "difference")

PRECISION = "precision_"

OTHERS = {
    "rank": ("rank", "Singular pairs that count: values above d eps times the largest."),
    "gap_min": ("smallest gap", "Distance of the two nearest singular values, over the value."),
    "blocks": ("blocks", "Blocks of pairs that the storage's precision keeps apart; the rank, if all are."),
    "unresolved_pairs": ("unresolved pairs", "Pairs in blocks of two or more: single vectors are not determined."),
    "block_overlap_mean": ("overlap of blocks (mean)", "Overlap where what the storage leaves open is averaged."),
    "block_captured_mean": ("captured by blocks (mean)", "Mean squared self of blocks of unresolved pairs."),
    "factor_condition": ("condition of the factors", "Larger condition number of the two factors."),
    "precision_sigma": ("singular values, change by storage", "Root mean square change under storage noise."),
}
"""Columns outside the registries -> label and meaning; `docs/quantities.md` says more."""


def describe_columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """Each column: its words, and which quantity, baseline kind and statistic it is of."""
    kinds = kinds_of(names)
    columns = []
    for name in names:
        quantity, kind, statistic = parts(name, kinds)
        label = label_of(quantity)
        if statistic == "draws" and not quantity:
            label = f"{kind}: {STATISTICS[statistic]}"
        elif statistic == "precision":
            label = f"{label}, change by storage"
        elif kind:
            label = f"{label}, {STATISTICS[statistic]} ({kind})"
        found = {"name": name, "label": label, "quantity": quantity, "kind": kind, "statistic": statistic}
        columns.append(found | {"diverging": statistic in DIVERGING})
    return columns


def kinds_of(names: Sequence[str]) -> list[str]:
    """The baseline kinds that a table has columns of, in its order."""
    return [name.removesuffix("_draws") for name in names if name.removesuffix("_draws") in KINDS]


def label_of(quantity: str) -> str:
    """Words for a quantity; its name where no registry knows it."""
    entry = REGISTRY.get(quantity) or FACTOR_REGISTRY.get(quantity)
    if entry:
        return entry.label
    return OTHERS[quantity][0] if quantity in OTHERS else quantity.replace("_", " ")


def parts(name: str, kinds: Sequence[str]) -> tuple[str, str, str]:
    """(quantity, baseline kind, statistic) of a column; kind and statistic are empty for a measured one."""
    for kind in kinds:
        if name == f"{kind}_draws":
            return "", kind, "draws"
        match = re.fullmatch(rf"(.+)_{re.escape(kind)}_({'|'.join(STATISTICS)})", name)
        if match:
            return match[1], kind, match[2]
    if name.startswith(PRECISION) and name not in OTHERS:
        return name.removeprefix(PRECISION), "", "precision"
    return name, "", ""


def describe_quantities(names: Sequence[str]) -> list[dict[str, str]]:
    """What a reader must know of each quantity among the columns, the registries' order first."""
    keys = ("name", "label", "formula", "meaning", "range", "source", "unit")
    entries: list[Quantity | FactorQuantity] = [*REGISTRY.values(), *FACTOR_REGISTRY.values()]
    found = [{key: str(getattr(entry, key)) for key in keys} for entry in entries if entry.name in names]
    nothing = dict.fromkeys(keys, "")
    more = [nothing | {"name": name, "label": label, "meaning": text} for name, (label, text) in OTHERS.items()]
    return found + [entry for entry in more if entry["name"] in names]


def predicted(name: str, kinds: Sequence[str], columns: Mapping[str, Float]) -> tuple[str, str, str] | None:
    """How a column follows from two others, `(operation, left, right)`, or None.

    The page computes such a column and corrects it by the stored difference of bits, nearly all of which are 0.
    """
    quantity, kind, statistic = parts(name, kinds)
    mean, sd, difference = (f"{quantity}_{kind}_{ending}" for ending in ("mean", "sd", "difference"))
    rules = {"difference": ("-", quantity, mean), "ratio": ("/", quantity, mean), "z": ("/", difference, sd)}
    rule = rules.get(statistic)
    return rule if rule and rule[1] in columns and rule[2] in columns else None


def correction(values: Float, rule: tuple[str, str, str], columns: Mapping[str, Float]) -> NDArray[np.uint64]:
    """Bits to change in the prediction; where that is NaN (whose bits differ between machines) it counts as 0."""
    operation, left, right = rule
    with np.errstate(all="ignore"):
        guess = columns[left] - columns[right] if operation == "-" else columns[left] / columns[right]
    guess = np.where(np.isnan(guess), 0.0, guess)
    bits, guessed = (np.ascontiguousarray(array, dtype="<f8").view("<u8") for array in (values, guess))
    return np.asarray(bits ^ guessed, dtype=np.uint64)
