"""Matched baselines: what each kind keeps, that the rest is random, and that every draw stands on its own."""

import json

import numpy as np
import pytest
import scipy.stats

from headmaps.baselines import ALL_COSTS, KINDS, Sampler, baseline_layer
from headmaps.decomposition import decompose, pair_quantities
from headmaps.geometry import write_geometry
from headmaps.haar import COSTLY_DRAWS, make_pool
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors
from headmaps.quantities import FROM_THE_POOL, HAAR_KINDS, REGISTRY, null_names, quantities
from headmaps.quantities import KINDS as NAMES
from headmaps.records import read_arrays, read_json, write_array, write_arrays, write_json
from headmaps.steps import baseline as baseline_step
from headmaps.steps import haar_pool as haar_pool_step
from support.random_heads import a_geometry, a_layer, frame

ALPHA = 1e-4
LITERAL = [kind for kind in NAMES if kind not in HAAR_KINDS]


def a_sampler(matrix="value", draws=40, geometry=None, heads=None, treatment="raw"):
    geometry = geometry or a_geometry()
    return Sampler(LayerFactors(heads or a_layer(geometry), geometry, matrix, treatment), (0, "model", 3), draws)


def draws_of(sampler, kind, head=0):
    sigma, Z = sampler.pairs(kind, head)
    return sigma, Z, quantities(sigma, Z)


def literal(head, n, make):
    """sigma and Z of n draws made at full size: `make(rng, A, B)` gives the drawn factors."""
    A, B = head
    rng = np.random.default_rng(99)
    found = [decompose(*make(rng, A.copy(), B.copy())) for _ in range(n)]
    return np.stack([one.sigma for one in found]), np.stack([one.Z for one in found])


def same_law(one, other):
    return scipy.stats.ks_2samp(one, other).pvalue > ALPHA


def heavy_tailed_layer(geometry):
    """Heads with a few huge residual dimensions and heavy-tailed entries, for which the kinds differ."""
    plain = a_layer(geometry)
    rng = np.random.default_rng(4)
    scale = np.exp(1.5 * rng.standard_normal(geometry.d_model))
    W_V, W_O = plain.W_V * scale[:, None], plain.W_O * scale
    return LayerHeads(plain.W_Q * scale[:, None], plain.W_K * scale[:, None], W_V, W_O, plain.extras)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_exactly_the_kinds_that_the_quantities_speak_of():
    assert tuple(KINDS) == NAMES
    assert [kind for kind, entry in KINDS.items() if entry.pooled] == list(HAAR_KINDS)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_every_kind_gives_singular_values_and_blocks_of_orthonormal_frames(kind, matrix):
    geometry = a_geometry(H=6, KV=3)
    sampler = a_sampler(matrix, 12, geometry)
    for head in range(6):
        sigma, Z = sampler.pairs(kind, head)
        n = {"value": 4, "qk": 2}[matrix] if kind == "unpaired" else 12
        assert sigma.shape == (n, 6)
        assert Z.shape == (n, 6, 6)
        assert (np.diff(sigma) <= 0).all()
        assert np.linalg.norm(Z, 2, axis=(1, 2)).max() < 1 + 1e-10


@pytest.mark.parametrize("kind", ["gaussian", "spectrum", "shuffle", "rows", "internal"])
def test_a_draw_does_not_depend_on_how_many_were_asked_for_nor_on_what_was_drawn_before(kind):
    few, many = a_sampler(draws=3), a_sampler(draws=9)
    many.pairs(kind, 2)
    many.pairs("shuffle", 1)
    for mine, theirs in zip(few.pairs(kind, 1), many.pairs(kind, 1), strict=True):
        np.testing.assert_array_equal(mine, theirs[:3])


@pytest.mark.parametrize("kind", ["gaussian", "spectrum", "shuffle", "rows", "internal"])
def test_heads_matrices_layers_models_and_seeds_have_draws_of_their_own(kind):
    geometry = a_geometry(H=2, KV=2)
    plain = a_layer(geometry)
    # equal factors everywhere, so that only the random streams can differ
    same = LayerHeads(*(np.stack([W[0], W[0]]) for W in (plain.W_Q, plain.W_Q, plain.W_Q)), plain.W_Q.swapaxes(1, 2))
    samplers = [
        Sampler(LayerFactors(same, geometry, matrix), key, 2)
        for matrix, key in [
            ("value", (0, "m", 1)), ("qk", (0, "m", 1)), ("value", (1, "m", 1)), ("value", (0, "n", 1)),
            ("value", (0, "m", 2)),
        ]
    ]  # fmt: skip
    seen = [samplers[0].pairs(kind, 1)[1][0]] + [one.pairs(kind, 0)[1][n] for one in samplers for n in (0, 1)]
    for k, one in enumerate(seen):
        assert not any(np.allclose(one, other) for other in seen[:k])


