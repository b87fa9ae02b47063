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

from headmaps.blocks import block_labels, unresolved
from headmaps.figures import captions
from headmaps.figures.style import Sheet, color_key, note, ordered_colors

BINS = 100
LIMIT = 1.0  # the article's range is [-1, 1]
WHOLE_ABOVE = 0.02  # share of values outside the range above which a second panel shows all of them
_SLACK = 1e-9  # an overlap of exactly one comes out a rounding error beside it
_BEYOND, _BAR = 1.05, 0.04  # where the bars of what lies outside the range stand, and their width, in limits


@dataclass(frozen=True)
class Counts:
    """A layer's histogram: counts (H, 100) on [-limit, limit], and how many lie below and above it, (H,) each."""

    limit: float
    counts: NDArray[np.int64]
    below: NDArray[np.int64]
    above: NDArray[np.int64]

    @property
    def outside(self) -> int:
        """How many values lie outside the range."""
        return int(self.below.sum() + self.above.sum())

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.counts.sum()) + self.outside

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2 * self.limit / BINS


def overlaps(
    sigma: NDArray[np.float64], Z: NDArray[np.float64], used: NDArray[np.bool_], weighted: bool = True
) -> NDArray[np.float64]:
    """(H, r): `sigma_i * (v_i . u_i)`, or `v_i . u_i` unweighted; NaN for pairs not in use.

    Args:
        sigma: (H, r). Z: (H, r, r). used: (H, r), the pairs below each head's rank.
        weighted: the article's data are the weighted ones, although its caption names the others.
    """
    overlap = np.diagonal(Z, axis1=1, axis2=2)
    return np.where(used, sigma * overlap if weighted else overlap, np.nan)


def unresolved_pairs(decomposition: Mapping[str, NDArray[Any]], used: NDArray[np.bool_]) -> int:
    """How many of a layer's pairs the stored precision cannot tell apart (`headmaps.blocks`)."""
    noise = decomposition.get("precision_sigma")
    return 0 if noise is None else int(unresolved(block_labels(decomposition["sigma"], used, noise)).sum())


def count(values: NDArray[np.float64], limit: float = LIMIT) -> Counts:
    """Count values (H, r) into 100 bins on [-limit, limit], by head; NaN are not counted.

    A bin holds its lower edge and not its upper one, but for the last, which holds both.
    """
    heads, slack = len(values), _SLACK * limit
    counts, below, above = np.zeros((heads, BINS), np.int64), np.zeros(heads, np.int64), np.zeros(heads, np.int64)
    for h, row in enumerate(values):
        mine = row[np.isfinite(row)]
        below[h], above[h] = (mine < -limit - slack).sum(), (mine > limit + slack).sum()
        inside = mine[np.abs(mine) <= limit + slack]
        counts[h] = np.histogram(np.clip(inside, -limit, limit), BINS, (-limit, limit))[0]
    return Counts(limit, counts, below, above)


def whole(values: NDArray[np.float64], found: Counts) -> Counts | None:
    """The histogram on a range that holds every value, where the article's range leaves out more than a few."""
    if found.outside <= WHOLE_ABOVE * found.total:
        return None
    largest = float(np.nanmax(np.abs(values)))
    step = 10.0 ** np.floor(np.log10(largest)) / 2
    return count(values, float(np.ceil(largest / step) * step))


def quantity_label(weighted: bool) -> str:
    """The label of the horizontal axis."""
    return "σᵢ (vᵢ · uᵢ)" if weighted else "vᵢ · uᵢ"


