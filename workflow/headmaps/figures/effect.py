"""Figures 3 and 5: what one head does to each direction that it reads, and with which direction it writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from headmaps.blocks import block_labels
from headmaps.decomposition import pair_quantities
from headmaps.figures import captions
from headmaps.figures.style import BIAS, BLUE_WHITE_RED, ORTHO, ROTATION, SELF, SIGMA, STATES, Sheet, note, ticks

Array = NDArray[np.float64]
_NOTHING = "this head has no singular value above zero"
_TWO_STREAMS = "the two sides of this head are different streams: vᵢ · uⱼ does not exist"
QUANTILES = (0.01, 0.99)
# In the order of `headmaps.bias_lines`, the candidates for the article's line first
_BIASES = (
    "b_V_W_O", "b_Q_W_K", "b_K_W_Q", "b_O", "norm_bias_W_V_W_O", "norm_bias_W_Q_W_K", "norm_bias_W_K_W_Q", "norm_bias",
)  # fmt: skip
# The matrix's own bias is drawn full, the others lighter and broken
_BIAS_LINES: tuple[tuple[str, Any], ...] = (
    (BIAS, "-"),
    ("#a48bd0", (0, (4, 1.5))),
    ("#a48bd0", (0, (1, 1))),
    ("#c9b8e6", (0, (5, 1, 1, 1))),
)


@dataclass(frozen=True)
class Effect:
    """One head, as figures 3 and 5 draw it.

    Attributes:
        sigma: (r,). Z: (r, r), rows output vectors, columns input vectors.
        comparable: whether Z exists; it does not where the two sides are different streams.
        unresolved: how many pairs the stored precision cannot tell apart.
        bias_input, bias_output: name of the bias -> its projection (r,) on each u_j, on each v_i.
        band_input, band_output: (2, r) quantiles of the hidden states on each u_j and v_i, or None without states.
    """

    sigma: Array
    Z: Array
    comparable: bool = True
    unresolved: int = 0
    bias_input: Mapping[str, Array] = field(default_factory=dict)
    bias_output: Mapping[str, Array] = field(default_factory=dict)
    band_input: Array | None = None
    band_output: Array | None = None

    @property
    def biases(self) -> list[str]:
        """Names of the biases with a line, the matrix's own first."""
        names = {**self.bias_input, **self.bias_output}
        return sorted(names, key=lambda name: (_BIASES.index(name) if name in _BIASES else len(_BIASES), name))


def head_effect(
    decomposition: Mapping[str, NDArray[Any]], head: int, bands: tuple[Array, Array] | None = None
) -> Effect:
    """Take one head, its pairs up to its rank, out of a layer's decomposition."""
    r = int(decomposition["rank"][head])

    def biases(side: str) -> dict[str, Array]:
        start = f"bias_{side}_"
        found = {name.removeprefix(start): a[head, :r] for name, a in decomposition.items() if name.startswith(start)}
        return {name: line for name, line in sorted(found.items()) if np.any(line)}

    band_input, band_output = (bands[0][:, :r], bands[1][:, :r]) if bands else (None, None)
    return Effect(
        decomposition["sigma"][head, :r],
        decomposition["Z"][head, :r, :r],
        bool(decomposition.get("comparable", True)),
        unresolved(decomposition, head, r),
        biases("input"),
        biases("output"),
        band_input,
        band_output,
    )


def unresolved(decomposition: Mapping[str, NDArray[Any]], head: int, r: int) -> int:
    """How many of a head's pairs lie in blocks that the stored precision cannot tell apart (`headmaps.blocks`)."""
    noise = decomposition.get("precision_sigma")
    if noise is None or r == 0:
        return 0
    labels = block_labels(decomposition["sigma"][head, :r], np.ones(r, dtype=bool), noise[head])
    return int(np.isin(labels, np.flatnonzero(np.bincount(labels) > 1)).sum())


