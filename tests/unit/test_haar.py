"""The Haar null: its closed form against draws, and draws that know nothing of d against literal ones."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from headmaps.decomposition import decompose, pair_quantities
from headmaps.errors import NumericError
from headmaps.haar import (
    COSTLY_DRAWS,
    dirichlet_parameters,
    gaussian_sigmas,
    generator,
    haar_blocks,
    haar_energy_shares,
    haar_means,
    make_pool,
    pool_arrays,
    trapezoids,
)
from headmaps.quantities import REGISTRY, quantities
from support.random_heads import frame

ALPHA = 1e-4  # of each two-sample test: with fixed seeds a false alarm does not come and go

SHAPES = [(64, 4), (96, 16), (40, 24), (16, 16)]
"""d_model, d_head: small, ordinary, wider than half of the stream, as wide as the stream."""


def streams(n, *key):
    return [generator("test", *key, number) for number in range(n)]


def literal(n, d, r, seed=0):
    """sigma and Z of iid Gaussian factors of norm 1, drawn at full size and decomposed."""
    rng = np.random.default_rng(seed)
    sigmas, blocks = [], []
    for _ in range(n):
        A, B = rng.standard_normal((d, r)), rng.standard_normal((r, d))
        found = decompose(A / np.linalg.norm(A), B / np.linalg.norm(B))
        sigmas.append(found.sigma)
        blocks.append(found.Z)
    return np.stack(sigmas), np.stack(blocks)


def same_law(one, other):
    """Whether a Kolmogorov-Smirnov test lets two samples pass for draws of one law."""
    return scipy.stats.ks_2samp(one, other).pvalue > ALPHA


# --- closed form ------------------------------------------------------------------------------------------------------


def test_means_of_the_articles_shape():
    np.testing.assert_allclose(haar_means(2048, 64), [0.017633, 0.174717, 0.984247], atol=5e-7)


@given(r=st.integers(1, 300), more=st.integers(0, 20_000))
def test_energy_shares_and_mean_squares_sum_to_one_and_bound_the_means(r, more):
    d = r + more
    shares = haar_energy_shares(d, r)
    assert math.isclose(sum(shares), 1, abs_tol=1e-12)
    parameters = dirichlet_parameters(d, r)
    for mean, share, parameter in zip(haar_means(d, r), shares, parameters, strict=True):
        assert math.isclose(share, parameter / sum(parameters), abs_tol=1e-12)
        assert 0 <= mean <= math.sqrt(share) + 1e-9  # the mean of a root is at most the root of the mean


@pytest.mark.parametrize(("d", "r"), [(64, 4), (40, 24), (8192, 128)])
def test_means_are_those_of_the_roots_of_beta_variables(d, r):
    for mean, share in zip(haar_means(d, r), dirichlet_parameters(d, r), strict=True):
        expected = scipy.stats.beta(share, d / 2 - share).expect(np.sqrt)
        np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_a_head_as_wide_as_the_stream_has_no_ortho_and_a_head_of_one_pair_no_rotation():
    assert haar_means(16, 16)[2] == 0
    assert haar_means(16, 1)[1] == 0


@pytest.mark.parametrize(("d", "r"), [(4, 5), (4, 0), (4, -1)])
def test_frames_that_do_not_exist_are_refused(d, r):
    with pytest.raises(NumericError, match="orthonormal"):
        haar_means(d, r)


# --- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_each_output_vector_follows_the_dirichlet_law(d, r):
    Z = haar_blocks(streams(3000, "law", d, r), d, r)
    first = Z[:, 0]  # one pair per draw: pairs of one draw are not independent
    own2 = first[:, 0] ** 2
    rotation2 = (first[:, 1:] ** 2).sum(axis=1)
    ortho2 = 1 - own2 - rotation2
    for values, parameter in zip((own2, rotation2, ortho2), dirichlet_parameters(d, r), strict=True):
        if parameter > 0:
            law = scipy.stats.beta(parameter, d / 2 - parameter) if parameter < d / 2 else None
            assert law is None or scipy.stats.kstest(values, law.cdf).pvalue > ALPHA
        else:
            np.testing.assert_allclose(values, 0, atol=1e-12)


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_means_of_draws_meet_the_closed_form(d, r):
    Z = haar_blocks(streams(2000, "means", d, r), d, r)
    for values, mean in zip(pair_quantities(Z)[1:], haar_means(d, r), strict=True):
        of_head = values.mean(axis=1)
        assert abs(of_head.mean() - mean) < 4 * of_head.std() / np.sqrt(len(Z)) + 1e-7


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_the_short_draw_of_Z_has_the_law_of_the_literal_one(d, r):
    n = 400
    sigma, Z = literal(n, d, r)
    short = haar_blocks(streams(n, "short", d, r), d, r)
    sigma_short = gaussian_sigmas(streams(n, "sigma", d, r), d, r)
    mine, theirs = quantities(sigma_short, short), quantities(sigma, Z)
    names = ("self_mean", "rotation_mean", "ortho_mean", "self_energy", "symmetric_share", "eigenvalue_positivity")
    for name in names:
        if name == "ortho_mean" and d == r:
            continue  # nothing but rounding on both sides
        assert same_law(mine[name], theirs[name]), name
    for pair in {0, r // 2, r - 1}:
        assert same_law(sigma_short[:, pair], sigma[:, pair]), pair
    # those that are exactly 1 are so up to rounding
    cosines = [np.linalg.svd(blocks, compute_uv=False).round(9)[:, r // 2] for blocks in (short, Z)]
    assert same_law(*cosines)


def test_the_two_sample_test_would_see_a_wrong_dimension():
    """The tests above could fail: a d that is off by an eighth is found out."""
    right = quantities(np.ones((400, 16)), haar_blocks(streams(400, "right"), 96, 16))
    wrong = quantities(np.ones((400, 16)), haar_blocks(streams(400, "wrong"), 84, 16))
    assert not same_law(right["rotation_mean"], wrong["rotation_mean"])


def test_qr_of_a_gaussian_without_sign_correction_would_be_seen():
    rng = np.random.default_rng(0)
    raw = np.stack([np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(400)])
    ours = haar_blocks(streams(400, "square"), 8, 8)
    fixed = np.stack([frame(rng, 8, 8) for _ in range(400)])
    trace = [np.trace(Q, axis1=1, axis2=2) for Q in (raw, ours, fixed)]
    assert not same_law(trace[0], trace[2])
    assert same_law(trace[1], trace[2])


@pytest.mark.parametrize(("n", "r"), [(50, 6), (6, 6), (3, 6), (0, 6)])
def test_a_trapezoid_stands_in_for_a_gaussian_matrix(n, r):
    T = trapezoids(streams(2000, "T", n, r), n, r)
    assert T.shape == (2000, min(n, r), r)
    assert not np.tril(T, -1).any()
    if n:
        gram = T.mT @ T
        G = np.random.default_rng(1).standard_normal((2000, n, r))
        wishart = G.mT @ G
        for i, j in {(0, 0), (r - 1, r - 1), (0, r - 1)}:
            assert same_law(gram[:, i, j], wishart[:, i, j])


@pytest.mark.parametrize(("d", "r"), [(40, 24), (33, 32), (16, 16)])
def test_subspaces_that_must_intersect_have_cosines_of_exactly_one(d, r):
    cosines = np.linalg.svd(haar_blocks(streams(50, "cut", d, r), d, r), compute_uv=False)
    np.testing.assert_allclose(cosines[:, : 2 * r - d], 1, atol=1e-10)
    assert cosines.max() < 1 + 1e-10


def test_gaussian_sigmas_have_factors_of_norm_one():
    # one inner dimension: W is the outer product of two unit vectors
    np.testing.assert_allclose(gaussian_sigmas(streams(5, "unit"), 30, 1), 1, rtol=1e-12)


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_its_number_alone_so_that_a_longer_pool_begins_with_the_shorter():
    short, long = make_pool(64, 32, 40, 0), make_pool(64, 32, 700, 0)
    assert len(long["self_mean"]) == 700
    for name in ("self_mean", "frobenius_norm", "self2"):
        np.testing.assert_array_equal(long[name][:40], short[name])


def test_another_seed_gives_other_draws():
    assert (make_pool(64, 8, 20, 0)["self_mean"] != make_pool(64, 8, 20, 1)["self_mean"]).all()


def test_generators_depend_on_every_part_of_their_key():
    keys = [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a1", ""), ("0a", 1)]
    assert len({generator(*key).random() for key in keys}) == len(keys)
    assert generator(0, "a", 1).random() == generator(0, "a", 1).random()


def test_the_pool_has_every_registered_quantity_and_the_pairs():
    pool = make_pool(64, 8, 600, 0)
    assert set(pool) == set(REGISTRY) | {"self2", "rotation2", "overlap"}
    assert pool["self2"].shape == pool["rotation2"].shape == pool["overlap"].shape == (600, 8)
    assert {len(pool[name]) for name, entry in REGISTRY.items() if entry.cost == "products"} == {600}
    assert {len(pool[name]) for name, entry in REGISTRY.items() if entry.cost != "products"} == {COSTLY_DRAWS}
    np.testing.assert_array_equal(pool["self2"], pool["overlap"] ** 2)
    assert not any(np.isnan(values).any() for values in pool.values())


def test_the_pools_squares_give_the_energy_shares_of_any_spectrum_as_one_product():
    sigma = np.array([3.0, 1, 1, 0.5, 0.2, 0.1, 0.05, 0.01])
    pool = make_pool(64, 8, 500, 0)
    Z = haar_blocks([generator(0, "haar", 64, 8, number) for number in range(500)], 64, 8)
    direct = quantities(np.tile(sigma, (500, 1)), Z, names=["self_energy", "rotation_energy"])
    weights = sigma**2 / (sigma**2).sum()
    np.testing.assert_allclose(pool["self2"] @ weights, direct["self_energy"], atol=1e-12)
    np.testing.assert_allclose(pool["rotation2"] @ weights, direct["rotation_energy"], atol=1e-12)


def test_a_file_holds_one_pool_per_rank():
    arrays = pool_arrays(64, [8, 4, 8], 20, 0)
    assert {name.partition(".")[0] for name in arrays} == {"4", "8"}
    np.testing.assert_array_equal(arrays["4.self_mean"], make_pool(64, 4, 20, 0)["self_mean"])