def caption(
    found: Counts, every: Counts | None, weighted: bool, frame: str, geometry: Mapping[str, Any], mixed: int = 0
) -> str:
    """What figures 1 and 4 show, what is outside their range, and how many pairs (`mixed`) the storage leaves open."""
    if not found.total:
        return f"{frame} {captions.no_self(geometry)}"
    quantity = (
        "the sigma-weighted overlap σᵢ (vᵢ · uᵢ), which the article draws as well, although its caption names vᵢ · uᵢ"
        if weighted
        else "the unweighted overlap vᵢ · uᵢ, which the article's caption names; its data are the sigma-weighted ones"
    )
    text = (
        f"{frame} Histogram of {quantity}. A count is one singular pair of one head; "
        f"{captions.number(found.total, 'pair')} of {captions.number(len(found.counts), 'head')} in 100 bins of 0.02, "
        "bars stacked, head 0 at the bottom. "
    )
    warning = captions.undetermined(mixed, found.total)
    if found.outside == 0:
        return f"{text}None lies outside [−1, 1].{warning}"
    some = np.flatnonzero(found.below + found.above).tolist()
    heads = f"head{'s' if len(some) > 1 else ''} {captions.listed(some)}"
    if len(some) == len(found.counts) > 1:
        heads = "of all heads"
    text += (
        f"{found.outside} lie outside [−1, 1] ({heads}) and stand beyond the dotted lines, in bars that are cut where "
        "they are much higher than the others; the article's histograms leave such values out."
    )
    return text + ("" if every is None else " Below: the same values on a range that holds all.") + warning


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
    limit = found.limit
    edges = np.linspace(-limit, limit, BINS + 1)
    outside = np.stack([found.below, found.above], axis=1)
    beyond = np.array([-_BEYOND - _BAR / 2, _BEYOND - _BAR / 2]) * limit
    for outlines in (_stack(found.counts, edges[:-1], found.width), _stack(outside, beyond, _BAR * limit)):
        some = [i for i, outline in enumerate(outlines) if np.size(outline.vertices)]
        # without antialiasing no hairlines show between neighbouring bars
        axes.add_collection(
            PathCollection([outlines[i] for i in some], facecolors=colors[some], linewidths=0, antialiaseds=False),
            autolim=False,
        )
    inside, most = max(1, int(found.counts.sum(axis=0).max())), int(outside.sum(axis=0).max())
    top = 1.1 * max(inside, min(most, 1.5 * inside))
    axes.set_ylim(0, top)
    axes.set_xlim(-1.1 * limit, 1.1 * limit)
    if found.outside:
        for side, number in ((-1, int(found.below.sum())), (1, int(found.above.sum()))):
            axes.axvline(side * 1.015 * limit, color="0.5", lw=0.6, ls=(0, (1, 2)))
            if number:
                height = min(number, 0.94 * top)
                box: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                place: dict[str, Any] = {"ha": "center", "va": "bottom", "bbox": box if number > height else None}
                axes.text(side * _BEYOND * limit, height + 0.012 * top, str(number), size=6.5, **place)


def _panel(axes: Axes, found: Counts, colors: NDArray[np.float64], weighted: bool) -> None:
    _bars(axes, found, colors)
    steps = np.linspace(-found.limit, found.limit, 9)
    axes.set_xticks(steps, [f"{x:g}".replace("-", "−") for x in steps])
    axes.set_xlabel(quantity_label(weighted))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylabel(f"pairs per bin of {found.width:g}")


def draw(
    values: NDArray[np.float64],
    model: str,
    layer: int,
    matrix: str,
    weighted: bool,
    frame: str,
    geometry: Mapping[str, Any],
    mixed: int = 0,
) -> Sheet:
    """Figure 1 (value matrix) or 4 (QK matrix) of one layer: stacked bars, one colour a head.

    Args:
        values: (H, r) from `overlaps`. frame: the caption's first sentences (`captions.frame`).
        mixed: how many of the pairs are not determined one by one (`unresolved_pairs`).
    """
    found = count(values)
    every = whole(values, found)
    title = f"{model}: layer {layer}, {captions.matrix_name(matrix)}"
    text = caption(found, every, weighted, frame, geometry, mixed)
    if not found.total:
        return note(title, text, captions.NO_SELF)
    height = 2.95 if every is None else 2.0
    sheet = Sheet(0.45 + height * (1 if every is None else 2) + (0 if every is None else 0.5), title, text)
    colors = ordered_colors(len(found.counts))
    _panel(sheet.axes(0.62, 0.08, 5.7, height), found, colors, weighted)
    if every is not None:
        _panel(sheet.axes(0.62, 0.58 + height, 5.7, height), every, colors, weighted)
    color_key(sheet.axes(6.55, 0.28, 0.16, 2.75), colors, range(len(colors)), "head")
    return sheet


def facts(values: NDArray[np.float64]) -> dict[str, Any]:
    """The numbers behind the picture, for the record."""
    found = count(values)
    return {"pairs": found.total, "outside": found.outside}