def bias_label(name: str) -> str:
    """`norm_bias_W_V_W_O` as `β W_V W_O`."""
    return name.replace("norm_bias", "β").replace("_W_", " W_")


def caption(effect: Effect, frame: str, matrix: str, geometry: Mapping[str, Any], role: str = "") -> str:
    """What figures 3 and 5 show for one head, and what they leave out and why."""
    if not len(effect.sigma) or not effect.comparable:
        return f"{frame} {captions.no_self(geometry)}"
    text = f"{frame} " + (f"Chosen as the head with the {role}. " if role else "")
    text += (
        "Heat map: Z, with entry vᵢ · uⱼ (rows: output vectors, columns: input vectors, σ descending). Above, by input "
        "index: σ, and σ times self, ortho and rotation of the pair. At the left, by output index: σ, dashed at 1. "
    )
    if effect.biases:
        which = captions.listed([bias_label(name) for name in effect.biases])
        beta = ", β being the norm's bias" if "β" in which else ""
        text += f"Purple: the bias ({which}{beta}) projected on each vector. "
    else:
        text += "No bias line: this part of the checkpoint has no bias. "
    if effect.band_input is None:
        text += "The band of hidden states is left out: no sampled states were given."
    else:
        side = "residual" if matrix == "value" else "normed"
        text += (
            "Brown: 0.01 to 0.99 quantiles of the sampled hidden states, normed as the head reads them on each input "
            f"vector, {side} ones on each output vector."
        )
    return text + captions.undetermined(effect.unresolved, len(effect.sigma))


@dataclass(frozen=True)
class _Places:
    """Inches: the heat map's square, the strips above it and at its left."""

    left: float = 2.3
    side: float = 3.75
    sigma: float = 1.0
    extra: float = 0.72
    gap: float = 0.1


def _strip(axes: Axes, turned: bool, lines: Sequence[tuple[Array, str, Any]], band: Array | None, level: float) -> None:
    """One strip of lines against the index; turned ones run along the heat map's left side."""
    index = np.arange(len(lines[0][0]) if lines else band.shape[1])  # type: ignore[union-attr]
    if band is not None:
        fill = axes.fill_betweenx if turned else axes.fill_between
        fill(index, band[0], band[1], color=STATES, alpha=0.35, lw=0)
    for line, color, style in lines:
        axes.plot(*((line, index) if turned else (index, line)), color=color, ls=style, lw=1.0)
    (axes.axvline if turned else axes.axhline)(level, color="0.3", lw=0.7, ls=(0, (4, 2)), zorder=0)
    limit = (len(index) - 0.5, -0.5) if turned else (-0.5, len(index) - 0.5)
    (axes.set_ylim if turned else axes.set_xlim)(*limit)
    (axes.yaxis if turned else axes.xaxis).set_tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    if turned:
        axes.set_xticks(two_ticks(*axes.get_xlim()))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=1, steps=[1, 2, 5, 10]))


def two_ticks(low: float, high: float) -> list[float]:
    """0 and one round number towards the farther end: all that a narrow strip has room for."""
    far = high if high >= -low else low
    size = 10.0 ** np.floor(np.log10(0.9 * abs(far))) if far else 1.0
    return [0.0, float(np.sign(far) * size * max(n for n in (1, 2, 5) if n * size <= max(0.9 * abs(far), size)))]


def _extras(effect: Effect) -> list[str]:
    return (["bias"] if effect.biases else []) + (["states"] if effect.band_output is not None else [])


def _bias_lines(effect: Effect, lines: Mapping[str, Array]) -> list[tuple[Array, str, Any]]:
    styles = dict(zip(effect.biases, _BIAS_LINES, strict=False))
    return [(lines[name], *styles[name]) for name in reversed(effect.biases) if name in lines and name in styles]


