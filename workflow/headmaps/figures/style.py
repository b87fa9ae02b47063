"""How every figure looks, and how it is written so that equal results give equal bytes.

Sheets are laid out in inches from the top left corner: no layout engine runs, so that drawing is fast and the same
everywhere. The user's own matplotlibrc and installed fonts do not enter.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import headmaps.figures.lean  # noqa: F401  isort: skip  before matplotlib's classes are made
import matplotlib as mpl
from matplotlib import colormaps, font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from headmaps.records import atomic_path

WIDTH = 7.2  # inches: a page of two columns
DPI = 200  # of PNG, and of what is a picture inside SVG and PDF
CAPTION_SIZE = 7.0
TITLE_SIZE = 10.0
_MARGIN = 0.12
_LEADING = 1.3  # line height in font sizes
_BASELINE = 0.26  # below the middle of a line, in font sizes: half of what DejaVu ascends more than it descends

SIGMA, SELF, ORTHO, ROTATION, BIAS, STATES = "#1f77b4", "#ff7f0e", "#d62728", "#2ca02c", "#7b4fb5", "#8c564b"
"""The article's colours of sigma, self, ortho, rotation, the bias and the hidden states."""

# Okabe and Ito's palette stays apart for colour-blind readers; the line styles stay apart in grey print
BASELINE_STYLES: dict[str, tuple[str, Any]] = {
    "gaussian": ("#000000", "-"),
    "spectrum": ("#56b4e9", (0, (4, 1.5))),
    "shuffle": ("#e69f00", (0, (1, 1))),
    "rows": ("#009e73", (0, (5, 1, 1, 1))),
    "internal": ("#cc79a7", (0, (7, 2))),
    "unpaired": ("#d55e00", (0, (3, 1, 1, 1, 1, 1))),
}

_RC: dict[Any, Any] = {
    "svg.hashsalt": "headmaps",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlepad": 4.0,
    "axes.labelsize": 8.0,
    "axes.labelpad": 2.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "text.hinting": "no_hinting",  # at this resolution hinting costs time and spoils the spacing
    "path.simplify": False,
    "image.interpolation": "none",
    "image.composite_image": False,
}


def use_style() -> None:
    """Set matplotlib's parameters for this process: its defaults, ours over them, and the fonts it ships alone."""
    mpl.rcdefaults()
    mpl.rcParams.update(_RC)
    bundled = str(Path(mpl.get_data_path()) / "fonts")
    manager = font_manager.fontManager
    manager.ttflist = [font for font in manager.ttflist if font.fname.startswith(bundled)]


use_style()

BLUE_WHITE_RED = LinearSegmentedColormap.from_list(
    "blue_white_red", ["#08306b", "#3b80c4", "#ffffff", "#e0553f", "#7f0010"], N=511
)


def ordered_colors(count: int) -> NDArray[np.float64]:
    """RGBA (count, 4) from viridis, dark to light: ordered, no two alike, and kept apart by colour-blind readers."""
    # its last yellow cannot be seen as a thin line on white
    return np.asarray(colormaps["viridis"](np.linspace(0.0, 0.92, count) if count > 1 else np.array([0.25])))


class Lines(Text):
    """Lines of text one below the other, flush left, `_LEADING` font sizes apart.

    Matplotlib would measure every line before it sets it, which takes as long again and moves the baselines apart by
    what each line happens to have above and below.
    """

    def __init__(self, x: float, y: float, text: str, **options: Any) -> None:
        super().__init__(x, y, text, parse_math=False, linespacing=_LEADING, **options)

    def draw(self, renderer: Any) -> None:
        """Set the lines at the places that `_LEADING` gives them, whatever they say."""
        if not self.get_visible() or not self.get_text():
            return
        lines = self.get_text().split("\n")
        x, y = self.get_transform().transform(self.get_position())
        em = renderer.points_to_pixels(self.get_fontsize())
        top = y if self.get_verticalalignment() == "top" else y + len(lines) * _LEADING * em
        height = renderer.get_canvas_width_height()[1]
        pen = renderer.new_gc()
        pen.set_foreground(to_rgba(self.get_color()), isRGBA=True)
        renderer.open_group("text", self.get_gid())
        for number, line in enumerate(lines):
            baseline = top - ((number + 0.5) * _LEADING + _BASELINE) * em
            renderer.draw_text(
                pen, x, height - baseline if renderer.flipy() else baseline, line, self.get_fontproperties(), 0.0
            )
        renderer.close_group("text")
        pen.restore()
        self.stale = False


