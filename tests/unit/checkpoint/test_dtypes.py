"""Stored types are decoded bit for bit: compared with ml_dtypes over every pattern there is."""

import ml_dtypes
import numpy as np
import pytest

from headmaps.checkpoint.dtypes import BITS, WEIGHTS, decode, in_c_order, size_in_bytes
from headmaps.errors import CheckpointError

REFERENCE = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize("dtype", REFERENCE)
def test_every_pattern_decodes_as_in_ml_dtypes(dtype: str) -> None:
    patterns = np.arange(1 << BITS[dtype], dtype=f"u{BITS[dtype] // 8}")
    found = decode(patterns.tobytes(), dtype, patterns.shape)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = patterns.view(REFERENCE[dtype]).astype(np.float32)
    assert found.dtype == np.float32
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~numbers)
    np.testing.assert_array_equal(found[numbers].view("u4"), expected[numbers].view("u4"))


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F64", np.float64)])
def test_wide_types_keep_their_precision(dtype: str, kind: type) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(kind)
    found = decode(values.tobytes(), dtype, (3, 5))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, values)


def test_types_that_hold_no_plain_numbers_are_refused() -> None:
    for dtype in set(BITS) - set(WEIGHTS):
        with pytest.raises(CheckpointError, match="do not hold plain numbers"):
            decode(b"", dtype, (0,))


def test_sizes_of_packed_types() -> None:
    assert size_in_bytes("F4", (3, 4)) == 6
    assert size_in_bytes("F6_E2M3", (4,)) == 3
    assert size_in_bytes("F4", (3,)) is None
    assert size_in_bytes("BF16", ()) == 2
    assert size_in_bytes("F32", (0, 7)) == 0


def test_a_strided_view_is_put_in_c_order() -> None:
    base = np.arange(24, dtype="<u2").reshape(4, 6)
    view = base[1:4, 2:5].T
    span = base.ravel()[8:23]  # from the view's first element, 8, to its last, 22
    stride = [step // 2 for step in view.strides]
    assert in_c_order(span.tobytes(), "BF16", view.shape, stride) == np.ascontiguousarray(view).tobytes()
