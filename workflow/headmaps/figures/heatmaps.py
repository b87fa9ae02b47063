"""Every head's main quantities as colours: layers along, heads up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.ticker import MaxNLocator

from headmaps.figures import captions
from headmaps.figures.data import Array, HeadsTable, grid
from headmaps.figures.panels import MAIN, SIGNED, Panels, labels
from headmaps.figures.style import BLUE_WHITE_RED, Sheet, note, ticks

_MISSING = "0.8"


def limits(name: str, values: Array) -> tuple[float, float]:
    """The ends of a panel's colour scale: its own values' range, symmetric about 0 where the quantity has a sign."""
    there = values[np.isfinite(values)]
    if not there.size:
        return 0.0, 1.0
    low, high = float(there.min()), float(there.max())
    if name in SIGNED:
        high = max(abs(low), abs(high))
        low = -high
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def caption(frame: str, missing: int, shape: tuple[int, int], geometry: Mapping[str, Any]) -> str:
    """What a cell is."""
    if not shape[0] * shape[1] - missing:
        return f"{frame} {captions.no_self(geometry)}"
    text = (
        f"{frame} A cell is one head; {captions.number(shape[0], 'layer')} of {captions.number(shape[1], 'head')}. "
        "Left: plain means over a head's singular pairs, which weight small singular values like large ones. Right: "
        "energy shares, weighted by σ², which sum to one. Signed overlap: red where a head writes along what it reads, "
        "blue where against it. Each panel has its own scale."
    )
    return text + (f" Grey: {captions.number(missing, 'head')} without a singular value above zero." if missing else "")


def draw(
    table: HeadsTable, matrix: str, model: str, kinds: Sequence[str], frame: str, geometry: Mapping[str, Any]
) -> Sheet:
    """The heat maps of one matrix; `kinds` (of baselines) do not enter."""
    columns = table.of(matrix, ["layer", "head", *MAIN])
    layers, first = grid(columns["layer"], columns["head"], columns["self_mean"])
    heads = first.shape[1]
    panels = Panels(len(MAIN), height=float(np.clip(0.85 + 0.014 * heads, 1.05, 2.3)), right=0.62)
    title = f"{model}: all heads, {captions.matrix_name(matrix)}"
    text = caption(frame, int(np.isnan(first).sum()), first.shape, geometry)
    if np.isnan(first).all():
        return note(title, text, captions.NO_SELF)
    sheet = Sheet(panels.total, title, text)
    for number, (name, label) in enumerate(labels()):
        values = grid(columns["layer"], columns["head"], columns[name])[1]
        axes = panels.axes(sheet, number, label)
        low, high = limits(name, values)
        colors = BLUE_WHITE_RED if name in SIGNED else colormaps["viridis"]
        axes.set_facecolor(_MISSING)
        image = axes.imshow(values.T, cmap=colors, vmin=low, vmax=high, aspect="auto", origin="lower")
        along, up = ticks(len(layers)), ticks(heads, 8)
        axes.set_xticks(along, [str(layers[i]) for i in along])
        axes.set_yticks(up)
        axes.set_ylabel("head")
        axes.set_xlabel("layer")
        left, top = panels.place(number)
        bar = sheet.figure.colorbar(image, cax=sheet.axes(left + panels.width + 0.08, top, 0.09, panels.height))
        bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    return sheet
