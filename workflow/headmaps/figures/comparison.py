"""Several models by relative depth, one model along its training, two checkpoints head by head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from headmaps.comparison import BEYOND, MAIN, Columns
from headmaps.figures import captions
from headmaps.figures.data import grid
from headmaps.figures.panels import Panels
from headmaps.figures.style import BLUE_WHITE_RED, Sheet, color_key, many, ordered_colors, ticks
from headmaps.quantities import REGISTRY

Float = NDArray[np.float64]

# Okabe and Ito's colours, then the same with other lines: apart for colour-blind readers and in grey print
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_LINES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MEANS = ("self_mean", "rotation_mean", "ortho_mean")
RANDOM = "0.45"


def frame(names: Sequence[str], matrix: str, layer_norm: str) -> str:
    """The first sentence of a comparison's caption: which models, how treated, which matrix."""
    return f"{captions.listed(names)}; norm treatment {layer_norm}; {captions.sides(matrix)}."


def style_of(number: int) -> tuple[str, Any]:
    """Colour and line of the n-th model."""
    return _COLORS[number % len(_COLORS)], _LINES[number // len(_COLORS) % len(_LINES)]


# --- models by relative depth -------------------------------------------------------------------------------------

_EFFECTS = (("", "value"), ("_difference", "minus own null"), ("_z", "z against own null"))


def draw_models(table: Columns, matrix: str, kind: str | None, title: str, opening: str) -> Sheet:
    """A row a quantity: its layer means by relative depth, their difference from each model's own null, and z.

    Args:
        table: `comparison.layer_means`. matrix: the matrix drawn. kind: the null, None without one.
        title: above the figure. opening: first sentence of the caption.
    """
    names = list(dict.fromkeys(table["model"].tolist()))
    effects = _EFFECTS if kind else _EFFECTS[:1]
    text = f"{opening} A line is the mean over a layer's heads; depth 0 is a model's first layer, 1 its last. "
    text += (
        f"Left: the quantity, thin lines its mean under the model's own null ({kind}), which depends on the width of "
        "the model. Middle: difference from it. Right: mean over the heads of z, each against its own null. Models of "
        "different width are to be compared by the middle and the right column."
        if kind
        else "Without a baseline that all models have, models of different width cannot be compared: chance differs."
    )
    left, width, height, step, head = 0.5, 1.72, 0.82, 1.27, 0.2
    sheet = Sheet(head + len(MAIN) * step + 0.3, title, text)
    marks = [
        Line2D([], [], color=style_of(i)[0], ls=style_of(i)[1], label=captions.listed([name]))
        for i, name in enumerate(names)
    ]
    sheet.legend(marks, left, 0.0, ncols=4, columnspacing=1.2)
    for row, quantity in enumerate(MAIN):
        for column, (effect, heading) in enumerate(effects):
            axes = sheet.axes(left + column * (width + 0.62), head + row * step + 0.2, width, height)
            axes.set_title(f"{REGISTRY[quantity].label}: {heading}" if column == 0 else heading, loc="left", y=1.0)
            _depth_lines(axes, table, matrix, names, quantity, kind, effect)
            if row == len(MAIN) - 1:
                axes.set_xlabel("relative depth")
    return sheet


def _depth_lines(
    axes: Axes, table: Columns, matrix: str, names: Sequence[str], quantity: str, kind: str | None, effect: str
) -> None:
    column = f"{quantity}_{kind}{effect}" if effect else quantity
    if column not in table:
        return
    for number, name in enumerate(names):
        rows = (table["matrix"] == matrix) & (table["model"] == name)
        color, line = style_of(number)
        mark = "." if rows.sum() == 1 else None
        axes.plot(table["depth"][rows], table[column][rows], color=color, ls=line, lw=1.1, marker=mark)
        null = f"{quantity}_{kind}_mean"
        if not effect and null in table:
            axes.plot(table["depth"][rows], table[null][rows], color=color, ls=line, lw=0.5)
    if effect:
        axes.axhline(0.0, color=RANDOM, lw=0.6, ls=(0, (1, 2)), zorder=0)
    axes.set_xlim(-0.03, 1.03)


# --- training -----------------------------------------------------------------------------------------------------


def growth(onset: Columns, matrix: str) -> str:
    """How many heads of one matrix end with a self beyond chance, and when half of them were half-way there.

    Args:
        onset: `comparison.onsets` of the mean self.
    """
    rows = onset["matrix"] == matrix
    steps = onset["half_step"][rows & np.isfinite(onset["half_step"])]
    text = (
        f" At the last step the self of {len(steps)} of {captions.number(int(rows.sum()), 'head')} lies more than "
        f"{BEYOND:g} standard deviations from chance"
    )
    if not len(steps):
        return f"{text}."
    middle = float(np.quantile(steps, 0.5, method="inverted_cdf"))
    return f"{text}; half of these were half-way there, for good, by step {middle:g} (each head's step: onsets.csv)."


def draw_training(table: Columns, onset: Columns, matrix: str, kind: str | None, title: str, opening: str) -> Sheet:
    """A row each for self, rotation and ortho: layer means along training, and every head.

    Args:
        table: `comparison.trajectories`. onset: `comparison.onsets`. Other arguments as of `draw_models`.
    """
    rows = table["matrix"] == matrix
    steps = np.unique(table["step"][rows])
    layers = np.unique(table["layer"][rows])
    text = (
        f"{opening} {len(steps)} revisions from step {steps[0]} to {steps[-1]}; logarithmic scale from step 1 on. "
        "Left: mean over each layer's heads. Right: every head. "
    )
    text += f"Dashed: the mean under the baseline {kind}, where chance lies." if kind else "No baseline was computed."
    text += growth(onset, matrix)
    panels = Panels(2 * len(MEANS), height=1.55, right=0.42)
    sheet = Sheet(panels.total, title, text)
    colors = ordered_colors(len(layers))
    for row, quantity in enumerate(MEANS):
        curves = _curves(table, rows, quantity, steps, layers)
        averages = _mean(curves, 1)
        for side in range(2):
            label = REGISTRY[quantity].label
            axes = panels.axes(sheet, 2 * row + side, label if side == 0 else f"{label}, every head")
            for color, layer_curves, average in zip(colors, curves, averages, strict=True):
                if side == 0:
                    axes.plot(steps, average, color=color, lw=1.0, marker=".", ms=3)
                else:
                    axes.plot(steps, layer_curves.T, color=color, lw=0.7, alpha=0.7, rasterized=many(curves.size))
            _random_line(axes, table, rows, f"{quantity}_{kind}_mean", steps)
            axes.set_xscale("symlog", linthresh=1.0)
            axes.set_xlim(steps[0] - 0.1, steps[-1] * 1.1 + 0.1)
            axes.set_xlabel("training step")
    left, top = panels.place(1)
    key = sheet.axes(left + panels.width + 0.1, top, 0.09, panels.height)
    color_key(key, colors, [int(layer) for layer in layers], "layer")
    return sheet


def _mean(values: Float, axis: int) -> Float:
    there = np.isfinite(values)
    number = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.asarray(np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0))