# --- what each kind keeps, and its law --------------------------------------------------------------------------------


def test_gaussian_keeps_the_norms_and_has_the_law_of_literal_gaussian_factors():
    sampler = a_sampler(draws=400)
    A, B = sampler.factors(0)

    def make(rng, A, B):
        return tuple(G * np.linalg.norm(W) / np.linalg.norm(G) for W in (A, B) for G in [rng.standard_normal(W.shape)])

    sigma, _, mine = draws_of(sampler, "gaussian")
    theirs = quantities(*literal((A, B), 400, make))
    for name in ("self_mean", "ortho_mean", "frobenius_norm", "participation", "self_energy", "trace"):
        assert same_law(mine[name], theirs[name]), name
    assert (sigma[:, 0] <= np.linalg.norm(A) * np.linalg.norm(B)).all()


def test_spectrum_keeps_sigma_exactly():
    sampler = a_sampler(draws=5)
    sigma, Z = sampler.pairs("spectrum", 2)
    own = decompose(*sampler.factors(2)).sigma
    np.testing.assert_allclose(sigma, np.tile(own, (5, 1)), rtol=1e-10)
    assert len({round(float(block[0, 0]), 12) for block in Z}) == 5


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_shuffle_has_the_law_of_permuted_entries(matrix):
    geometry = a_geometry(d=40, H=2, KV=2, r=4)
    sampler = a_sampler(matrix, 400, geometry, heavy_tailed_layer(geometry))

    def make(rng, A, B):
        return rng.permutation(A.ravel()).reshape(A.shape), rng.permutation(B.ravel()).reshape(B.shape)

    _, _, mine = draws_of(sampler, "shuffle")
    theirs = quantities(*literal(sampler.factors(0), 400, make))
    for name in ("self_mean", "ortho_mean", "frobenius_norm", "participation"):
        assert same_law(mine[name], theirs[name]), name
    gaussian = draws_of(sampler, "gaussian")[2]
    assert not same_law(mine["participation"], gaussian["participation"])


def test_rows_has_the_law_of_random_directions_with_the_rows_norms():
    geometry = a_geometry(d=40, H=2, KV=2, r=4)
    sampler = a_sampler(draws=400, geometry=geometry, heads=heavy_tailed_layer(geometry))

    def make(rng, A, B):
        # each row turned by a rotation of its own: the norm stays, the direction is uniform
        A = np.stack([row @ frame(rng, 4, 4) for row in A])
        B = np.stack([column @ frame(rng, 4, 4) for column in B.T], axis=1)
        return A, B

    _, _, mine = draws_of(sampler, "rows")
    theirs = quantities(*literal(sampler.factors(0), 400, make))
    for name in ("self_mean", "ortho_mean", "frobenius_norm", "participation"):
        assert same_law(mine[name], theirs[name]), name
    # read and written rows are large in the same dimensions, which the gaussian null knows nothing of
    assert mine["self_mean"].mean() > 1.5 * draws_of(sampler, "gaussian")[2]["self_mean"].mean()


