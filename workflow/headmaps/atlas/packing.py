"""Arrays as text inside a page: byte planes, deflated, in base64.

The inverse is `assets/blocks.js`. Numbers are little-endian; the bytes of an array are written plane by plane
(all first bytes, then all second bytes ...), because the high bytes of similar numbers deflate well together.
"""

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z_STEP = 0.001
"""Entries of Z, which lie in [-1, 1], are kept to the nearest thousandth: finer than a colour can show."""

_MISSING = 0xFFFF
_MANTISSA_KEPT = 0xFFFFFF00  # 15 of the 23 stored mantissa bits: a relative error below 1.6e-5


def deflate(data: bytes) -> str:
    """Raw deflate (no header, so no date) in base64.

    Run-length matching only: noise has no longer matches, and the search for them costs a hundred times the time
    (measured on Gaussian entries: the same size within 1 percent).
    """
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode("ascii")


def planes(array: NDArray[Any]) -> bytes:
    """The bytes of an array in C order, plane by plane."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize).T.tobytes()


def pack_float64(array: NDArray[Any]) -> str:
    """Numbers kept exactly."""
    return deflate(planes(np.asarray(array, dtype="<f8")))


def pack_single(array: NDArray[Any]) -> str:
    """Numbers kept as float32."""
    return deflate(planes(np.asarray(array, dtype="<f4")))


def pack_rounded(array: NDArray[Any]) -> str:
    """Numbers kept to at least four significant digits (float32 whose last mantissa byte is rounded away)."""
    values = np.asarray(array, dtype="<f4")
    bits = np.ascontiguousarray(values).view("<u4")
    finite = np.isfinite(values)
    rounded = np.where(finite, (bits + np.uint32(0x80)) & np.uint32(_MANTISSA_KEPT), bits).astype("<u4")
    return deflate(planes(rounded))


def pack_thousandths(array: NDArray[Any]) -> str:
    """Numbers in [-1, 1] to the nearest `Z_STEP`, as zigzag 16-bit integers (0, -1, 1, -2 ... -> 0, 1, 2, 3 ...).

    Raises:
        ValueError: an entry lies outside [-1, 1] by more than rounding. NaN is kept, as the largest integer.
    """
    values = np.asarray(array, dtype=np.float64)
    missing = np.isnan(values)
    steps = np.rint(np.where(missing, 0.0, values) / Z_STEP).astype(np.int32)
    if steps.size and np.abs(steps).max() > 1001:
        raise ValueError(f"entries must lie in [-1, 1]; found {values.flat[np.abs(steps).argmax()]!r}")
    zigzag = (steps << 1) ^ (steps >> 31)
    return deflate(planes(np.where(missing, _MISSING, zigzag).astype("<u2")))
