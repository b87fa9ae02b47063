"""What the bytes of a stored tensor mean: sizes of the stored types, and their exact decoding to floats.

Every type here is decoded without rounding: each of its values is a float32 (or float64) value. Integers and the
packed types of quantised checkpoints are listed, so that headers can be checked, but not decoded: as weights they
mean nothing without scales.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from headmaps.errors import CheckpointError

if TYPE_CHECKING:  # sizes are needed to read a header, numpy only to decode
    import numpy as np
    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element of each type of the safetensors format (version 0.8)."""

WEIGHTS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""The types that hold weights as plain numbers; `decode` reads these."""


def size_in_bytes(dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes of a tensor in C order; None when its last byte is not full (a packed type of odd size)."""
    bits = BITS[dtype] * prod(shape)
    return None if bits % 8 else bits // 8


def decode(data: "Buffer", dtype: str, shape: Sequence[int]) -> "NDArray[Any]":
    """The tensor's values: float64 for F64, else float32, bit for bit what was stored.

    Args:
        data: the tensor's bytes, little-endian, C order.
        dtype: one of `WEIGHTS`.
        shape: rows first.

    Raises:
        CheckpointError: `dtype` does not hold plain numbers.
    """
    import numpy as np

    if dtype == "F64":
        values: NDArray[Any] = np.frombuffer(data, "<f8")
    elif dtype == "F32":
        values = np.frombuffer(data, "<f4")
    elif dtype == "F16":
        values = np.frombuffer(data, "<f2").astype("<f4")
    elif dtype == "BF16":
        values = _bfloat16(np.frombuffer(data, "<u2"))
    elif dtype == "F8_E5M2":  # the upper half of a float16
        values = (np.frombuffer(data, "u1").astype("<u2") << 8).view("<f2").astype("<f4")
    elif dtype == "F8_E4M3":
        values = _float8_e4m3_table()[np.frombuffer(data, "u1")]
    else:
        raise CheckpointError(f"tensors of type {dtype} do not hold plain numbers", expected=", ".join(WEIGHTS))
    return values.reshape(tuple(shape))


def _bfloat16(bits: "NDArray[np.uint16]") -> "NDArray[Any]":
    wide = bits.astype("<u4")
    wide <<= 16  # a bfloat16 is the upper half of a float32
    return wide.view("<f4")


def _float8_e4m3_table() -> "NDArray[np.float32]":
    """All 256 values of float8_e4m3fn (OCP 8-bit floating point, 2023): bias 7, no infinities, NaN at 0x7f and 0xff."""
    import numpy as np

    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & 127) == 127] = np.nan
    return np.where(code >> 7, -magnitude, magnitude).astype("<f4")


def in_c_order(data: "Buffer", dtype: str, shape: Sequence[int], stride: Sequence[int]) -> bytes:
    """The bytes of a strided view in C order.

    Args:
        data: the bytes from the view's first element to its last.
        stride: in elements; the caller has checked that the view stays inside `data`.
    """
    import numpy as np

    width = BITS[dtype] // 8
    flat = np.frombuffer(data, f"<u{width}")
    view = np.lib.stride_tricks.as_strided(flat, tuple(shape), tuple(step * width for step in stride), writeable=False)
    return np.ascontiguousarray(view).tobytes()
