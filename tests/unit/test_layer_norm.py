"""The norm treatments, each against a norm and a projection that are really carried out."""

from dataclasses import replace

import numpy as np
import pytest

from headmaps.errors import ConfigError, NumericError
from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors
from headmaps.layer_norm import TREATMENTS, folding, treated

D, H, KV, R = 24, 4, 2, 3


def layer_norm(x, gain, shift):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / centred.std(axis=-1, keepdims=True) * gain + shift


def rms_norm(x, gain):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True)) * gain


def a_geometry(kind="layer", place="pre", **norm):
    norm = {"bias": kind == "layer", **norm}
    return Geometry(
        model_type="test", layout="separate", layers=[0], n_layers=1, d_model=D, n_heads=H, n_kv_heads=KV,
        d_head=R, d_head_v=R, dtype="F32", scale=1.0, position=Position("none"), norm=Norm(kind, place, **norm),
    )  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def heads(rng):
    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    extras = {"b_Q": draw(H, R), "b_K": draw(KV, R), "b_V": draw(KV, R), "b_O": draw(D)}
    extras |= {"norm_weight": draw(D), "norm_bias": draw(D), "post_norm_weight": draw(D)}
    return LayerHeads(
        W_Q=draw(H, D, R), W_K=draw(KV, D, R), W_V=draw(KV, D, R), W_O=draw(H, R, D), extras=extras
    )  # fmt: skip


def projections(x, heads):
    """q, k, v of every token and head."""
    return {
        name: np.einsum("td,hdr->thr", x, np.float64(getattr(heads, f"W_{name}"))) + heads.extras[f"b_{name}"]
        for name in "QKV"
    }


@pytest.mark.parametrize("treatment", ["gain", "gain_and_center", "gain_and_center_write"])
def test_folded_weights_read_the_bare_layer_norm_as_the_stored_ones_read_the_whole(heads, rng, treatment):
    x = rng.standard_normal((7, D)) + 3
    extras = heads.extras
    expected = projections(layer_norm(x, np.float64(extras["norm_weight"]), extras["norm_bias"]), heads)

    folded, _ = treated(heads, a_geometry(), treatment)
    found = projections(layer_norm(x, 1.0, 0.0), folded)

    for name in "QKV":
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("plus_one", [False, True])
def test_the_gain_of_an_rms_norm_is_folded_with_the_family_s_own_one(heads, rng, plus_one):
    x = rng.standard_normal((7, D))
    gain = np.float64(heads.extras["norm_weight"]) + plus_one
    expected = projections(rms_norm(x, gain), heads)

    folded, notes = treated(heads, a_geometry("rms", plus_one=plus_one), "gain")

    found = projections(rms_norm(x, 1.0), folded)
    for name in "QKV":
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-12)
    assert any("1 + norm_weight" in note for note in notes) == plus_one


def test_centred_reads_need_no_centred_stream(heads, rng):
    """After centring, the layer norm only has to divide: adding a constant to x changes no query, key or value."""
    x = rng.standard_normal((7, D))
    folded, _ = treated(heads, a_geometry(), "gain_and_center")
    for name, found in projections(x + 100.0, folded).items():
        np.testing.assert_allclose(found, projections(x, folded)[name], atol=1e-10)
    only_gain, _ = treated(heads, a_geometry(), "gain")
    assert np.abs(projections(x + 100.0, only_gain)["Q"] - projections(x, only_gain)["Q"]).max() > 1


def test_centred_writes_change_only_what_the_next_layer_norm_cannot_see(heads, rng):
    stream, z = rng.standard_normal((7, D)), rng.standard_normal((7, H, R))
    before, _ = treated(heads, a_geometry(), "gain_and_center")
    after, _ = treated(heads, a_geometry(), "gain_and_center_write")

    def stream_after(layer):
        return stream + np.einsum("thr,hrd->td", z, np.float64(layer.W_O)) + layer.extras["b_O"]

    assert np.abs(stream_after(before) - stream_after(after)).max() > 0.1
    gain, shift = rng.standard_normal((2, D))
    seen_before, seen_after = (layer_norm(stream_after(layer), gain, shift) for layer in (before, after))
    np.testing.assert_allclose(seen_after, seen_before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", ["sandwich", "output"])
def test_a_norm_after_the_output_projection_is_folded_into_it(heads, rng, place):
    z = rng.standard_normal((7, H, R))

    def output(layer):
        return np.einsum("thr,hrd->td", z, np.float64(layer.W_O)) + layer.extras["b_O"]

    expected = rms_norm(output(heads), np.float64(heads.extras["post_norm_weight"]))
    folded, _ = treated(heads, a_geometry("rms", place), "gain")
    # up to the one number per token by which the norm divides
    ratio = output(folded) / expected
    np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones(D), rtol=1e-9)
    if place == "output":
        assert folded.W_Q is heads.W_Q


