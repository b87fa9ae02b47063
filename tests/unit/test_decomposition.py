"""The kernel against theorems, planted answers and other methods; `W = A @ B` is formed here, and only here."""

import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from headmaps.decomposition import decompose, gaps, in_bases, pair_quantities, probe, sigma_and_Z
from headmaps.errors import NumericError
from headmaps.linalg import GRAM_CONDITION, condition_upper, factor_gram, inverse_upper
from support.random_heads import conditioned, frame

SHAPES = [(12, 1), (40, 5), (96, 16), (300, 32)]


def a_head(d, r, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((d, r)), rng.standard_normal((r, d))


def vectors(found, A, B):
    return found.input_vectors(A), found.output_vectors(B)


def article(W, r):
    """The article's computation: a sparse truncated SVD of the d x d matrix, descending, and Z = Vh @ U."""
    v0 = np.random.default_rng(0).standard_normal(len(W))
    u, s, vh = scipy.sparse.linalg.svds(W, k=r, v0=v0)
    order = np.argsort(-s)
    u, s, vh = u[:, order], s[order], vh[order]
    Z = vh @ u
    own = np.abs(np.diag(Z))
    rotation = np.sqrt(np.maximum(0, (Z**2).sum(axis=1) - own**2))
    ortho = np.linalg.norm(vh.T - u @ (u.T @ vh.T), axis=0)
    return s, own, rotation, ortho


# --- what a singular value decomposition is ---------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_U_diag_sigma_Vh_is_A_B(d, r):
    A, B = a_head(d, r)
    found = decompose(A, B)
    U, Vh = vectors(found, A, B)
    np.testing.assert_allclose(U * found.sigma @ Vh, A @ B, atol=1e-12 * found.sigma[0])
    np.testing.assert_allclose(U.T @ U, np.eye(r), atol=1e-12)
    np.testing.assert_allclose(Vh @ Vh.T, np.eye(r), atol=1e-12)
    np.testing.assert_allclose(found.Z, Vh @ U, atol=1e-12)
    assert (np.diff(found.sigma) <= 0).all()


@pytest.mark.parametrize(("d", "r"), SHAPES)
def test_ortho_is_what_projection_onto_the_read_subspace_leaves(d, r):
    A, B = a_head(d, r)
    U = scipy.linalg.svd(A @ B)[0][:, :r]
    Vh = vectors(found := decompose(A, B), A, B)[1]
    left = np.linalg.norm(Vh.T - U @ (U.T @ Vh.T), axis=0)
    np.testing.assert_allclose(pair_quantities(found.Z)[3], left, atol=1e-7)


def test_signs_are_those_of_a_fixed_vector_so_that_a_gauge_change_does_not_flip_them():
    A, B = a_head(80, 8)
    G = np.random.default_rng(1).standard_normal((8, 8))
    one, other = decompose(A, B), decompose(A @ G, np.linalg.inv(G) @ B)
    assert (probe(80) @ one.input_vectors(A) >= 0).all()
    np.testing.assert_allclose(one.Z, other.Z, atol=1e-10)


def test_negating_both_factors_changes_nothing_and_one_of_them_only_the_sign_of_Z():
    A, B = a_head(60, 6)
    one, both, half = decompose(A, B), decompose(-A, -B), decompose(A, -B)
    np.testing.assert_allclose(both.Z, one.Z, atol=1e-12)
    np.testing.assert_allclose(half.Z, -one.Z, atol=1e-12)
    np.testing.assert_allclose(half.sigma, one.sigma, atol=1e-12)


@given(seed=st.integers(0, 10_000), exponent=st.floats(0, 3), d=st.integers(8, 60), r=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_sigma_and_Z_do_not_depend_on_how_the_product_is_split(seed, exponent, d, r):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((d, r)), rng.standard_normal((r, d))
    G = conditioned(rng, r, 10**exponent)
    one, other = decompose(A, B), decompose(A @ G, np.linalg.solve(G, B))
    np.testing.assert_allclose(other.sigma, one.sigma, atol=1e-9 * one.sigma[0])
    # a single pair is as well determined as its singular value is far from the others
    blur = 1e-9 / min(1.0, one.gap.min())
    for mine, theirs in zip(pair_quantities(one.Z)[:3], pair_quantities(other.Z)[:3], strict=True):
        np.testing.assert_allclose(theirs, mine, atol=max(1e-9, blur))


@given(seed=st.integers(0, 10_000), d=st.integers(6, 40), r=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_rotating_the_residual_basis_changes_nothing(seed, d, r):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((d, r)), rng.standard_normal((r, d))
    Q = frame(rng, d, d)
    one, other = decompose(A, B), decompose(Q @ A, B @ Q.T)
    blur = max(1e-9, 1e-9 / min(1.0, one.gap.min()))
    np.testing.assert_allclose(other.sigma, one.sigma, atol=1e-10 * one.sigma[0])
    np.testing.assert_allclose(pair_quantities(other.Z)[1], pair_quantities(one.Z)[1], atol=blur)


# --- planted answers --------------------------------------------------------------------------------------------------


def test_a_projector_is_all_self():
    P = frame(np.random.default_rng(2), 50, 6)
    own, rotation, ortho = pair_quantities(decompose(P * np.arange(6, 0, -1), P.T).Z)[1:]
    np.testing.assert_allclose(own, 1, atol=1e-12)
    np.testing.assert_allclose(rotation, 0, atol=1e-12)
    np.testing.assert_allclose(ortho, 0, atol=1e-6)


def test_orthogonal_subspaces_are_all_ortho():
    both = frame(np.random.default_rng(3), 50, 12)
    own, rotation, ortho = pair_quantities(decompose(both[:, :6] * np.arange(6, 0, -1), both[:, 6:].T).Z)[1:]
    np.testing.assert_allclose(own, 0, atol=1e-12)
    np.testing.assert_allclose(rotation, 0, atol=1e-12)
    np.testing.assert_allclose(ortho, 1, atol=1e-12)


def test_a_cyclic_shift_inside_one_subspace_is_all_rotation():
    P = frame(np.random.default_rng(4), 50, 6)
    own, rotation, ortho = pair_quantities(decompose(P * np.arange(6, 0, -1), np.roll(P, 1, axis=1).T).Z)[1:]
    np.testing.assert_allclose(own, 0, atol=1e-12)
    np.testing.assert_allclose(rotation, 1, atol=1e-12)
    np.testing.assert_allclose(ortho, 0, atol=1e-6)


def test_a_planted_angle_between_read_and_written_direction_is_found():
    both = frame(np.random.default_rng(5), 40, 8)
    angles = np.array([0.1, 0.7, 1.2, 3.0])
    written = both[:, :4] * np.cos(angles) + both[:, 4:] * np.sin(angles)
    overlap, own, _, ortho = pair_quantities(decompose(both[:, :4] * [4, 3, 2, 1], written.T).Z)
    np.testing.assert_allclose(overlap, np.cos(angles), atol=1e-12)
    np.testing.assert_allclose(own, np.abs(np.cos(angles)), atol=1e-12)
    np.testing.assert_allclose(ortho, np.abs(np.sin(angles)), atol=1e-12)


def test_transposing_the_matrix_keeps_self_and_exchanges_the_sides_of_the_other_two():
    A, B = a_head(40, 6)
    B = B + 0.5 * A.T
    one, other = decompose(A, B), decompose(B.T, A.T)
    _, own, rotation, ortho = pair_quantities(one.Z)
    _, own_t, rotation_t, ortho_t = pair_quantities(other.Z)
    np.testing.assert_allclose(own_t, own, atol=1e-10)
    columns = np.sqrt((one.Z**2).sum(axis=0) - np.diag(one.Z) ** 2)
    np.testing.assert_allclose(rotation_t, columns, atol=1e-10)
    assert np.abs(rotation_t - rotation).max() > 0.01
    assert np.abs(ortho_t - ortho).max() > 0.01


# --- other methods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [1, 30, 1e3])
def test_gram_qr_and_the_articles_code_agree(condition):
    rng = np.random.default_rng(6)
    d, r = 120, 12
    A = rng.standard_normal((d, r)) @ conditioned(rng, r, condition)
    B = rng.standard_normal((r, d))
    W = A @ B
    kernel = decompose(A, B)
    R_A, R_B = (np.linalg.qr(M)[1] for M in (A, B.T))
    Q_A, Q_B = (np.linalg.qr(M)[0] for M in (A, B.T))
    by_qr = sigma_and_Z(R_A @ R_B.T, Q_B.T @ Q_A)
    sparse = article(W, r)
    mine = pair_quantities(kernel.Z)
    theirs = pair_quantities(by_qr[1])
    np.testing.assert_allclose(kernel.sigma, by_qr[0], atol=1e-10 * kernel.sigma[0])
    np.testing.assert_allclose(kernel.sigma, sparse[0], atol=1e-10 * kernel.sigma[0])
    for k in (1, 2, 3):
        np.testing.assert_allclose(mine[k], theirs[k], atol=1e-7)
        np.testing.assert_allclose(mine[k], sparse[k], atol=1e-6)


def test_eigenvalues_are_those_of_the_d_x_d_matrix_and_of_B_A():
    A, B = a_head(40, 7)
    found = decompose(A, B).eigenvalues
    dense = np.linalg.eigvals(A @ B)
    for reference in (dense[np.argsort(-np.abs(dense))][:7], np.linalg.eigvals(B @ A)):
        distance = np.abs(found[:, None] - reference[None, :])
        assert distance.min(axis=1).max() < 1e-10 * np.abs(found).max()
        assert distance.min(axis=0).max() < 1e-10 * np.abs(found).max()
    assert (np.diff(np.abs(found)) <= 1e-12 * np.abs(found).max()).all()


def test_projections_on_the_singular_vectors_are_the_products_with_them():
    A, B = a_head(40, 5)
    x = np.random.default_rng(7).standard_normal(40)
    found = decompose(A, B)
    U, Vh = vectors(found, A, B)
    np.testing.assert_allclose(found.on_inputs(x, A), x @ U, atol=1e-12)
    np.testing.assert_allclose(found.on_outputs(x, B), Vh @ x, atol=1e-12)


def test_any_memory_order_and_float32_give_the_same_as_contiguous_float64():
    A, B = (M.astype(np.float32) for M in a_head(50, 6))
    plain = decompose(A.astype(np.float64), B.astype(np.float64))
    for other in (decompose(A, B), decompose(np.asfortranarray(A), np.asfortranarray(B))):
        np.testing.assert_allclose(other.sigma, plain.sigma, atol=1e-13 * plain.sigma[0])
        np.testing.assert_allclose(other.Z, plain.Z, atol=1e-12)


# --- hard cases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e9, 1e12])
def test_ill_conditioned_factors_reproduce_the_matrix_and_its_ortho(condition):
    rng = np.random.default_rng(8)
    d, r = 64, 6
    read = frame(rng, d, r)
    # the hard case for the Gram method: the written subspace is the read one, so that ortho cancels
    A, B = read @ conditioned(rng, r, condition), frame(rng, r, r) @ read.T
    found = decompose(A, B)
    U, Vh = vectors(found, A, B)
    np.testing.assert_allclose(U * found.sigma @ Vh, A @ B, atol=1e-12)
    np.testing.assert_allclose(found.sigma, np.geomspace(1, 1 / condition, r), atol=1e-12)
    assert found.rank == r
    assert found.method == ("qr" if condition > GRAM_CONDITION else "gram")
    # A as stored lies in the planted subspace only to eps, which its smallest direction sees `condition` times larger
    assert pair_quantities(found.Z)[3].max() < 1e-6 + 10 * np.finfo(float).eps * condition


def test_a_badly_split_product_is_still_that_product():
    A, B = a_head(64, 6, seed=9)
    scale = np.geomspace(1e-6, 1e6, 6)
    one, other = decompose(A, B), decompose(A * scale, B / scale[:, None])
    assert (one.method, other.method) == ("gram", "qr")
    np.testing.assert_allclose(other.sigma, one.sigma, atol=1e-10 * one.sigma[0])
    np.testing.assert_allclose(other.Z, one.Z, atol=1e-9)


@pytest.mark.parametrize("side", ["A", "B", "both"])
def test_a_rank_deficient_head_has_the_pairs_of_its_rank_and_nothing_beyond(side):
    A, B = a_head(60, 8, seed=10)
    if side in {"A", "both"}:
        A[:, 5:] = A[:, :3] @ np.ones((3, 3))
    if side in {"B", "both"}:
        B[5:] = np.ones((3, 2)) @ B[:2]
    found = decompose(A, B)
    W = A @ B
    rank = np.linalg.matrix_rank(W)
    u, s, vh = scipy.linalg.svd(W)
    assert (found.rank, found.method) == (rank, "rank_revealing")
    np.testing.assert_allclose(found.sigma, np.pad(s[:rank], (0, 8 - rank)), atol=1e-12 * s[0])
    expected = pair_quantities(vh[:rank] @ u[:, :rank])
    for mine, theirs in zip(pair_quantities(found.Z[:rank, :rank]), expected, strict=True):
        np.testing.assert_allclose(np.abs(mine), np.abs(theirs), atol=1e-9)
    assert not found.Z[rank:].any()
    assert not found.Z[:, rank:].any()
    assert not found.eigenvalues[rank:].any()
    assert found.condition > 1e12
    U, Vh = vectors(found, A, B)
    np.testing.assert_allclose(U * found.sigma @ Vh, W, atol=1e-12 * s[0])


@pytest.mark.parametrize("which", [(0, 1), (1, 0), (0, 0)])
def test_an_all_zero_head_has_no_pairs_and_no_nan(which):
    A, B = a_head(30, 4)
    found = decompose(A * which[0], B * which[1])
    assert (found.rank, found.method) == (0, "zero")
    for array in (found.sigma, found.Z, found.eigenvalues, found.gap):
        assert not array.any()


def test_factors_that_cancel_are_a_zero_matrix():
    both = frame(np.random.default_rng(11), 30, 4)
    mix = frame(np.random.default_rng(12), 4, 4)
    # A reads through two inner dimensions, B writes from the other two: A @ B is 0 up to rounding
    A, B = both @ mix[:, :2] @ mix[:, :2].T, mix[:, 2:] @ mix[:, 2:].T @ both.T
    assert np.abs(A @ B).max() < 1e-15
    assert decompose(A, B).method == "zero"


def test_a_head_wider_than_the_stream_has_at_most_d_pairs():
    A, B = a_head(5, 8)
    found = decompose(A, B)
    np.testing.assert_allclose(found.sigma[:5], scipy.linalg.svdvals(A @ B), atol=1e-12 * found.sigma[0])
    assert found.rank == 5
    assert not found.sigma[5:].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    A, B = a_head(20, 3)
    B[1, 7] = value
    with pytest.raises(NumericError, match="factor B has NaN"):
        decompose(A, B)


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(NumericError, match=r"\(20, 3\) and \(20, 3\)"):
        decompose(np.ones((20, 3)), np.ones((20, 3)))


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_gap_is_the_distance_to_the_nearest_neighbour_over_sigma():
    np.testing.assert_allclose(gaps([8.0, 6.0, 5.0, 1.0]), [2 / 8, 1 / 6, 1 / 5, 4 / 1])
    np.testing.assert_array_equal(gaps([2.0, 2.0, 0.0]), [0, 0, 0])
    np.testing.assert_array_equal(gaps([3.0]), [np.inf])
    np.testing.assert_allclose(gaps([[4.0, 2.0], [9.0, 3.0]]), [[0.5, 1.0], [2 / 3, 2.0]])


@pytest.mark.parametrize("r", [1, 3, 16, 17, 32, 48, 64, 128])
def test_triangular_inverse_and_condition(r):
    R = np.triu(np.random.default_rng(r).standard_normal((2, r, r))) + 3 * np.sqrt(r) * np.eye(r)
    inverse = inverse_upper(R)
    np.testing.assert_allclose(R @ inverse, np.broadcast_to(np.eye(r), R.shape), atol=1e-12)
    expected = [np.linalg.cond(one, 1) for one in R]
    np.testing.assert_allclose(condition_upper(R, inverse), expected, rtol=1e-10)


def test_one_bad_factor_does_not_spoil_the_other():
    A, B = a_head(30, 4)
    good, bad = factor_gram(A, 0 * B.T)
    assert good.well_conditioned
    assert not bad.well_conditioned
    np.testing.assert_allclose(good.R.T @ good.R, A.T @ A, atol=1e-12)


@pytest.mark.parametrize("condition", [1, 1e8])
def test_a_product_in_orthonormal_bases_has_its_sigma_and_Z(condition):
    rng = np.random.default_rng(13)
    A, B = rng.standard_normal((50, 6)) @ conditioned(rng, 6, condition), rng.standard_normal((6, 50))
    R_A, R_B, M = in_bases(A, B)
    sigma, Z = sigma_and_Z(R_A @ R_B.T, M)
    found = decompose(A, B)
    np.testing.assert_allclose(sigma, found.sigma, atol=1e-12 * sigma[0])
    np.testing.assert_allclose(np.abs(Z), np.abs(found.Z), atol=1e-8)


def test_no_array_of_d_model_squared_is_made():
    d, r = 4096, 16
    A, B = a_head(d, r)
    tracemalloc.start()
    found = decompose(A, B)
    found.input_vectors(A)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * A.nbytes < d * d * 8 / 50
