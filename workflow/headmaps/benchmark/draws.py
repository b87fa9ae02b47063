"""Random draws of sigma and Z for the Haar null: at full size, and by numbers of which none grows with d_model."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.benchmark.kernel import ours
from headmaps.decomposition import in_bases
from headmaps.haar import gaussian_sigmas, haar_blocks
from headmaps.seeds import generator

Float = NDArray[np.float64]
SHAPES = ((2048, 64), (8192, 128))
DRAWS = 32


def _factors(d: int, r: int, number: int) -> tuple[Float, Float]:
    stream = generator("literal", number)
    return stream.standard_normal((d, r)), stream.standard_normal((r, d))


def literal(d: int, r: int) -> list[Any]:
    """sigma and Z of Gaussian factors that are drawn, then decomposed by the fast kernel."""
    return [ours(*_factors(d, r, number)) for number in range(DRAWS)]


def literal_Z(d: int, r: int) -> list[Float]:
    """Z alone: `Q_B^T Q_A` of the same factors, without a singular value decomposition."""
    return [in_bases(*_factors(d, r, number))[2] for number in range(DRAWS)]


def _streams() -> list[np.random.Generator]:
    return [generator("pooled", number) for number in range(DRAWS)]


def pooled(d: int, r: int) -> tuple[Float, Float]:
    """sigma and Z as the pool draws them."""
    streams = _streams()
    return haar_blocks(streams, d, r), gaussian_sigmas(streams, d, r)


def pooled_Z(d: int, r: int) -> Float:
    """Z alone as the pool draws it."""
    return haar_blocks(_streams(), d, r)


COMPARISONS: dict[str, tuple[Callable[[int, int], Any], Callable[[int, int], Any]]] = {
    "sigma and Z": (literal, pooled),
    "Z alone": (literal_Z, pooled_Z),
}
