"""The norm treatments of one model side by side: how each quantity of each head moves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from headmaps.comparison import MAIN, Columns
from headmaps.figures import captions
from headmaps.figures.panels import Panels
from headmaps.figures.style import Sheet, many
from headmaps.quantities import REGISTRY

Float = NDArray[np.float64]

# Okabe and Ito: apart for colour-blind readers; the marks part them in grey print
STYLES = (("#0072b2", "o"), ("#d55e00", "^"), ("#009e73", "s"))
DIAGONAL = "0.6"


def moved(table: Columns, matrix: str, treatment: str, quantity: str) -> tuple[Float, Float]:
    """(values under the first treatment, values under `treatment`) of one matrix, heads in one order."""
    rows = table["matrix"] == matrix
    names = list(dict.fromkeys(table["treatment"].tolist()))
    first, other = (table[quantity][rows & (table["treatment"] == name)] for name in (names[0], treatment))
    return first, other


def frame(model: str, source: Mapping[str, Any], geometry: Mapping[str, Any], names: Sequence[str], matrix: str) -> str:
    """The sentence the caption starts with: as of other figures, with all treatments in place of one."""
    opening = captions.frame(model, source, geometry, "raw", matrix)
    together = f"norm treatments {captions.listed(names)} side by side"
    return opening.replace(captions.treatment("raw", geometry), together, 1)


_FOLDED = (
    ("gain", "gain: the gains of the norms folded into the weights"),
    ("gain_and_center", "and_center: the mean over d_model taken out of what is read, as a LayerNorm does"),
    ("gain_and_center_write", "and_write: also out of what is written, which the next LayerNorm cannot see"),
)


def caption(names: Sequence[str], frame: str, unmoved: Sequence[str]) -> str:
    """What a mark is, what each treatment does, and which of them change nothing here."""
    widest = max((number for number, (name, _) in enumerate(_FOLDED) if name in names), default=-1)
    folded = "; ".join(text for _, text in _FOLDED[: widest + 1])
    text = (
        f"{frame} A mark is one head: along, its value under {names[0]}; up, under the other treatment. On the "
        f"diagonal nothing moves. {folded[:1].upper()}{folded[1:]}. Raw weights compare W_V after the norm's gain with "
        "W_O in residual coordinates."
    )
    return text + (f" Without any effect on this matrix: {', '.join(unmoved)}." if unmoved else "")


def unmoved_by(table: Columns, matrix: str, names: Sequence[str]) -> list[str]:
    """The treatments under which every drawn quantity of every head is exactly the first treatment's."""
    return [
        name
        for name in names[1:]
        if all(np.array_equal(*moved(table, matrix, name, quantity), equal_nan=True) for quantity in MAIN)
    ]


def draw(table: Columns, matrix: str, title: str, opening: str) -> Sheet:
    """One panel a quantity: each head's value under the other treatments against the first.

    Args:
        table: `comparison.treatment_changes`. matrix: the matrix drawn. title, opening: what stands above and below.
    """
    names = list(dict.fromkeys(table["treatment"].tolist()))
    panels = Panels(len(MAIN), height=1.75, head=0.2)
    sheet = Sheet(panels.total, title, caption(names, opening, unmoved_by(table, matrix, names)))
    marks: list[Any] = []
    for name, (color, mark) in zip(names[1:], STYLES, strict=False):
        marks.append(Line2D([], [], color=color, ls="", marker=mark, ms=3, label=name))
    sheet.legend(marks, panels.left, 0.02, ncols=3)
    for number, quantity in enumerate(MAIN):
        axes = panels.axes(sheet, number, REGISTRY[quantity].label)
        for name, (color, mark) in zip(names[1:], STYLES, strict=False):
            first, other = moved(table, matrix, name, quantity)
            axes.scatter(first, other, s=5, c=color, marker=mark, alpha=0.5, lw=0, rasterized=many(first.size))
        _diagonal(axes)
        axes.set_xlabel(names[0])
    return sheet


def _diagonal(axes: Axes) -> None:
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=DIAGONAL, lw=0.7, ls=(0, (3, 2)), zorder=0)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
