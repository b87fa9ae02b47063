"""Depth profiles: each main quantity by layer, every head, their mean, and what matched random draws give."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from headmaps.figures import captions
from headmaps.figures.data import Array, HeadsTable, grid
from headmaps.figures.panels import MAIN, Panels, labels
from headmaps.figures.style import BASELINE_STYLES, SELF, Sheet, layer_ticks, many, note

HEADS, MEAN = "#3b6ea5", "#123a63"


def drawn_kinds(table: HeadsTable, kinds: Sequence[str], quantity: str) -> list[str]:
    """The baseline kinds that the table compares a quantity with."""
    return [kind for kind in kinds if f"{quantity}_{kind}_mean" in table]


def layer_means(values: Array) -> Array:
    """Mean over heads (L,) of values (L, H); NaN where a layer has none."""
    there = np.isfinite(values)
    number = there.sum(axis=1)
    return np.where(number > 0, np.where(there, values, 0.0).sum(axis=1) / np.maximum(number, 1), np.nan)


def caption(frame: str, kinds: Sequence[str], empty: bool, geometry: Mapping[str, Any]) -> str:
    """What points, lines and band are."""
    if empty:
        return f"{frame} {captions.no_self(geometry)}"
    text = f"{frame} A dot is one head, the line the mean over a layer's heads. "
    if kinds:
        others = captions.listed(kinds[1:])
        text += f"Grey band: mean ± 2 standard deviations of single heads under the baseline {kinds[0]}, by layer"
        text += f"; lines: the means under {others}. " if others else ". "
        text += "A baseline is absent where it keeps the quantity fixed. "
    return text + "Left: plain means over a head's singular pairs. Right: energy shares, weighted by σ²."


def _baselines(axes: Axes, columns: Mapping[str, Array], name: str, kinds: Sequence[str], first: str) -> None:
    for kind in kinds:
        layers, mean = grid(columns["layer"], columns["head"], columns[f"{name}_{kind}_mean"])
        middle = layer_means(mean)
        color, line = BASELINE_STYLES.get(kind, ("0.4", "-"))
        if kind == first:
            spread = layer_means(grid(columns["layer"], columns["head"], columns[f"{name}_{kind}_sd"])[1])
            if len(layers) == 1:  # a band needs a width
                axes.errorbar(layers, middle, 2 * spread, color="0.6", lw=4, zorder=1)
            axes.fill_between(layers, middle - 2 * spread, middle + 2 * spread, color="0.8", lw=0, zorder=1)
        axes.plot(layers, middle, color=color, ls=line, lw=0.9, zorder=3.5, marker="_" if len(layers) == 1 else None)


def legend_marks(kinds: Sequence[str]) -> list[Any]:
    """The legend's entries."""
    marks: list[Any] = [
        Line2D([], [], color=HEADS, ls="", marker="o", ms=2.5, alpha=0.6, label="head"),
        Line2D([], [], color=MEAN, lw=1.6, label="mean of a layer's heads"),
    ]
    if kinds:
        marks.append(Patch(color="0.8", label=f"{kinds[0]} ± 2 sd"))
    for kind in kinds:
        color, line = BASELINE_STYLES.get(kind, ("0.4", "-"))
        marks.append(Line2D([], [], color=color, ls=line, label=kind))
    return marks


def draw(
    table: HeadsTable, matrix: str, model: str, kinds: Sequence[str], frame: str, geometry: Mapping[str, Any]
) -> Sheet:
    """The depth profiles of one matrix, with the bands of the baseline kinds."""
    nulls = {name: drawn_kinds(table, kinds, name) for name in MAIN}
    statistics = [f"{name}_{kind}_{what}" for name in MAIN for kind in nulls[name] for what in ("mean", "sd")]
    columns = table.of(matrix, ["layer", "head", *MAIN, *statistics])
    kinds = [kind for kind in kinds if any(kind in some for some in nulls.values())]
    panels = Panels(len(MAIN), height=1.3, head=0.42 if len(kinds) > 2 else 0.22)
    empty = not np.isfinite(columns["self_mean"]).any()
    title = f"{model}: depth profiles, {captions.matrix_name(matrix)}"
    text = caption(frame, kinds, empty, geometry)
    if empty:
        return note(title, text, captions.NO_SELF)
    sheet = Sheet(panels.total, title, text)
    sheet.legend(legend_marks(kinds), panels.left, 0.02, ncols=5, columnspacing=1.4, handlelength=2.2)
    for number, (name, label) in enumerate(labels()):
        axes = panels.axes(sheet, number, label)
        layers, values = grid(columns["layer"], columns["head"], columns[name])
        _baselines(axes, columns, name, nulls[name], kinds[0] if kinds else "")
        axes.scatter(
            np.repeat(layers, values.shape[1]),
            values.ravel(),
            s=3.5,
            c=HEADS,
            alpha=float(np.clip(8 / values.shape[1], 0.08, 0.45)),
            lw=0,
            zorder=3,
            rasterized=many(values.size),
        )
        axes.plot(layers, layer_means(values), color=MEAN, lw=1.4, zorder=4, marker="." if len(layers) == 1 else None)
        layer_ticks(axes, layers)
        if name == "overlap_mean":
            axes.axhline(0.0, color=SELF, lw=0.6, ls=(0, (1, 2)), zorder=0)
    return sheet
