"""Figure 2: every head's mean self, ortho and rotation in one triangle."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mpltern  # noqa: F401  registers the ternary projection
import numpy as np
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from headmaps.figures import captions
from headmaps.figures.data import HeadsTable
from headmaps.figures.style import Sheet, color_key, many, note, ordered_colors

Array = NDArray[np.float64]
QUANTITIES = ("self_mean", "ortho_mean", "rotation_mean")


@dataclass(frozen=True)
class Points:
    """What figure 2 draws.

    Attributes:
        layer: (n,) the layer of each head. shares: (n, 3) self, ortho, rotation over their sum.
        line: (a, b) of the fit ortho' = a + b self', or None below two distinct points.
        random: shares of the mean of the matched random draws, or None.
        closed_form: shares of the closed-form means of random subspaces.
        without: how many heads have no values.
    """

    layer: NDArray[np.int64]
    shares: Array
    line: tuple[float, float] | None
    random: Array | None
    closed_form: Array | None
    without: int


def normalised(self_mean: Array, ortho_mean: Array, rotation_mean: Array) -> Array:
    """(n, 3): each head's self, ortho and rotation over their sum, as a ternary plot's axes take them."""
    values = np.stack([self_mean, ortho_mean, rotation_mean], axis=-1)
    return np.asarray(values / values.sum(axis=-1, keepdims=True))


def linear_fit(self_mean: Array, ortho_mean: Array, rotation_mean: Array) -> tuple[float, float]:
    """Least squares ortho' = a + b self' in the normalised coordinates; returns (a, b), the article's dashed line."""
    shares = normalised(self_mean, ortho_mean, rotation_mean)
    design = np.stack([np.ones(len(shares)), shares[:, 0]], axis=1)
    a, b = np.linalg.lstsq(design, shares[:, 1], rcond=None)[0]
    return float(a), float(b)


def points(
    table: HeadsTable, matrix: str, closed_form: tuple[float, float, float] | None, random: str | None
) -> Points:
    """Read one matrix's points from heads.csv.

    Args:
        closed_form: expected self, ortho and rotation of random subspaces (`headmaps.haar`).
        random: the baseline kind whose mean is the open circle, or None.
    """
    drawn = [f"{q}_{random}_mean" for q in QUANTITIES] if random and f"self_mean_{random}_mean" in table else []
    columns = table.of(matrix, ["layer", "head", *QUANTITIES, *drawn])
    there = np.isfinite(columns["self_mean"])
    values = [columns[q][there] for q in QUANTITIES]
    distinct = len(np.unique(values[0])) > 1
    mean = [np.nanmean(columns[q][there]) for q in drawn] if drawn and there.any() else None
    return Points(
        columns["layer"][there].astype(np.int64),
        normalised(*values),
        linear_fit(*values) if distinct else None,
        normalised(*(np.array(m) for m in mean)) if mean and np.all(np.isfinite(mean)) else None,
        normalised(*(np.array(mean) for mean in closed_form)) if closed_form else None,
        int((~there).sum()),
    )


def caption(found: Points, frame: str, random: str | None, geometry: Mapping[str, Any]) -> str:
    """What a point is, and what the other marks are."""
    if not len(found.layer):
        return f"{frame} {captions.no_self(geometry)}"
    text = (
        f"{frame} One point is one head: the plain means over its singular pairs of self, ortho and rotation, each "
        f"over the sum of the three; {captions.number(len(found.layer), 'head')}"
    )
    text += f" ({found.without} all-zero heads have none). " if found.without else ". "
    if found.random is not None:
        text += f"Open circle: mean of random initialisations of the same shape (baseline {random}). "
    if found.closed_form is not None:
        text += "Cross: the expectation for random subspaces, in closed form. "
    if found.line:
        a, b = found.line
        text += f"Dashed: least squares ortho′ = {a:.4f} {'−' if b < 0 else '+'} {abs(b):.4f} self′ of the shares. "
    return text + (
        "Plain means weight small singular values like large ones, and the three means need not sum to one. "
        "Right: the same points, enlarged."
    )


def _line_ends(line: tuple[float, float], low: Array) -> Array:
    """The ends (2, 3) of the fit line within the triangle whose lowest shares are `low` (3,); empty if it misses it."""
    a, b = line
    own = np.linspace(0.0, 1.0, 4001)
    shares = np.stack([own, a + b * own, 1 - own - (a + b * own)], axis=1)
    inside = shares[(shares >= low).all(axis=1)]
    return inside[[0, -1]] if len(inside) else inside


