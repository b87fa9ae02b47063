"""Composition between heads: every earlier head with every later one as a picture, and the strongest pairs by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from headmaps.figures.panels import Panels
from headmaps.figures.style import BLUE_WHITE_RED, Sheet, ticks

Float = NDArray[np.float64]

MOST_CELLS = 384
"""A picture of more heads a side than this shows the largest of each block of them."""

WAY_TEXTS = {"V": "values", "Q": "queries", "K": "keys"}
LISTED = 8
WITHIN_COLOURS = 0.995
"""Share of the cells within the colours' range: a few strongest pairs would bleach all others; they are listed."""


@dataclass(frozen=True)
class Picture:
    """One way of reading, every pair of heads.

    Attributes:
        way: V, Q, K ...
        excess: (N, N) composition score minus its root mean square by chance; rows writers, columns readers, heads
            ordered by layer; NaN where the writer is not earlier.
    """

    way: str
    excess: Float


def picture(layers: Sequence[int], files: Mapping[int, Mapping[str, NDArray[Any]]], d: int, way: str) -> Picture:
    """Gather one way from the arrays of all reading layers.

    Args:
        layers: the model's layers, ascending.
        files: reading layer -> its arrays.
        d: d_model.
        way: V, Q, K ...
    """
    place = {layer: index for index, layer in enumerate(layers)}
    H = next(iter(files.values()))["writer_participation"].shape[1]
    excess = np.full((len(layers) * H, len(layers) * H), np.nan)
    for layer, arrays in files.items():
        column = slice(place[layer] * H, (place[layer] + 1) * H)
        for writer, square in zip(arrays["writer_layers"].tolist(), arrays[f"square_{way}"], strict=True):
            excess[place[writer] * H : (place[writer] + 1) * H, column] = np.sqrt(square) - d**-0.5
    return Picture(way, excess)


def pooled(values: Float, most: int = MOST_CELLS) -> tuple[Float, int]:
    """The largest value of each block of k x k cells, k as small as gives at most `most` cells a side; and k."""
    k = -(-len(values) // most)
    if k == 1:
        return values, 1
    size = -(-len(values) // k) * k
    padded = np.full((size, size), -np.inf)
    padded[: len(values), : len(values)] = np.where(np.isnan(values), -np.inf, values)
    blocks = padded.reshape(size // k, k, size // k, k).max(axis=(1, 3))
    return np.where(np.isneginf(blocks), np.nan, blocks), k


def limit(values: Float) -> tuple[float, int]:
    """Where the colours of some cells end, and how many lie beyond."""
    sizes = np.abs(values[np.isfinite(values)])
    shown = float(np.quantile(sizes, WITHIN_COLOURS)) if sizes.size else 0.0
    return (shown, int((sizes > shown).sum())) if shown > 0 else (float(sizes.max(initial=0.0)) or 1.0, 0)


def caption(frame: str, d: int, k: int, shown: float, beyond: int) -> str:
    """What a cell is and what chance gives."""
    text = (
        f"{frame} A cell is an earlier head (up) whose output a later head (along) reads: with its values (V), queries "
        "(Q) or keys (K). Colour: ‖W₁W₂‖ / (‖W₁‖ ‖W₂‖), Frobenius norms, minus the root mean square of heads that know "
        f"nothing of each other, 1/√{d} = {d**-0.5:.3f}; red above chance, blue below. Heads are ordered by layer, "
        "lines part the layers. "
    )
    if k > 1:
        text += f"Each cell shows the largest of {k} × {k} pairs. "
    text += f"Colours end at ±{shown:.2g}" + (f"; {beyond} cells lie beyond. " if beyond else ". ")
    return text + (
        "Scores say what could pass from head to head, not that it does: attention "
        "patterns, norms between the layers and MLPs are not in them. Strongest pairs: layer.head of writer and "
        "reader, the score, and in brackets the distance of its square from chance in standard deviations."
    )


def draw(
    pictures: Sequence[Picture], pairs: Mapping[str, Sequence[Mapping[str, Any]]], layers: Sequence[int], d: int,
    title: str, frame: str,
) -> Sheet:  # fmt: skip
    """One panel a way, and a last one with the strongest pairs of each."""
    cells = [pooled(each.excess) for each in pictures]
    k = cells[0][1]
    there = np.concatenate([values[np.isfinite(values)] for values, _ in cells])
    shown, beyond = limit(there)
    panels = Panels(len(pictures) + 1, height=2.55, right=0.62)
    sheet = Sheet(panels.total, title, caption(frame, d, k, shown, beyond))
    for number, (each, (values, _)) in enumerate(zip(pictures, cells, strict=True)):
        axes = panels.axes(sheet, number, f"{each.way}: read by {_way_text(each.way)}")
        image = axes.imshow(
            values, cmap=BLUE_WHITE_RED, vmin=-shown, vmax=shown, origin="lower", aspect="auto",
            extent=(0, len(layers), 0, len(layers)),
        )  # fmt: skip
        _layer_axes(axes, layers)
        left, top = panels.place(number)
        bar = sheet.figure.colorbar(image, cax=sheet.axes(left + panels.width + 0.08, top, 0.09, panels.height))
        bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    _list(sheet, panels, len(pictures), pairs)
    return sheet


def _way_text(way: str) -> str:
    letter, _, part = way.partition("_")
    return WAY_TEXTS[letter] + (f", {part} part" if part else "")


def _layer_axes(axes: Axes, layers: Sequence[int]) -> None:
    chosen = ticks(len(layers), 10)
    names = [str(layers[i]) for i in chosen]
    axes.set_xticks([i + 0.5 for i in chosen], names)
    axes.set_yticks([i + 0.5 for i in chosen], names)
    for edge in range(1, len(layers)):
        axes.axhline(edge, color="0.85", lw=0.2)
        axes.axvline(edge, color="0.85", lw=0.2)
    axes.set_xlabel("layer of the reader")
    axes.set_ylabel("layer of the writer")


def _list(sheet: Sheet, panels: Panels, number: int, pairs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The strongest pairs of each way as text: writer → reader (layer.head), score, z."""
    left, top = panels.place(number)
    column = (panels.width + panels.right - 0.05) / max(1, len(pairs))
    for index, (way, rows) in enumerate(pairs.items()):
        lines = [f"{way}: strongest", ""]
        for row in rows[:LISTED]:
            writer, reader = (f"{row[f'{who}_layer']}.{row[f'{who}_head']}" for who in ("writer", "reader"))
            lines.append(f"{writer} → {reader}  {row['composition']:.2f}")
            lines.append(f"    (z {row['z']:.0f})")
        sheet.text(left + index * column, top, "\n".join(lines), size=6.0)
