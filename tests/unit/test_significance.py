"""Effects, p values and their correction, against definitions, exhaustive counts and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from headmaps.significance import (
    benjamini_hochberg,
    can_reject,
    heads_needed,
    monte_carlo_p,
    overlap_p,
    significance,
    smallest_p,
)


def p_by_definition(observed: float, draws: list[float]) -> float:
    at_least = sum(draw >= observed for draw in draws)
    at_most = sum(draw <= observed for draw in draws)
    return min(1, 2 * min(1 + at_least, 1 + at_most) / (len(draws) + 1))


integers = st.integers(-5, 5).map(float)  # few values, so that ties are common


@given(observed=st.lists(integers, min_size=1, max_size=5), draws=st.lists(integers, min_size=1, max_size=30))
def test_p_is_the_formula_whether_draws_are_shared_or_each_heads_own(observed: list[float], draws: list[float]) -> None:
    expected = [p_by_definition(one, draws) for one in observed]
    shared = significance(observed, draws)
    own = significance(observed, np.tile(draws, (len(observed), 1)))
    assert shared.p.tolist() == own.p.tolist() == expected
    np.testing.assert_allclose(own.z, shared.z, rtol=1e-12)


def test_effects_are_those_of_the_draws() -> None:
    found = significance([10.0], [2.0, 2.0, 3.0, 3.0])
    assert (found.mean[0], found.difference[0], found.ratio[0]) == (2.5, 7.5, 4.0)
    assert found.sd[0] == pytest.approx(np.std([2, 2, 3, 3], ddof=1))
    assert found.z[0] == pytest.approx(7.5 / found.sd[0])
    assert found.p[0] == pytest.approx(2 * 1 / 5)
    assert found.draws.tolist() == [4]


def test_p_is_never_zero_and_its_floor_is_two_over_n_plus_one() -> None:
    assert significance([99.0], np.zeros(64)).p[0] == smallest_p(64) == 2 / 65
    assert monte_carlo_p(64, 64, 64) == 1


def test_p_is_uniform_under_the_null_up_to_its_steps() -> None:
    generator = np.random.default_rng(1)
    p = significance(generator.normal(size=4000), generator.normal(size=(4000, 39))).p
    for level in (0.05, 0.1, 0.25, 0.5):
        # four standard errors above the level that the rank of one among 40 exchangeable values guarantees
        assert np.mean(p <= level) <= level + 4 * math.sqrt(level * (1 - level) / len(p))
        assert np.mean(p <= level) >= level - 4 * math.sqrt(level * (1 - level) / len(p))


def test_heads_may_have_fewer_draws_than_others_or_none() -> None:
    found = significance([1.0, 1.0, 1.0], [[0.0, 2.0, 5.0], [0.0, np.nan, np.nan], [np.nan] * 3])
    assert found.draws.tolist() == [3, 1, 0]
    assert found.p[:2].tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(np.isnan(found.sd), [False, True, True])
    np.testing.assert_array_equal(np.isnan(found.mean), [False, False, True])
    assert np.isnan(found.p[2])
    assert np.isnan(significance([1.0], np.empty((1, 0))).p[0])


def test_a_head_without_value_has_no_effect_and_no_p() -> None:
    found = significance([np.nan, 1.0], [0.0, 2.0, 4.0])
    assert np.isnan([found.p[0], found.z[0], found.difference[0]]).all()
    assert found.p[1] == 1


def test_draws_that_do_not_vary_have_no_z() -> None:
    found = significance([1.0], np.full((1, 10), 0.1) * (1 + 1e-15 * np.arange(10)))
    assert found.sd[0] == 0
    assert np.isnan(found.z[0])


@given(
    p=st.lists(st.floats(1e-6, 1), min_size=1, max_size=40),
    missing=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_benjamini_hochberg_agrees_with_scipy_and_leaves_missing_tests_out(p: list[float], missing: list[bool]) -> None:
    values = np.where(missing[: len(p)], np.nan, p)
    there = ~np.isnan(values)
    adjusted = benjamini_hochberg(values)
    assert np.isnan(adjusted[~there]).all()
    if there.any():
        np.testing.assert_allclose(adjusted[there], scipy.stats.false_discovery_control(values[there]), rtol=1e-12)


def test_correction_is_offered_only_where_the_draws_can_find_a_few_heads() -> None:
    # the pool of the design over SmolLM2's 270 heads: three heads at the floor are found
    assert heads_needed(4096, 270) == 3
    assert can_reject(4096, 270)
    # 64 literal draws: more than half of the heads would have to be extreme
    assert heads_needed(64, 270) == 167
    assert not can_reject(64, 270)
    # one head alone needs p <= 0.05
    assert can_reject(39, 1)
    assert not can_reject(38, 1)
    assert not can_reject(4096, 0)


@pytest.mark.parametrize(("draws", "heads"), [(39, 1), (399, 10), (4096, 270), (4096, 768), (64, 12)])
def test_the_number_of_heads_needed_is_the_smallest_that_benjamini_hochberg_rejects(draws: int, heads: int) -> None:
    def rejects(extreme: int) -> bool:
        p = np.where(np.arange(heads) < extreme, smallest_p(draws), 1.0)
        return bool((benjamini_hochberg(p) <= 0.05).any())

    needed = heads_needed(draws, heads)
    assert rejects(needed)
    assert not rejects(needed - 1)


@pytest.mark.parametrize("d_model", [2, 3, 16, 384, 2048, 8192])
def test_overlap_p_is_the_tail_of_the_beta_law(d_model: int) -> None:
    overlap = np.concatenate([np.linspace(0, 1, 301), 10.0 ** -np.arange(1.0, 9), 1 - 10.0 ** -np.arange(1.0, 7)])
    expected = scipy.stats.beta.sf(overlap**2, 0.5, (d_model - 1) / 2)
    np.testing.assert_allclose(overlap_p(overlap, d_model), expected, rtol=1e-9, atol=1e-290)


def test_overlap_p_is_two_sided_and_exact_at_its_ends() -> None:
    assert overlap_p([0.0, 1.0, -1.0, 1 + 1e-15], 64).tolist() == [1, 0, 0, 0]
    assert overlap_p(-0.3, 64) == overlap_p(0.3, 64)
    assert np.isnan(overlap_p(np.nan, 64))
    assert overlap_p(np.zeros((2, 3)), 64).shape == (2, 3)
    with pytest.raises(ValueError, match="at least 2"):
        overlap_p(0.5, 1)


def test_overlap_p_is_uniform_for_random_directions() -> None:
    generator = np.random.default_rng(2)
    u, v = generator.normal(size=(2, 20000, 24))
    overlap = np.sum(u * v, axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    assert scipy.stats.kstest(overlap_p(overlap, 24), "uniform").pvalue > 1e-3


def test_a_ratio_to_a_mean_that_is_zero_by_symmetry_is_left_out():
    rng = np.random.default_rng(2)
    signed, sized = rng.standard_normal(4000), np.abs(rng.standard_normal(4000))
    for draws in (signed, np.stack([signed, signed])):
        assert np.isnan(significance(np.array([3.0, -1.0]), draws).ratio).all()
    found = significance(np.array([3.0, np.nan]), sized)
    assert found.ratio[0] == pytest.approx(3 / np.sqrt(2 / np.pi), rel=0.03)
    assert np.isnan(found.ratio[1])
    # a single draw, and draws without spread, have a mean to compare with
    assert significance(np.array([3.0]), np.array([[1.5]])).ratio == 2
    assert significance(np.array([3.0]), np.array([[1.5, 1.5]])).ratio == 2
