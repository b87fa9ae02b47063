"""Our numbers against the published ones: a row of panels a treatment, on the diagonal where they agree."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headmaps.figures.style import Sheet, many
from headmaps.published import Compared

COLUMNS = (
    ("self", "value"),
    ("ortho", "value"),
    ("rotation", "value"),
    ("sigma", "value"),
    ("sigma", "qk"),
)
_WIDTH, _HEIGHT, _LEFT, _GAP, _ABOVE, _BELOW = 0.95, 0.95, 0.62, 0.42, 0.38, 0.42
AGREES, DIFFERS = "#0072b2", "#d55e00"


def caption(judged: Mapping[str, Any], frame: str) -> str:
    """What a mark is, which treatment reproduces the article, and what decided it."""
    best = judged["reproduced_by"]
    text = (
        f"{frame} Up: our number; along: the number published for {judged['reference']}. Self, ortho and rotation: a "
        "mark is one head (value matrix, plain means over its pairs); sigma: the singular values of the one head whose "
        "values are published. On the line both are equal. Above each panel: the largest difference; orange where it "
        f"reaches {judged['tolerance']:g}. "
    )
    if best is None:
        return text + "No treatment reproduces every published number."
    also = f", and so do {', '.join(judged['also_by'])}" if judged["also_by"] else ""
    return text + f"Treatment {best} reproduces every published number{also}; verdict.json lists them."


def draw(found: Mapping[str, Sequence[Compared]], judged: Mapping[str, Any], title: str, frame: str) -> Sheet:
    """One row of panels a treatment, one column a published quantity.

    Args:
        found: treatment -> `published.compared`. judged: `verdict.verdict` of it.
    """
    row = _ABOVE + _HEIGHT + _BELOW
    sheet = Sheet(row * len(found), title, caption(judged, frame))
    for number, (treatment, quantities) in enumerate(found.items()):
        by_name = {(one.quantity, one.matrix): one for one in quantities}
        sheet.text(_LEFT, number * row + 0.02, treatment, weight="bold", size=8.0)
        for place, key in enumerate(COLUMNS):
            left = _LEFT + place * (_WIDTH + _GAP)
            axes = sheet.axes(left, number * row + _ABOVE, _WIDTH, _HEIGHT)
            _panel(axes, by_name[key])
            if place == 0:
                axes.set_ylabel("ours")
    return sheet


def _panel(axes: Any, one: Compared) -> None:
    color = AGREES if one.reproduced else DIFFERS
    low, high = (float(f([f(one.published), f(one.ours)])) for f in (np.nanmin, np.nanmax))
    room = 0.05 * (high - low or 1.0)
    ends = [low - room, high + room]
    axes.plot(ends, ends, color="0.6", lw=0.7, zorder=0)
    axes.scatter(one.published, one.ours, s=4, c=color, alpha=0.6, lw=0, rasterized=many(one.published.size))
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    name = one.quantity if one.quantity != "sigma" else f"sigma, {'QK' if one.matrix == 'qk' else one.matrix}"
    largest = f"{one.largest:.2g}".replace("-", "−") if np.isfinite(one.largest) else "no such number"
    axes.set_title(f"{name}: {largest}", loc="left", size=7.0, y=1.0, color=color)
    axes.set_xlabel("published")
    axes.locator_params(nbins=4)
