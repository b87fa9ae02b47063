"""Composition between heads: against direct d x d products, against random heads, and with a planted circuit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from headmaps.composition import (
    COLUMNS,
    Readers,
    Writers,
    compose,
    layer_composition,
    null_sd,
    participation,
    readers_of,
    strongest,
    ways_of,
    writers_of,
    z_of,
)
from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads

D, R = 32, 4


def a_geometry(n_heads=4, n_kv_heads=2, layers=4, **more):
    return Geometry(
        model_type="test", layout="separate", layers=list(range(layers)), n_layers=layers, d_model=D, n_heads=n_heads,
        n_kv_heads=n_kv_heads, d_head=R, d_head_v=R, dtype="F32", scale=1.0, position=Position("none"),
        norm=Norm("rms", "pre"), **more,
    )  # fmt: skip


def a_layer(rng, n_heads=4, n_kv_heads=2, d=D, r=R):
    def draw(*shape):
        return rng.standard_normal(shape) * np.exp(rng.standard_normal(shape[-1]))

    return LayerHeads(
        W_Q=draw(n_heads, d, r), W_K=draw(n_kv_heads, d, r), W_V=draw(n_kv_heads, d, r), W_O=draw(n_heads, r, d),
        extras={"norm_weight": rng.uniform(0.5, 2.0, d)},
    )  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_scores_are_those_of_the_full_matrices(rng, n_kv_heads):
    """The definition, with d x d matrices, for grouped heads and for heads with keys and values of their own."""
    geometry = a_geometry(n_kv_heads=n_kv_heads)
    one, two = a_layer(rng, n_kv_heads=n_kv_heads), a_layer(rng, n_kv_heads=n_kv_heads)
    found = {way: compose(writers_of(one, geometry, "gain"), readers)
             for way, readers in readers_of(two, geometry, "gain").items()}  # fmt: skip
    gain1, gain2 = (np.diag(heads.extras["norm_weight"]) for heads in (one, two))

    assert list(found) == ["V", "Q", "K"]
    for h, k in itertools.product(range(4), range(4)):
        g, j = h // (4 // n_kv_heads), k // (4 // n_kv_heads)
        writer = gain1 @ one.W_V[g] @ one.W_O[h]
        qk = gain2 @ two.W_Q[k] @ two.W_K[j].T @ gain2
        for way, reader in (("V", gain2 @ two.W_V[j] @ two.W_O[k]), ("Q", qk), ("K", qk.T)):
            score = np.linalg.norm(writer @ reader) / np.linalg.norm(writer) / np.linalg.norm(reader)
            assert np.sqrt(found[way][0][h, k]) == pytest.approx(score, rel=1e-10)
            written = np.linalg.svd(writer)[2][:R]
            read = np.linalg.svd(reader)[0][:, :R]
            assert found[way][1][h, k] == pytest.approx(np.linalg.norm(written @ read) ** 2 / R, rel=1e-9)


def test_the_size_of_a_block_changes_nothing(rng, monkeypatch):
    geometry = a_geometry()
    writers, readers = writers_of(a_layer(rng), geometry, "raw"), readers_of(a_layer(rng), geometry, "raw")
    whole = {way: compose(writers, each) for way, each in readers.items()}
    monkeypatch.setattr("headmaps.composition.BLOCK_BYTES", 1)
    for way, each in readers.items():
        np.testing.assert_allclose(compose(writers, each), whole[way], rtol=1e-13)


def test_a_head_that_reads_exactly_what_another_writes_overlaps_fully(rng):
    geometry = a_geometry()
    one, two = a_layer(rng), a_layer(rng)
    W_Q = two.W_Q.copy()
    W_Q[2] = one.W_O[1].T @ rng.standard_normal((R, R))
    found = compose(writers_of(one, geometry, "raw"), readers_of(replace(two, W_Q=W_Q), geometry, "raw")["Q"])
    assert found[1][1, 2] == pytest.approx(1.0)
    assert np.sort(found[1], axis=None)[-2] < 0.6


def test_a_planted_induction_pair_is_found_first(rng):
    """Head 1 of layer 0 writes a subspace that the keys of head 3 of layer 2 read: K-composition names the pair."""
    geometry = a_geometry(n_kv_heads=4)
    layers = [a_layer(rng, n_kv_heads=4) for _ in range(4)]
    W_K = layers[2].W_K.copy()
    W_K[3] = layers[0].W_O[1].T @ np.diag([1.0, 2.0, 3.0, 4.0]) + 0.1 * rng.standard_normal((D, R))
    layers[2] = replace(layers[2], W_K=W_K)

    arrays = {
        layer: layer_composition(
            readers_of(heads, geometry, "raw"),
            ((earlier, writers_of(layers[earlier], geometry, "raw")) for earlier in range(layer)), 4,
        )
        for layer, heads in enumerate(layers)
    }  # fmt: skip

    rows = strongest(arrays.items(), D, "K", 5)
    assert [rows[0][name] for name in COLUMNS[:5]] == ["K", 0, 1, 2, 3]
    assert rows[0]["z"] > 5
    assert rows[0]["composition"] == pytest.approx(rows[0]["square"] ** 0.5)
    assert rows[0]["square_excess"] == pytest.approx(rows[0]["square"] - 1 / D)
    assert [row["square"] for row in rows] == sorted((row["square"] for row in rows), reverse=True)
    for way in ("V", "Q"):
        assert [strongest(arrays.items(), D, way, 1)[0][name] for name in COLUMNS[1:5]] != [0, 1, 2, 3]


def test_every_earlier_head_meets_every_later_one_once(rng):
    geometry = a_geometry()
    layers = [a_layer(rng) for _ in range(3)]
    writers = [(layer, writers_of(heads, geometry, "raw")) for layer, heads in enumerate(layers)]
    arrays = {layer: layer_composition(readers_of(heads, geometry, "raw"), writers[:layer], 4)
              for layer, heads in enumerate(layers)}  # fmt: skip
    assert arrays[0]["square_V"].shape == (0, 4, 4)
    assert strongest([(0, arrays[0])], D, "V", 10) == []
    pairs = [tuple(row[name] for name in COLUMNS[1:5]) for row in strongest(arrays.items(), D, "V", 1000)]
    expected = itertools.product(range(3), range(4), range(3), range(4))
    assert sorted(pairs) == [pair for pair in expected if pair[0] < pair[2]]


# --- the null -----------------------------------------------------------------------------------------------------


def frames(rng, count, d, r):
    return np.linalg.qr(rng.standard_normal((count, d, r)))[0]


@pytest.mark.parametrize(("d", "spectra"), [(24, "steep"), (24, "flat"), (64, "steep")])
def test_random_heads_have_the_null_s_mean_and_spread(rng, d, spectra):
    s1, s2 = (np.ones(6), np.ones(6)) if spectra == "flat" else (np.exp(-np.arange(6.0)), 1 / np.arange(1.0, 7.0))
    n = 150
    writers = Writers(s1[:, None] ** 0 * frames(rng, n, d, 6).transpose(0, 2, 1), np.tile(s1, (n, 1)))
    square, _ = compose(writers, Readers(frames(rng, n, d, 6), None, np.tile(s2, (n, 1))))
    sd = null_sd(participation(s1), participation(s2), d)
    # n^2 pairs, of which those with a common head are uncorrelated given Haar frames
    assert square.mean() == pytest.approx(1 / d, abs=5 * sd / n)
    assert square.std() == pytest.approx(sd, rel=0.1)
    z = z_of(square, participation(s1), participation(s2), d)
    assert abs(z.mean()) < 5 / n
    assert z.std() == pytest.approx(1.0, rel=0.1)


def test_far_below_full_rank_the_spread_is_two_over_the_participations():
    assert null_sd(20.0, 8.0, 100_000) == pytest.approx(np.sqrt(2 / (20 * 8)) / 100_000, rel=1e-3)


def test_a_writer_to_all_directions_alike_leaves_nothing_to_chance():
    assert null_sd(50.0, 3.0, 50) == 0


def test_participation_counts_equal_singular_values():
    assert participation(np.array([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert np.isnan(participation(np.zeros(3)))


# --- what is not there --------------------------------------------------------------------------------------------


def test_a_zero_head_has_no_scores(rng):
    geometry = a_geometry()
    W_O = (one := a_layer(rng)).W_O.copy()
    W_O[0] = 0
    square, overlap = compose(
        writers_of(replace(one, W_O=W_O), geometry, "raw"), readers_of(a_layer(rng), geometry, "raw")["V"]
    )
    assert np.isnan(square[0]).all()
    assert np.isnan(overlap[0]).all()
    assert np.isfinite(square[1:]).all()


def test_a_head_of_lower_rank_counts_its_own_directions(rng):
    geometry = a_geometry(n_kv_heads=4)
    one = a_layer(rng, n_kv_heads=4)
    W_V = one.W_V.copy()
    W_V[0, :, 1:] = 0
    square, overlap = compose(
        writers_of(replace(one, W_V=W_V), geometry, "raw"), readers_of(a_layer(rng, 4, 4), geometry, "raw")["Q"]
    )
    assert np.isfinite(square).all()
    assert (overlap <= 1).all()


def test_cross_attention_composes_through_its_queries_only():
    assert [way.name for way in ways_of(replace(a_geometry(), stack="cross"))] == ["Q"]


def test_latent_attention_has_a_query_and_a_key_way_for_each_part():
    geometry = replace(a_geometry(), matrices=["value", "qk_nope", "qk_rope"], d_head_rope=2)
    assert [way.name for way in ways_of(geometry)] == ["V", "Q_nope", "K_nope", "Q_rope", "K_rope"]