class Sheet:
    """A figure laid out in inches from its top left corner, with a title above and a caption below.

    Args:
        height: the height of what is drawn between title and caption.
        title: one line or more; wrapped to the width.
        caption: a paragraph; wrapped to the width.
        width: inches.
    """

    def __init__(self, height: float, title: str, caption: str, width: float = WIDTH) -> None:
        self.title, self.caption, self.width = title, caption, width
        inner = width - 2 * _MARGIN
        heading = wrap(title, inner, TITLE_SIZE, bold=True)
        body = wrap(caption, inner, CAPTION_SIZE)
        self._top = _MARGIN + _height(heading, TITLE_SIZE) + 0.06
        self.height = self._top + height + _height(body, CAPTION_SIZE) + 2 * _MARGIN
        self.figure = Figure(figsize=(width, self.height), facecolor="white")
        FigureCanvasAgg(self.figure)
        left, top = _MARGIN / width, 1 - _MARGIN / self.height
        self._heading = Lines(left, top, heading, va="top", size=TITLE_SIZE, weight="bold")
        self._body = Lines(left, _MARGIN / self.height, body, va="bottom", size=CAPTION_SIZE)
        for lines in (self._heading, self._body):
            lines.set_transform(self.figure.transFigure)
            lines.set_figure(self.figure)
            self.figure.texts.append(lines)

    def retitle(self, title: str) -> None:
        """Change the title to another of the same number of lines."""
        self.title = title
        self._heading.set_text(wrap(title, self.width - 2 * _MARGIN, TITLE_SIZE, bold=True))

    def recaption(self, caption: str) -> None:
        """Change the caption; it must not need more lines than the first one."""
        self.caption = caption
        self._body.set_text(wrap(caption, self.width - 2 * _MARGIN, CAPTION_SIZE))

    def box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        """A rectangle in inches (from the left, from under the title) as matplotlib's fractions."""
        bottom = self.height - self._top - top - height
        return left / self.width, bottom / self.height, width / self.width, height / self.height

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Axes at a place in inches, measured from the left edge and from under the title."""
        return self.figure.add_axes(self.box(left, top, width, height), **options)

    def text(self, left: float, top: float, text: str, **options: Any) -> None:
        """Text at a place in inches, measured like `axes`."""
        x, y, _, _ = self.box(left, top, 0.0, 0.0)
        self.figure.text(x, y, text, **{"size": 7.0, "va": "top", "parse_math": False, **options})

    def legend(self, marks: Sequence[Any], left: float, top: float, **options: Any) -> None:
        """A legend whose top left corner is at a place in inches, measured like `axes`."""
        x, y, _, _ = self.box(left, top, 0.0, 0.0)
        place = {"loc": "upper left", "bbox_to_anchor": (x, y), "borderaxespad": 0.0, "borderpad": 0.0}
        self.figure.legend(handles=marks, **{**place, "labelspacing": 0.3, "handlelength": 1.4, **options})


def note(title: str, caption: str, text: str) -> Sheet:
    """A sheet that says in place of a drawing why there is none."""
    sheet = Sheet(1.0, title, caption)
    sheet.text(sheet.width / 2, 0.4, text, ha="center", size=9.0)
    return sheet


def _height(text: str, size: float) -> float:
    return (text.count("\n") + 1) * size * _LEADING / 72 if text else 0.0


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width in inches of one line of text in the figures' font, without kerning."""
    return sum(_advance(letter, bold) for letter in text) * size / 72


@lru_cache(maxsize=1024)
def _advance(letter: str, bold: bool) -> float:
    """How far a letter moves the pen, in font sizes."""
    font = FontProperties(family="DejaVu Sans", size=100.0, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(f"n{letter}n", font, False)[0] - _bar(bold)) / 100.0


@lru_cache(maxsize=2)
def _bar(bold: bool) -> float:
    font = FontProperties(family="DejaVu Sans", size=100.0, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent("nn", font, False)[0])


