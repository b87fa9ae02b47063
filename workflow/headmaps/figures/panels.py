"""A page of panels of one size, and the quantities that the figures over all heads show."""

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.axes import Axes

from headmaps.figures.style import WIDTH, Sheet
from headmaps.quantities import REGISTRY

MAIN = (
    "self_mean",
    "self_energy",
    "rotation_mean",
    "rotation_energy",
    "ortho_mean",
    "ortho_energy",
    "overlap_mean",
    "frobenius_norm",
)
"""Left column: plain means over a head's pairs; right: shares weighted by sigma squared; last row: sign and size."""

SIGNED = frozenset({"overlap_mean"})


@dataclass(frozen=True)
class Panels:
    """Panels in two columns, in inches.

    Attributes:
        count: how many. height: of one panel. right: room at the right of each panel (for a colour bar).
        head: room above the first row (for a legend).
    """

    count: int
    height: float
    right: float = 0.16
    head: float = 0.0
    left: float = 0.55
    above: float = 0.26
    below: float = 0.44

    @property
    def width(self) -> float:
        """Width of one panel."""
        return (WIDTH - 0.1) / 2 - self.left - self.right

    @property
    def total(self) -> float:
        """Height of the page's drawing."""
        rows = (self.count + 1) // 2
        return self.head + rows * (self.height + self.above + self.below)

    def place(self, number: int) -> tuple[float, float]:
        """Left and top of a panel, filled row by row."""
        row, column = divmod(number, 2)
        left = column * (self.left + self.width + self.right) + self.left
        return left, self.head + row * (self.height + self.above + self.below) + self.above

    def axes(self, sheet: Sheet, number: int, title: str, wide: bool = False) -> Axes:
        """The axes of a panel, titled at the left; a wide one takes both columns."""
        width = 2 * self.width + self.left + self.right if wide else self.width
        axes = sheet.axes(*self.place(number), width, self.height)
        axes.set_title(title, loc="left", y=1.0)  # a fixed height spares a search for a free one
        return axes


def labels(names: tuple[str, ...] = MAIN) -> Iterator[tuple[str, str]]:
    """Name and label of each quantity."""
    for name in names:
        yield name, REGISTRY[name].label