def test_an_output_layer_norm_is_centred_before_its_gain(heads, rng):
    z = rng.standard_normal((7, H, R))

    def output(layer):
        return np.einsum("thr,hrd->td", z, np.float64(layer.W_O)) + layer.extras["b_O"]

    expected = layer_norm(output(heads), np.float64(heads.extras["post_norm_weight"]), 0.0)
    folded, _ = treated(heads, a_geometry("layer", "sandwich"), "gain_and_center")
    ratio = output(folded) / expected
    np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones(D), rtol=1e-9)


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_post_norm_families_are_left_alone_and_it_is_said(heads, treatment):
    folded, notes = treated(heads, a_geometry(place="post"), treatment)
    assert all(getattr(folded, name) is getattr(heads, name) for name in ("W_Q", "W_K", "W_V", "W_O"))
    assert all(folded.extras[name] is heads.extras[name] for name in heads.extras)
    assert (treatment == "raw") == (notes == [])
    assert all("post-norm family: nothing folded" in note for note in notes)


def test_an_rms_norm_is_never_centred(heads):
    gain, _ = treated(heads, a_geometry("rms"), "gain")
    for treatment in ("gain_and_center", "gain_and_center_write"):
        folded, notes = treated(heads, a_geometry("rms"), treatment)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            np.testing.assert_array_equal(getattr(folded, name), getattr(gain, name))
        assert "centring not applicable: RMS norm" in notes


def test_a_norm_without_gain_still_centres(heads):
    geometry = a_geometry(weight=False, bias=False)
    folded, notes = treated(heads, geometry, "gain_and_center")
    np.testing.assert_allclose(folded.W_K, heads.W_K - np.float64(heads.W_K).mean(axis=1, keepdims=True))
    assert any(note.startswith("norm without gain") for note in notes)


def test_cross_attention_folds_the_decoder_s_norm_into_its_queries_only(heads):
    geometry = replace(a_geometry("rms"), stack="cross")
    folded, notes = treated(heads, geometry, "gain")
    np.testing.assert_allclose(folded.W_Q, np.float64(heads.W_Q) * heads.extras["norm_weight"][:, None])
    assert folded.W_K is heads.W_K
    assert folded.W_V is heads.W_V
    assert any("another stack" in note for note in notes)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_factors_one_by_one_are_those_of_the_whole_layer(heads, kind, treatment):
    geometry = a_geometry(kind, "sandwich")
    layer, _ = treated(heads, geometry, treatment)
    for h, (A, B, _) in enumerate(LayerFactors(heads, geometry, "value", treatment)):
        np.testing.assert_array_equal(A, layer.W_V[h // 2])
        np.testing.assert_array_equal(B, layer.W_O[h])
    for h, (A, B, _) in enumerate(LayerFactors(heads, geometry, "qk", treatment)):
        np.testing.assert_array_equal(A, layer.W_Q[h])
        np.testing.assert_array_equal(B, layer.W_K[h // 2].T)


def test_gain_comes_before_centring(heads):
    """P Gamma W, not Gamma P W: the columns of what is read sum to zero."""
    folded, _ = treated(heads, a_geometry(), "gain_and_center")
    np.testing.assert_allclose(np.sum(folded.W_Q, axis=1), 0, atol=1e-12)


def test_notes_name_every_fold_in_order(heads):
    assert list(folding(heads, a_geometry(), "gain_and_center_write").notes) == [
        "W_Q <- diag(norm_weight) W_Q",
        "W_K <- diag(norm_weight) W_K",
        "W_V <- diag(norm_weight) W_V",
        "b_Q <- b_Q + norm_bias W_Q",
        "b_K <- b_K + norm_bias W_K",
        "b_V <- b_V + norm_bias W_V",
        "W_Q <- P W_Q",
        "W_K <- P W_K",
        "W_V <- P W_V",
        "W_O <- W_O P (the next LayerNorm cannot see the mean of a write)",
    ]


def test_faults_are_named(heads):
    with pytest.raises(ConfigError, match="'centre'"):
        folding(heads, a_geometry(), "centre")
    bare = replace(heads, extras={name: a for name, a in heads.extras.items() if name != "norm_weight"})
    with pytest.raises(NumericError, match="norm_weight"):
        folding(bare, a_geometry(), "gain")
    short = replace(heads, extras=heads.extras | {"norm_bias": np.zeros(D - 1)})
    with pytest.raises(NumericError, match="norm_bias has shape"):
        folding(short, a_geometry(), "gain")
