"""Every head against its own nulls, and how much of its self-mapping each of them explains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from headmaps.figures import captions
from headmaps.figures.data import Array, HeadsTable
from headmaps.figures.panels import Panels
from headmaps.figures.style import BASELINE_STYLES, Sheet, layer_ticks, many, note

QUESTIONS = {
    "gaussian": "random weights, same shape and norm",
    "spectrum": "its singular values, random subspaces",
    "shuffle": "its entries, permuted",
    "rows": "its row norms, random directions",
    "internal": "its two subspaces, randomly paired directions",
    "unpaired": "its factors, paired with other heads'",
}
"""What each null keeps of a head."""

WITHIN, BEYOND = "#8a8a8a", "#b2182b"


@dataclass(frozen=True)
class Against:
    """Every head's mean self against one null.

    Attributes:
        kind: of the baseline. layer, own: (n,) the layer and mean self of each head. mean, sd: (n,) of its draws.
    """

    kind: str
    layer: Array
    own: Array
    mean: Array
    sd: Array

    @property
    def beyond(self) -> Array:
        """(n,) bool: outside mean ± 2 sd."""
        return np.asarray(np.abs(self.own - self.mean) > 2 * np.nan_to_num(self.sd))

    @property
    def ratio(self) -> Array:
        """(n,) self over the null's mean."""
        return np.asarray(self.own / self.mean)


def against(table: HeadsTable, matrix: str, kinds: Sequence[str]) -> list[Against]:
    """Read the heads and their nulls; kinds that the table does not have, or has no value of, are left out."""
    found = []
    pairs = {kind: [f"self_mean_{kind}_mean", f"self_mean_{kind}_sd"] for kind in kinds}
    pairs = {kind: names for kind, names in pairs.items() if all(name in table for name in names)}
    columns = table.of(matrix, ["layer", "head", "self_mean", *(name for names in pairs.values() for name in names)])
    for kind, names in pairs.items():
        there = np.isfinite(columns["self_mean"]) & (columns[names[0]] > 0)
        if there.any():
            layer, own, mean, sd = (columns[name][there] for name in ("layer", "self_mean", *names))
            found.append(Against(kind, layer, own, mean, sd))
    return found


def spread(layer: Array, own: Array) -> Array:
    """Places (n,) along the layers: each layer's heads side by side within ± 0.4, by rising self."""
    place = np.empty(len(layer))
    for each in np.unique(layer):
        mine = np.flatnonzero(layer == each)
        order = mine[np.argsort(own[mine], kind="stable")]
        place[order] = each + (np.linspace(-0.4, 0.4, len(mine)) if len(mine) > 1 else 0.0)
    return place


def caption(found: Sequence[Against], asked: Sequence[str], frame: str, geometry: Mapping[str, Any]) -> str:
    """What the bands are, and the median ratio to each null."""
    if not found:
        return f"{frame} {captions.no_self(geometry)}"
    medians = captions.listed([f"{one.kind} {np.median(one.ratio):.3g}" for one in found])
    text = (
        f"{frame} Each head's mean self (dots, within a layer by rising self) with mean ± 2 standard deviations of its "
        "own null draws (grey bars); red dots lie outside. Last panel: self over the null's mean, median and quartiles "
        f"of each layer's heads; at 1 the null explains all of it. Median over all heads: {medians}. Almost every "
        "trained head leaves the Haar nulls (gaussian, spectrum): the size of the ratio says more than the rejection."
    )
    left_out = [kind for kind in asked if kind not in {one.kind for one in found}]
    if left_out:
        text += f" Not drawn, since this matrix has no such draws: {captions.listed(left_out)}."
    return text


def _heads(axes: Axes, one: Against) -> None:
    place = spread(one.layer, one.own)
    low, high = one.mean - 2 * np.nan_to_num(one.sd), one.mean + 2 * np.nan_to_num(one.sd)
    bars = np.stack([np.stack([place, low], axis=1), np.stack([place, high], axis=1)], axis=1)
    span = max(1.0, float(np.ptp(one.layer)) + 1)
    width = float(np.clip(190.0 / (span * max(1, len(one.layer) / span)), 0.35, 2.5))
    picture = many(len(place))
    lines = LineCollection(list(bars), colors="0.72", linewidths=width, capstyle="butt", rasterized=picture)
    axes.add_collection(lines)
    colors = np.where(one.beyond, BEYOND, WITHIN)
    axes.scatter(place, one.own, s=np.clip(width * 4, 1.2, 6), c=colors, lw=0, zorder=3, rasterized=picture)
    axes.set_ylim(0.0, 1.16 * float(max(one.own.max(), high.max())))  # room for the line of text
    share = f"{one.beyond.sum()} of {captions.number(len(one.own), 'head')} outside"
    axes.text(0.99, 0.98, share, transform=axes.transAxes, size=6.5, ha="right", va="top")


def quartiles(one: Against) -> tuple[Array, Array]:
    """The layers (L,), and the quartiles (3, L) of the ratio of each layer's heads."""
    layers = np.unique(one.layer)
    rows = [np.quantile(one.ratio[one.layer == each], [0.25, 0.5, 0.75]) for each in layers]
    return layers, np.asarray(rows).T


def _ratios(axes: Axes, found: Sequence[Against]) -> None:
    marks = []
    for number, one in enumerate(found):
        layers, (low, middle, high) = quartiles(one)
        color, line = BASELINE_STYLES.get(one.kind, ("0.4", "-"))
        place = layers + (number - (len(found) - 1) / 2) * 0.1
        axes.vlines(place, low, high, colors=color, lw=0.8, alpha=0.5)
        axes.plot(place, middle, color=color, ls=line, lw=1.1, marker="o", ms=1.6)
        marks.append(Line2D([], [], color=color, ls=line, label=one.kind))
    axes.axhline(1.0, color="0.3", lw=0.7, ls=(0, (4, 2)))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(LogLocator(base=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(handles=marks, loc="upper left", ncols=3, handlelength=2.2, columnspacing=1.0, borderaxespad=0.1)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.3)  # room for the legend


def draw(
    table: HeadsTable, matrix: str, model: str, kinds: Sequence[str], frame: str, geometry: Mapping[str, Any]
) -> Sheet:
    """A panel for each baseline kind of one matrix, and one of the ratios to all of them."""
    found = against(table, matrix, kinds)
    panels = Panels(len(found) + 1, height=1.75)
    title = f"{model}: heads against their matched nulls, {captions.matrix_name(matrix)}"
    text = caption(found, kinds, frame, geometry)
    if not found:
        return note(title, text, captions.NO_SELF)
    sheet = Sheet(panels.total, title, text)
    for number, one in enumerate(found):
        keeps = QUESTIONS.get(one.kind)
        axes = panels.axes(sheet, number, f"{one.kind}: {keeps}" if keeps else one.kind)
        _heads(axes, one)
        layer_ticks(axes, np.unique(one.layer).astype(int))
        axes.set_ylabel("self (mean)")
    wide = len(found) % 2 == 0
    axes = panels.axes(sheet, len(found), "self over the mean of each null", wide)
    _ratios(axes, found)
    layer_ticks(axes, np.unique(found[0].layer).astype(int))
    axes.set_ylabel("ratio")
    return sheet
