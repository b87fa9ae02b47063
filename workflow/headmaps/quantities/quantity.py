"""What the registry records of one per-head scalar."""

from collections.abc import Callable
from dataclasses import dataclass

from headmaps.quantities.pairs import Float, HeadPairs

HAAR_KINDS = ("gaussian", "spectrum")
KINDS = (*HAAR_KINDS, "shuffle", "rows", "internal", "unpaired")


@dataclass(frozen=True)
class Quantity:
    """One per-head scalar.

    Attributes:
        name: column of heads.csv.
        label: words for axes and captions.
        formula: the formula in plain text, in the notation of `docs/quantities.md`.
        meaning: one sentence for a reader.
        compute: HeadPairs with leading axes (...) -> (...).
        range: the values it can take.
        source: where the formula comes from.
        transpose: the quantity it turns into when input and output side change places; itself if symmetric.
        degree: its power of c when W becomes c W; 0 for quantities without a scale.
        nulls: baseline kinds that ask something of it (a kind that keeps it constant does not).
        cost: what it needs beyond products: "products", "svd" (of Z) or "eigenvalues".
        unit: its unit, "" if it is a pure number; "weight" for the unit of W's entries.
    """

    name: str
    label: str
    formula: str
    meaning: str
    compute: Callable[[HeadPairs], Float]
    range: str
    source: str
    transpose: str = ""
    degree: int = 0
    nulls: tuple[str, ...] = KINDS
    cost: str = "products"
    unit: str = ""

    def counterpart(self) -> str:
        """Name of the quantity that this one becomes when W is transposed."""
        return self.transpose or self.name