def _above(sheet: Sheet, effect: Effect, places: _Places, extra: bool) -> None:
    top = 0.0
    if extra:
        axes = sheet.axes(places.left, top, places.side, places.extra)
        _strip(axes, False, _bias_lines(effect, effect.bias_input), effect.band_input, 0.0)
        top += places.extra + places.gap
    axes = sheet.axes(places.left, top, places.side, places.sigma)
    parts = dict(zip(("overlap", "self", "rotation", "ortho"), pair_quantities(effect.Z), strict=True))
    colors = {"self": SELF, "ortho": ORTHO, "rotation": ROTATION}
    weighted = [(effect.sigma * parts[name], colors[name], "-") for name in ("ortho", "rotation", "self")]
    _strip(axes, False, [(effect.sigma, SIGMA, "-"), *weighted], None, 0.0)


def _left(sheet: Sheet, effect: Effect, places: _Places, top: float, extra: bool) -> None:
    room = places.left - 0.42
    width = 0.86 if extra else 1.0
    axes = sheet.axes(room - width, top, width, places.side)
    _strip(axes, True, [(effect.sigma, SIGMA, "-")], None, 1.0)
    axes.set_xlabel("σ")
    axes.set_xlim(0.0, 1.05 * max(1.0, float(effect.sigma.max())))
    axes.set_xticks(two_ticks(*axes.get_xlim()))
    axes.invert_xaxis()  # away from the heat map, as the strips above it rise away from it
    if extra:
        axes = sheet.axes(room - width - places.gap - 0.74, top, 0.74, places.side)
        _strip(axes, True, _bias_lines(effect, effect.bias_output), effect.band_output, 0.0)
        axes.set_xlabel(captions.listed(_extras(effect)))
        axes.invert_xaxis()


def _legend(sheet: Sheet, effect: Effect, places: _Places, extra: bool) -> None:
    left = places.left + places.side + 0.12
    top = 0.0
    if extra:
        marks = [
            Line2D([], [], color=color, ls=style, label=bias_label(name))
            for name, (color, style) in zip(effect.biases, _BIAS_LINES, strict=False)
        ]
        if effect.band_input is not None:
            marks.append(Line2D([], [], color=STATES, lw=5, alpha=0.35, label="states"))
        sheet.legend(marks, left, top)
        top += places.extra + places.gap
    entries = (("σ", SIGMA), ("σ ortho", ORTHO), ("σ rotation", ROTATION), ("σ self", SELF))
    sheet.legend([Line2D([], [], color=color, label=name) for name, color in entries], left, top)


def draw(effect: Effect, title: str, text: str) -> Sheet:
    """Figure 3 or 5 of one head: Z, the strips above and at the left of it, and their legend.

    Args:
        title: the sheet's title. text: its caption (`caption`).
    """
    places = _Places()
    extra = bool(effect.bias_input or effect.bias_output or effect.band_input is not None)
    above = places.sigma + places.gap + (places.extra + places.gap if extra else 0.0)
    if not len(effect.sigma) or not effect.comparable:
        return note(title, text, _NOTHING if effect.comparable else _TWO_STREAMS)
    sheet = Sheet(above + places.side + 0.42, title, text)
    _above(sheet, effect, places, extra)
    _left(sheet, effect, places, above, extra)
    _legend(sheet, effect, places, extra)
    axes = sheet.axes(places.left, above, places.side, places.side)
    limit = float(np.abs(effect.Z).max()) or 1.0
    image = axes.imshow(effect.Z, cmap=BLUE_WHITE_RED, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(ticks(len(effect.sigma)))
    axes.set_yticks(ticks(len(effect.sigma)))
    axes.set_xlabel("input (uⱼ)")
    axes.set_ylabel("output (vᵢ)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    bar = sheet.figure.colorbar(image, cax=sheet.axes(places.left + places.side + 0.14, above + 0.9, 0.14, 2.0))
    bar.ax.set_title("vᵢ · uⱼ", size=7.5)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], symmetric=True))
    bar.outline.set_linewidth(0.6)  # type: ignore[operator]
    return sheet