def _curves(
    table: Columns, rows: NDArray[np.bool_], quantity: str, steps: NDArray[np.int64], layers: NDArray[np.int64]
) -> Float:
    """(layers, heads, steps) of one matrix; NaN where there is no value."""
    head = table["head"][rows]
    curves = np.full((len(layers), int(head.max()) + 1, len(steps)), np.nan)
    place = np.searchsorted(layers, table["layer"][rows]), head, np.searchsorted(steps, table["step"][rows])
    curves[place] = table[quantity][rows]
    return curves


def _random_line(axes: Axes, table: Columns, rows: NDArray[np.bool_], column: str, steps: NDArray[np.int64]) -> None:
    if column not in table:
        return
    means = [float(np.mean(table[column][rows & (table["step"] == step)])) for step in steps]
    axes.plot(steps, means, color=RANDOM, lw=1.2, ls=(0, (4, 2)), zorder=5)


# --- two checkpoints ----------------------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Changes below it are rounding; their panel takes a scale on which they are nothing."""

PAIR_PANELS = (
    ("weight_change", "change of the weights, relative"),
    ("self_mean_change", "self (mean), change"),
    ("rotation_mean_change", "rotation (mean), change"),
    ("ortho_mean_change", "ortho (mean), change"),
    ("input_angle_mean", "angle of input subspaces (degrees)"),
    ("output_angle_mean", "angle of output subspaces (degrees)"),
)


def draw_pair(table: Columns, matrix: str, title: str, opening: str) -> Sheet:
    """Heat maps over layers and heads of what changed between two checkpoints.

    Args:
        table: `comparison.changes` with the columns of `subspaces`. Other arguments as of `draw_models`.
    """
    rows = table["matrix"] == matrix
    layer, head = table["layer"][rows].astype(float), table["head"][rows].astype(float)
    text = (
        f"{opening} A cell is one head; changes are second minus first. Change of the weights: "
        "‖W₂ − W₁‖ / ‖W₁‖, Frobenius norms. Angles: mean principal angle between the subspaces that the first and "
        "the second checkpoint read (input) and write (output). Each panel has its own scale."
    )
    height = float(np.clip(0.85 + 0.014 * (head.max() + 1), 1.05, 2.3))
    panels = Panels(len(PAIR_PANELS), height=height, right=0.66)
    sheet = Sheet(panels.total, title, text)
    for number, (column, label) in enumerate(PAIR_PANELS):
        layers, values = grid(layer, head, table[column][rows])
        axes = panels.axes(sheet, number, label)
        axes.set_facecolor("0.8")
        low, high = _limits(values, column.endswith("_mean_change"))
        colors = BLUE_WHITE_RED if column.endswith("_mean_change") else colormaps["viridis"]
        image = axes.imshow(values.T, cmap=colors, vmin=low, vmax=high, aspect="auto", origin="lower")
        along = ticks(len(layers))
        axes.set_xticks(along, [str(layers[i]) for i in along])
        axes.set_yticks(ticks(values.shape[1], 8))
        axes.set_ylabel("head")
        axes.set_xlabel("layer")
        left, top = panels.place(number)
        bar = sheet.figure.colorbar(image, cax=sheet.axes(left + panels.width + 0.08, top, 0.09, panels.height))
        bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    return sheet


def _limits(values: Float, signed: bool) -> tuple[float, float]:
    there = values[np.isfinite(values)]
    high = float(np.abs(there).max()) if there.size else 0.0
    high = high if high > ROUNDING else 1.0
    return (-high, high) if signed else (0.0, high)