def enlarged(shares: Array) -> tuple[Array, float]:
    """The smallest subtriangle, with round corners in 0.05, that holds all points: lowest shares (3,), and its size."""
    low = np.clip(np.floor((shares.min(axis=0) - 0.01) / 0.05) * 0.05, 0.0, 1.0)
    size = 1.0 - float(low.sum())
    return np.asarray(low), size


def _marks(axes: Any, found: Points, colors: Array, size: float, low: Array) -> None:
    # every mark lies inside the triangle; clipping to it would cost most of the time that an SVG takes
    plain: dict[str, Any] = {"clip_on": False}
    if found.line:
        ends = _line_ends(found.line, low)
        if len(ends):
            axes.plot(*ends.T, color="0.15", lw=1.0, ls=(0, (4, 2)), label="linear fit", zorder=3, **plain)
    index = np.unique(found.layer, return_inverse=True)[1]
    edges: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.25, "rasterized": many(len(found.layer))}
    axes.scatter(*found.shares.T, s=size, c=colors[index], zorder=2, **edges, **plain)
    if found.random is not None:
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": "k", "linewidths": 1.2}
        axes.scatter(*found.random[:, None], s=52, label="random initialisation", zorder=4, **ring, **plain)
    if found.closed_form is not None:
        cross: dict[str, Any] = {"marker": "x", "c": "k", "linewidths": 0.9}
        axes.scatter(*found.closed_form[:, None], s=24, label="closed form", zorder=5, **cross, **plain)


# Label of each side: the middle of the side in the axes' box, how far outside, and its angle
_SIDES = (("taxis", "self′", 0.75, 0.5, -60), ("laxis", "ortho′", 0.25, 0.5, 60), ("raxis", "rotation′", 0.5, 0.0, 0))


def _frame(axes: Any, low: Array, size: float) -> None:
    """Ticks and labels of the triangle of shares from `low` (3,) to `low + size`."""
    axes.set_ternary_lim(*np.stack([low, low + size], axis=1).ravel())
    step = next(s for s in (0.2, 0.1, 0.05, 0.02, 0.01) if size / s >= 3.5 or s == 0.01)
    for (name, label, x, y, angle), start in zip(_SIDES, low, strict=True):
        places = np.arange(np.ceil((start - 1e-9) / step), np.floor((start + size + 1e-9) / step) + 1) * step
        places = np.abs(places)  # never a negative zero
        axis = getattr(axes, name)
        axis.set_ticks(places, [f"{place:.2f}" if step < 0.1 else f"{place:.1f}" for place in places])
        axis.set_label_coords(x, y)  # a place of our own: finding one is most of the drawing time otherwise
        outward = np.array([np.sin(np.radians(-angle)), np.cos(np.radians(angle))]) * (1 if angle else -1)
        right, up = 0.47 * outward  # inches
        transform = axes.transAxes + ScaledTranslation(right, up, axes.figure.dpi_scale_trans)
        axes.text(x, y, label, transform=transform, rotation=angle, ha="center", va="center", size=8)
    axes.set_title("", y=1.0)  # likewise
    axes.grid(color="0.88", lw=0.5)
    axes.set_axisbelow(True)


def draw(found: Points, model: str, matrix: str, frame: str, random: str | None, geometry: Mapping[str, Any]) -> Sheet:
    """Figure 2 for one matrix: the whole triangle, and beside it the part where the heads are."""
    title = f"{model}: self, ortho and rotation of every head, {captions.matrix_name(matrix)}"
    text = caption(found, frame, random, geometry)
    if not len(found.layer):
        return note(title, text, captions.NO_SELF)
    sheet = Sheet(3.2, title, text)
    layers = np.unique(found.layer)
    colors = ordered_colors(len(layers))
    whole = sheet.axes(0.55, 0.45, 2.45, 2.2, projection="ternary")
    _frame(whole, np.zeros(3), 1.0)
    _marks(whole, found, colors, 7, np.zeros(3))
    extra = [mark[None] for mark in (found.random, found.closed_form) if mark is not None]
    low, size = enlarged(np.concatenate([found.shares, *extra]))
    part = sheet.axes(3.75, 0.45, 2.45, 2.2, projection="ternary")
    _frame(part, low, size)
    _marks(part, found, colors, 10, low)
    corners = np.tile(low, (4, 1)) + size * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    whole.plot(*corners.T, color="0.45", lw=0.7, zorder=1)
    marks, labels = part.get_legend_handles_labels()
    sheet.legend(marks, 2.75, 0.05, labels=labels, handlelength=2.2)
    color_key(sheet.axes(6.62, 0.35, 0.16, 2.7), colors, [int(n) for n in layers], "layer")
    return sheet
