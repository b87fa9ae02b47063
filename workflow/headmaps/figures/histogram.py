"""Figures 1 and 4: how much of each input direction a layer's heads write back along it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from headmaps.figures import captions
from headmaps.figures.style import Sheet, color_key, note, ordered_colors

BINS = 100
RANGE = (-1.0, 1.0)
_SLACK = 1e-9  # an overlap of exactly one comes out a rounding error beside it
_BEYOND = 1.05  # where the bars of what lies outside the range stand
_BAR = 0.04


@dataclass(frozen=True)
class Counts:
    """A layer's histogram: counts (H, 100) on [-1, 1], and how many lie below and above it, (H,) each."""

    counts: NDArray[np.int64]
    below: NDArray[np.int64]
    above: NDArray[np.int64]

    @property
    def outside(self) -> int:
        """How many values lie outside the range."""
        return int(self.below.sum() + self.above.sum())


def count(sigma: NDArray[np.float64], Z: NDArray[np.float64], used: NDArray[np.bool_], weighted: bool = True) -> Counts:
    """Count `sigma_i * (v_i . u_i)`, or `v_i . u_i` unweighted, of every pair in use into 100 bins of 0.02.

    Args:
        sigma: (H, r). Z: (H, r, r). used: (H, r), the pairs below each head's rank.
        weighted: the article's data are the weighted ones, although its caption names the others.
    """
    overlap = np.diagonal(Z, axis1=1, axis2=2)
    values = sigma * overlap if weighted else overlap
    low, high = RANGE
    heads = values.shape[0]
    counts, below, above = np.zeros((heads, BINS), np.int64), np.zeros(heads, np.int64), np.zeros(heads, np.int64)
    for h in range(heads):
        mine = values[h, used[h]]
        below[h], above[h] = (mine < low - _SLACK).sum(), (mine > high + _SLACK).sum()
        inside = mine[(mine >= low - _SLACK) & (mine <= high + _SLACK)]
        counts[h] = np.histogram(np.clip(inside, low, high), BINS, RANGE)[0]
    return Counts(counts, below, above)


def quantity_label(weighted: bool) -> str:
    """The label of the horizontal axis."""
    return "σᵢ (vᵢ · uᵢ)" if weighted else "vᵢ · uᵢ"


def caption(found: Counts, weighted: bool, frame: str, geometry: Mapping[str, Any]) -> str:
    """What figures 1 and 4 show, and what is outside their range."""
    total = int(found.counts.sum()) + found.outside
    if not total:
        return f"{frame} {captions.no_self(geometry)}"
    quantity = (
        "the sigma-weighted overlap σᵢ (vᵢ · uᵢ), which the article draws as well, although its caption names vᵢ · uᵢ"
        if weighted
        else "the unweighted overlap vᵢ · uᵢ, which the article's caption names; its data are the sigma-weighted ones"
    )
    text = (
        f"{frame} Histogram of {quantity}. A count is one singular pair of one head; "
        f"{captions.number(total, 'pair')} of {captions.number(len(found.counts), 'head')} in 100 bins of 0.02, bars "
        "stacked, head 0 at the bottom. "
    )
    if found.outside == 0:
        return text + "None lies outside [−1, 1]."
    heads = captions.listed(np.flatnonzero(found.below + found.above).tolist())
    many = "s" if np.count_nonzero(found.below + found.above) > 1 else ""
    return text + (
        f"{found.outside} lie outside [−1, 1] (head{many} {heads}) and stand beyond the dotted lines; the article's "
        "histograms leave such values out."
    )


def _stack(counts: NDArray[np.int64], left: NDArray[np.float64], width: float) -> list[Outline]:
    """One outline a head of its bars on top of those of the heads before it."""
    top = np.cumsum(counts, axis=0)
    outlines = []
    for own, high in zip(counts, top, strict=True):
        some = np.flatnonzero(own)
        x0, y1 = left[some], high[some].astype(float)
        x1, y0 = x0 + width, y1 - own[some]
        corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1, x0, y0], axis=1).reshape(-1, 2)
        codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY], len(some))
        outlines.append(Outline(corners, codes) if len(some) else Outline(np.zeros((0, 2))))
    return outlines


def _bars(axes: Axes, found: Counts, colors: NDArray[np.float64]) -> None:
    edges = np.linspace(*RANGE, BINS + 1)
    outside = np.stack([found.below, found.above], axis=1)
    beyond = np.array([-_BEYOND - _BAR / 2, _BEYOND - _BAR / 2])
    for outlines in (_stack(found.counts, edges[:-1], edges[1] - edges[0]), _stack(outside, beyond, _BAR)):
        some = [i for i, outline in enumerate(outlines) if np.size(outline.vertices)]
        # without antialiasing no hairlines show between neighbouring bars
        axes.add_collection(
            PathCollection([outlines[i] for i in some], facecolors=colors[some], linewidths=0, antialiaseds=False),
            autolim=False,
        )
    top = 1.06 * max(1, found.counts.sum(axis=0).max(), outside.sum(axis=0).max())
    axes.set_ylim(0, top)
    axes.set_xlim(-1.1, 1.1)
    for side, number in ((-1, int(found.below.sum())), (1, int(found.above.sum()))):
        axes.axvline(side * 1.015, color="0.5", lw=0.6, ls=(0, (1, 2)))
        if number:
            axes.text(side * _BEYOND, number + 0.012 * top, str(number), size=6.5, ha="center", va="bottom")


def draw(
    found: Counts, model: str, layer: int, matrix: str, weighted: bool, frame: str, geometry: Mapping[str, Any]
) -> Sheet:
    """Figure 1 (value matrix) or 4 (QK matrix) of one layer: stacked bars, one colour a head.

    Args:
        found: from `count`. frame: the caption's first sentences (`captions.frame`).
    """
    name = captions.matrix_name(matrix)
    title, text = f"{model}: layer {layer}, {name}", caption(found, weighted, frame, geometry)
    if not found.counts.sum() + found.outside:
        return note(title, text, captions.NO_SELF)
    sheet = Sheet(3.4, title, text)
    axes = sheet.axes(0.62, 0.08, 5.7, 2.95)
    colors = ordered_colors(len(found.counts))
    _bars(axes, found, colors)
    steps = np.arange(-1.0, 1.01, 0.25)
    axes.set_xticks(steps, [f"{x:g}".replace("-", "−") for x in steps])
    axes.set_xlabel(quantity_label(weighted))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylabel("singular pairs per bin of 0.02")
    color_key(sheet.axes(6.55, 0.28, 0.16, 2.75), colors, range(len(colors)), "head")
    return sheet


def facts(found: Counts) -> dict[str, Any]:
    """The numbers behind the picture, for the record."""
    return {"pairs": int(found.counts.sum()) + found.outside, "outside": found.outside}