def test_internal_keeps_both_subspaces_and_the_root_mean_square_of_ortho():
    geometry = a_geometry(d=40, H=2, KV=2, r=4)
    sampler = a_sampler(draws=400, geometry=geometry, heads=heavy_tailed_layer(geometry))
    A, B = sampler.factors(0)
    _, Z, mine = draws_of(sampler, "internal")
    own = decompose(A, B)
    cosines = np.linalg.svd(own.Z, compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(Z, compute_uv=False), np.tile(cosines, (400, 1)), atol=1e-10)
    square = np.mean(pair_quantities(own.Z)[3] ** 2)
    np.testing.assert_allclose(np.mean(pair_quantities(Z)[3] ** 2, axis=1), square, atol=1e-12)
    theirs = quantities(*literal((A, B), 400, lambda rng, A, B: (A @ frame(rng, 4, 4), B)))
    for name in ("self_mean", "rotation_mean", "frobenius_norm", "self_energy"):
        assert same_law(mine[name], theirs[name]), name


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_unpaired_is_every_pairing_with_another_group_once(matrix):
    geometry = a_geometry(H=6, KV=3)
    heads = a_layer(geometry, dtype=np.float64)
    sampler = a_sampler(matrix, 64, geometry, heads)
    for h in range(6):
        g = h // 2
        if matrix == "value":
            pairs = [(heads.W_V[g], heads.W_O[other]) for other in range(6) if other // 2 != g]
        else:
            pairs = [(heads.W_Q[h], heads.W_K[other].T) for other in range(3) if other != g]
        expected = np.stack([np.linalg.svd(A @ B, compute_uv=False)[:6] for A, B in pairs])
        np.testing.assert_allclose(sampler.pairs("unpaired", h)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("matrix", ["value", "qk"])
@pytest.mark.parametrize("kind", ["gaussian", "shuffle", "rows", "internal"])
def test_no_kind_but_spectrum_and_unpaired_keeps_the_pairing_whatever_the_memory_order(kind, matrix):
    """Heads that are multiples of projectors: all self as they are, whether their arrays are views or not."""
    geometry = a_geometry(d=48, H=2, KV=2, r=6)
    rng = np.random.default_rng(8)
    P = np.stack([frame(rng, 48, 6) * np.arange(6, 0, -1) for _ in range(2)])
    for order in "CF":
        W = np.array(P, order=order)
        heads = LayerHeads(W, W, W, np.array(P.transpose(0, 2, 1), order=order))
        own = draws_of(a_sampler(matrix, 30, geometry, heads), kind)[2]["self_mean"]
        assert own.mean() < 0.5


def test_unpaired_takes_a_subset_without_repeats_where_there_are_more_than_asked_for():
    geometry = a_geometry(d=20, H=12, KV=12, r=2)
    sampler = a_sampler("value", 5, geometry)
    chosen = [sampler.unpaired_outputs(index) for index in range(12)]
    assert all(len(set(some)) == 5 and index not in some for index, some in enumerate(chosen))
    assert len({tuple(some) for some in chosen}) > 1


def test_heads_that_share_one_key_value_head_have_no_unpaired_draws():
    geometry = a_geometry(H=4, KV=1)
    arrays = baseline_layer(
        a_layer(geometry), geometry, kind="unpaired", draws=8, key=(0, "m", 0), matrices=["value", "qk"]
    )
    assert {array.shape for array in arrays.values()} == {(4, 0)}


# --- a layer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LITERAL)
def test_a_layer_has_the_draws_of_every_quantity_that_the_kind_asks_something_of(kind):
    geometry = a_geometry(H=4, KV=2)
    arrays = baseline_layer(a_layer(geometry), geometry, kind=kind, draws=6, key=(0, "m", 0), matrices=["value", "qk"])
    names = null_names(kind, ALL_COSTS)
    assert set(arrays) == {f"{matrix}.{name}" for matrix in ("value", "qk") for name in names}
    n = {"value": 2, "qk": 1} if kind == "unpaired" else {"value": 6, "qk": 6}
    for name, array in arrays.items():
        assert array.shape == (4, n[name.partition(".")[0]])
        assert np.isfinite(array).all()


def test_pool_and_layer_together_have_every_quantity_of_the_spectrum_null():
    geometry = a_geometry(H=2, KV=2)
    layer = a_layer(geometry)
    arrays = baseline_layer(layer, geometry, kind="spectrum", draws=40, key=(0, "m", 0), matrices=["qk"])
    here = {name.removeprefix("qk.") for name in arrays}
    assert not here & set(FROM_THE_POOL)
    assert here | set(FROM_THE_POOL) == set(null_names("spectrum", ALL_COSTS))
    for name in here:
        assert arrays[f"qk.{name}"].shape == (2, 40 if REGISTRY[name].cost == "eigenvalues" else COSTLY_DRAWS)


@pytest.mark.parametrize("name", ["symmetric_share", "commutator_share", "spectral_radius", "henrici_share"])
def test_the_spectrum_null_of_a_layer_has_the_law_of_whole_matrices_with_the_heads_spectrum(name):
    geometry = a_geometry(H=1, KV=1)
    layer = a_layer(geometry)
    drawn = baseline_layer(layer, geometry, kind="spectrum", draws=400, key=(0, "m", 0), matrices=["value"])
    sigma = decompose(layer.W_V[0], layer.W_O[0]).sigma
    rng = np.random.default_rng(8)

    def whole():
        U, V = (np.linalg.qr(rng.standard_normal((geometry.d_model, len(sigma))))[0] for _ in range(2))
        return quantities(sigma, V.T @ U, names=[name])[name]

    assert same_law(drawn[f"value.{name}"][0], np.array([whole() for _ in range(400)]))


def test_the_spectrum_null_takes_the_pools_own_vectors():
    # all singular values alike: nothing depends on the head but its scale, and the pool has the same draws of Z
    geometry = a_geometry(H=1, KV=1)
    d, r = geometry.d_model, geometry.d_head
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    heads = LayerHeads(Q[None, :, :r], Q[None, :, :r], Q[None, :, :r], Q[None, :, r : 2 * r].transpose(0, 2, 1))
    drawn = baseline_layer(heads, geometry, kind="spectrum", draws=9, key=(4, "m", 0), matrices=["value"])
    # ||Z||^2 / r, which the pool has, is the commutator's norm in another guise: 2 - 2 ||Z||^2 / r = ||[W, W^T]||^2 / r
    pool = make_pool(d, r, COSTLY_DRAWS, 4)
    np.testing.assert_allclose(
        drawn["value.commutator_norm"][0] ** 2 / (2 * r), 1 - pool["subspace_overlap"], rtol=1e-9
    )


def test_a_head_of_lower_rank_has_no_spectrum_null():
    geometry = a_geometry(H=2, KV=2)
    plain = a_layer(geometry)
    W_O = plain.W_O.copy()
    W_O[1, -1] = 0
    heads = LayerHeads(plain.W_Q, plain.W_K, plain.W_V, W_O)
    for values in baseline_layer(heads, geometry, kind="spectrum", draws=3, key=(0,), matrices=["value"]).values():
        assert np.isfinite(values[0]).all()
        assert np.isnan(values[1]).all()


def test_draws_are_of_the_treated_factors():
    geometry = a_geometry()
    heads = a_layer(geometry)
    raw, gained = (a_sampler(geometry=geometry, heads=heads, treatment=name) for name in ("raw", "gain"))
    assert np.abs(raw.pairs("rows", 0)[0] - gained.pairs("rows", 0)[0]).max() > 0.1


def test_an_all_zero_head_has_no_values_and_spoils_no_other():
    geometry = a_geometry(H=2, KV=2)
    plain = a_layer(geometry)
    W_O = plain.W_O.copy()
    W_O[0] = 0
    heads = LayerHeads(plain.W_Q, plain.W_K, plain.W_V, W_O)
    for kind in ("shuffle", "rows", "internal"):
        own = baseline_layer(heads, geometry, kind=kind, draws=3, key=(0,), matrices=["value"])["value.self_mean"]
        assert np.isnan(own[0]).all()
        assert np.isfinite(own[1]).all()


def test_cross_attention_has_no_draws():
    geometry = a_geometry(stack="cross", d_source=30)
    plain = a_layer(geometry)
    heads = LayerHeads(plain.W_Q, plain.W_K[:, :30], plain.W_V[:, :30], plain.W_O)
    arrays = baseline_layer(heads, geometry, kind="shuffle", draws=3, key=(0,), matrices=["value", "qk"])
    assert {array.shape for array in arrays.values()} == {(4, 0)}


# --- the steps --------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path):
    geometry = a_geometry()
    heads = a_layer(geometry)
    write_geometry(tmp_path / "geometry.json", geometry)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        write_array(tmp_path / "layer-00" / f"{name}.npy", getattr(heads, name))
    write_arrays(tmp_path / "layer-00" / "extras.npz", heads.extras)
    write_json(tmp_path / "layer-00.json", {"step": "heads"})
    return tmp_path


def test_the_baseline_step_writes_draws_and_says_how_many(results):
    spec = {
        "kind": "unpaired", "draws": 8, "seed": 0, "model": "m", "layer_norm": "raw", "matrices": ["value", "qk"],
    }  # fmt: skip
    out, record = results / "out" / "layer-00.npz", results / "out" / "layer-00.json"
    baseline_step.main(
        ["--spec", json.dumps(spec), "--geometry", str(results / "geometry.json"), "--heads",
         str(results / "layer-00"), "--layer", "0", "--output", str(out), "--record", str(record)]
    )  # fmt: skip
    geometry = a_geometry()
    expected = baseline_layer(
        a_layer(geometry), geometry, kind="unpaired", draws=8, key=(0, "m", 0), matrices=["value", "qk"]
    )
    written = read_arrays(out)
    assert set(written) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(written[name], array)
    draws = read_json(record)["facts"]["draws"]
    assert (draws["value.self_mean"], draws["qk.self_mean"], set(draws)) == (2, 1, set(expected))


def test_the_pool_step_writes_a_pool_for_every_rank_of_the_model(results):
    write_geometry(results / "geometry.json", a_geometry(r=6, r_v=4))
    out, record = results / "baselines" / "haar.npz", results / "baselines" / "haar.json"
    haar_pool_step.main(
        ["--spec", json.dumps({"draws": 30, "seed": 5}), "--geometry", str(results / "geometry.json"),
         "--output", str(out), "--record", str(record)]
    )  # fmt: skip
    arrays = read_arrays(out)
    assert arrays["4.self2"].shape == (30, 4)
    assert arrays["6.self2"].shape == (30, 6)
    assert read_json(record)["facts"] == {"d_model": 48, "ranks": [4, 6]}