def wrap(text: str, width: float, size: float, bold: bool = False) -> str:
    """Break a paragraph into lines no wider than `width` inches; a word wider than a line is broken too."""
    space = text_width(" ", size, bold)
    lines: list[str] = []
    line, used = "", 0.0
    for word in _fitting(text.split(), width, size, bold):
        own = text_width(word, size, bold)
        if line and used + space + own > width:
            lines.append(line)
            line, used = "", 0.0
        line, used = (f"{line} {word}", used + space + own) if line else (word, own)
    return "\n".join([*lines, line])


def _fitting(words: Iterable[str], width: float, size: float, bold: bool) -> Iterable[str]:
    for word in words:
        rest = word
        while len(rest) > 1 and text_width(rest, size, bold) > width:
            part = max(1, int(len(rest) * width / text_width(rest, size, bold)) - 1)
            yield rest[:part]
            rest = rest[part:]
        yield rest


def ticks(count: int, most: int = 12) -> list[int]:
    """Round integer ticks of the indices 0 .. count - 1, at most about `most` of them."""
    step = next(
        s for s in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1024, count) if count <= s * most
    )
    return list(range(0, count, step))


def many(marks: int) -> bool:
    """Whether marks are too many to be drawn one by one in SVG and PDF, and become a picture there."""
    return marks > 4000


def layer_ticks(axes: Axes, layers: NDArray[np.int64]) -> None:
    """Round ticks along the layers (ascending), half a layer of room at both ends, and the axis' label."""
    first, last = int(layers[0]), int(layers[-1])
    axes.set_xticks([first + place for place in ticks(last - first + 1, 10)])
    axes.set_xlim(first - 0.6, last + 0.6)
    axes.set_xlabel("layer")


def color_key(axes: Axes, colors: NDArray[np.float64], labels: Sequence[object], title: str) -> None:
    """A column of colours, the first at the bottom, with their labels at the right: the legend of many classes."""
    axes.imshow(colors[:, None, :3], aspect="auto", origin="lower", extent=(0, 1, -0.5, len(colors) - 0.5))
    chosen = ticks(len(colors), 16)
    axes.set_yticks(chosen, [str(labels[i]) for i in chosen])
    axes.yaxis.tick_right()
    axes.set_xticks([])
    axes.set_title(title, size=7.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def metadata(form: str, title: str, caption: str) -> dict[str, str | None]:
    """What a file says about itself: its caption travels with it; no dates."""
    if form == "svg":
        return {"Title": title, "Description": caption, "Creator": "headmaps", "Date": None}
    if form == "png":
        return {"Title": title, "Description": caption, "Software": None}
    return {"Title": title, "Subject": caption, "Creator": "headmaps", "Producer": None, "CreationDate": None}


def save(sheet: Sheet, paths: Iterable[Path]) -> None:
    """Write a sheet to each path, in the format that its suffix names: whole or not at all, equal bytes each time."""
    for path in paths:
        form = path.suffix.removeprefix(".")
        about = metadata(form, sheet.title, sheet.caption)
        with atomic_path(path) as temporary:
            if form == "png":
                _write_png(sheet.figure, temporary, about)
            else:
                sheet.figure.savefig(temporary, format=form, dpi=DPI, metadata=about)


def _write_png(figure: Figure, path: Path, about: dict[str, str | None]) -> None:
    """As matplotlib writes it, but without an alpha channel and with the fastest good compression."""
    figure.set_dpi(DPI)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    text = PngInfo()
    for key, value in about.items():
        if value is not None:
            text.add_text(key, value)
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    Image.fromarray(pixels).save(path, format="png", pnginfo=text, dpi=(DPI, DPI), compress_level=2)


def save_pages(sheets: Iterable[Sheet], path: Path, title: str) -> str:
    """Write sheets as the pages of one PDF, in order; returns the first page's caption."""
    from matplotlib.backends.backend_pdf import PdfPages

    first = ""
    with atomic_path(path) as temporary, PdfPages(temporary, metadata=metadata("pdf", title, "")) as pages:
        for sheet in sheets:
            first = first or sheet.caption
            pages.savefig(sheet.figure, dpi=DPI)
    return first
