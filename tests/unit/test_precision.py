"""Rounding steps against real rounding, and what they leave open of a head."""

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from headmaps.decomposition import decompose_layer
from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads
from headmaps.precision import FORMATS, Perturbed, formats_of, precision_arrays
from headmaps.quantities import REGISTRY, quantities

D, R, H, KV = 256, 32, 4, 2


def geometry(dtype: str, quantised: str | None = None) -> Geometry:
    norm, position = Norm("rms", "pre"), Position("none")
    return Geometry("made", "split", [0], 1, D, H, KV, R, R, dtype, 1.0, position, norm, quantised=quantised)


@pytest.fixture
def weights() -> np.ndarray:
    generator = np.random.default_rng(8)
    return (generator.standard_t(4, size=(64, D)) * np.geomspace(1e-3, 1, 64)[:, None]).astype(np.float32)


@pytest.fixture
def heads() -> LayerHeads:
    generator = np.random.default_rng(9)
    shapes = {"W_Q": (H, D, R), "W_K": (KV, D, R), "W_V": (KV, D, R), "W_O": (H, R, D)}
    return LayerHeads(**{name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


NUMPY = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize("name", NUMPY)
def test_the_step_of_a_float_format_is_the_distance_to_the_next_number(name: str, weights: np.ndarray) -> None:
    stored = np.abs(weights).astype(NUMPY[name])
    as_integer = stored.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[stored.itemsize])
    following = (as_integer + np.array(1, as_integer.dtype)).view(stored.dtype).astype(np.float64)
    here = stored.astype(np.float64)
    np.testing.assert_array_equal(FORMATS[name].step(here, 1), following - here)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_the_step_of_a_quantised_format_is_what_its_rounding_moves(name: str, weights: np.ndarray) -> None:
    kind = GGMLQuantizationType[name]
    stored = quants.dequantize(quants.quantize(weights, kind), kind)
    error = np.abs(stored - weights)
    step = FORMATS[name].step(stored.astype(np.float64), 1)
    # uniform rounding has a mean error of a quarter of a step
    assert np.mean(error) / np.mean(step) == pytest.approx(0.25, rel=0.12)
    # from the dequantised weights alone, levels are as far apart as was said (scales are stored in half precision)
    levels = np.unique(stored[40, :32].astype(np.float64))
    assert np.diff(levels).min() == pytest.approx(step[40, 0], rel=0.15)


def test_blocks_run_along_the_rows_of_the_file(weights: np.ndarray) -> None:
    across = FORMATS["Q8_0"].step(weights.T.astype(np.float64), 0)
    np.testing.assert_array_equal(across.T, FORMATS["Q8_0"].step(weights.astype(np.float64), 1))
    assert len(np.unique(across[:32, 5])) == 1


def test_a_row_shorter_than_a_block_is_one_block() -> None:
    W = np.random.default_rng(1).normal(size=(3, 20))
    np.testing.assert_allclose(FORMATS["Q8_0"].step(W, 1), np.abs(W).max(axis=1, keepdims=True).repeat(20, 1) / 127)


def test_noise_stays_within_half_a_step_and_repeats() -> None:
    stored = np.random.default_rng(1).normal(size=(2, 40, 8)).astype(ml_dtypes.bfloat16).astype(np.float32)
    first, again, other = (Perturbed(stored, [FORMATS["BF16"]], 0, ("key", k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])
    assert (np.abs(first[1] - stored[1]) <= FORMATS["BF16"].step(stored[1].astype(np.float64), 0) / 2).all()
    # what is drawn rounds to what is stored; below a power of two the numbers are closer, and a draw may reach the next
    powers = np.frexp(stored[1])[0] == 0.5
    np.testing.assert_array_equal(first[1].astype(ml_dtypes.bfloat16)[~powers], stored[1][~powers])
    assert powers.mean() < 0.05


def test_several_formats_count_as_the_coarsest_and_an_unknown_one_stops_the_estimate() -> None:
    assert formats_of(geometry("F32+BF16")) == [FORMATS["F32"], FORMATS["BF16"]]
    assert formats_of(geometry("F32", "Q4_1")) == [FORMATS["Q4_1"]]
    assert formats_of(geometry("F32+IQ2_XXS")) == []


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_changes_follow_the_storage_precision(matrix: str, heads: LayerHeads) -> None:
    stored = decompose_layer(heads, geometry("F32"), matrix)
    changes = {
        name: precision_arrays(heads, geometry(name), matrix, "raw", 0, stored)
        for name in ("F64", "F32", "F16", "BF16", "Q8_0", "Q4_1")
    }
    sigma = [changes[name]["precision_sigma"].mean() for name in changes]
    assert sigma == sorted(sigma)
    # eight bits of mantissa: changes about 2^16 times those of 24 bits
    assert sigma[3] / sigma[1] == pytest.approx(2**16, rel=0.5)
    assert changes["F64"]["precision_self_mean"].max() < 1e-12
    assert 1e-4 < changes["Q4_1"]["precision_self_mean"].max() < 0.05
    for name in ("pair_precision_self", *(f"precision_{quantity}" for quantity in REGISTRY)):
        assert (changes["BF16"][name] >= 0).all()


def test_the_estimate_is_the_size_of_a_real_rounding(heads: LayerHeads) -> None:
    exact = decompose_layer(heads, geometry("F32"), "value")

    def rounded(W: np.ndarray) -> np.ndarray:
        return W.astype(ml_dtypes.bfloat16).astype(np.float32)

    stored = LayerHeads(*map(rounded, (heads.W_Q, heads.W_K, heads.W_V, heads.W_O)))
    after = decompose_layer(stored, geometry("BF16"), "value")
    real = np.sqrt(np.mean((after["sigma"] - exact["sigma"]) ** 2))
    estimated = precision_arrays(stored, geometry("BF16"), "value", "raw", 0, after)["precision_sigma"]
    assert estimated.mean() == pytest.approx(real, rel=0.3)


def test_grouped_heads_get_the_same_noise_on_the_factor_they_share(heads: LayerHeads) -> None:
    same = LayerHeads(heads.W_Q, heads.W_K, heads.W_V, np.repeat(heads.W_O[:1], H, axis=0))
    perturbed = Perturbed(same.W_V, [FORMATS["BF16"]], 0, ("k",))
    np.testing.assert_array_equal(perturbed[0], perturbed[0])
    assert len(perturbed) == KV


def test_columns_are_the_difference_between_two_decompositions(heads: LayerHeads) -> None:
    stored = decompose_layer(heads, geometry("BF16"), "qk")
    found = precision_arrays(heads, geometry("BF16"), "qk", "raw", 3, stored)
    before = quantities(stored["sigma"], stored["Z"], stored["eigenvalues"], rank=stored["rank"])
    relative = found["precision_frobenius_norm"] / before["frobenius_norm"]
    assert (relative > 0).all()
    assert (relative < 2**-8).all()
    assert found["pair_precision_self"].shape == (H, R)


def test_nothing_is_said_where_input_and_output_are_different_streams(heads: LayerHeads) -> None:
    stored = decompose_layer(heads, geometry("BF16"), "qk") | {"comparable": np.array(False)}
    assert precision_arrays(heads, geometry("BF16"), "qk", "raw", 0, stored) == {}
