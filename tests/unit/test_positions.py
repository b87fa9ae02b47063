"""Rotary embeddings: frequencies as models in use compute them, and the QK matrix at a distance against real scores."""

import math

import numpy as np
import pytest

from headmaps.decomposition import decompose, pair_quantities
from headmaps.errors import ArchitectureError, ConfigError
from headmaps.geometry import Geometry, Norm, Position, QKNorm, Rotary
from headmaps.heads import LayerHeads
from headmaps.positions import decompose_at, factors_at, frequencies, position_notes, rotary_qk, rotation

D, H, KV, R = 40, 4, 2, 8
STYLES = ["half", "interleaved"]
OFFSETS = [0, 1, 2, 16, 300]


def a_geometry(rotary=None, qk_norm=None, position=None, **more):
    position = position or Position("rotary" if rotary else "none", {"default": rotary} if rotary else {})
    return Geometry(
        model_type="test", layout="separate", layers=[0], n_layers=1, d_model=D, n_heads=H, n_kv_heads=KV, d_head=R,
        d_head_v=R, dtype="F32", scale=1.0, position=position, norm=Norm("rms", "pre", bias=False), qk_norm=qk_norm,
        **more,
    )  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def heads(rng):
    def draw(*shape):
        return rng.standard_normal(shape)

    extras = {"norm_weight": draw(D), "q_norm": draw(H, R), "k_norm": draw(KV, R)}
    return LayerHeads(
        W_Q=draw(H, D, R), W_K=draw(KV, D, R), W_V=draw(KV, D, R), W_O=draw(H, R, D), extras=extras
    )  # fmt: skip


def turned(vector, position, rotary):
    """One query or key at a position, turned pair by pair as the paper writes it, with complex numbers."""
    out = vector.copy()
    half = rotary.rotary_dim // 2
    for i in range(half):
        first, second = (i, i + half) if rotary.style == "half" else (2 * i, 2 * i + 1)
        angle = position * rotary.base ** (-2 * i / rotary.rotary_dim)
        z = complex(vector[first], vector[second]) * complex(math.cos(angle), math.sin(angle))
        out[first], out[second] = rotary.attention_factor * z.real, rotary.attention_factor * z.imag
    return out


# --- the matrix at a distance is what gives the scores ------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("rotary_dim", [R, 4])
@pytest.mark.parametrize("attention_factor", [1.0, 1.3466])
def test_scores_come_out_at_every_distance_and_only_the_distance_matters(
    heads, rng, style, rotary_dim, attention_factor
):
    rotary = Rotary(style, rotary_dim, 100.0, attention_factor=attention_factor)
    x_m, x_n = rng.standard_normal((2, D))
    for attended in (0, 3, 17):
        for offset in OFFSETS:
            matrices = [A @ B for A, B in factors_at(heads, a_geometry(rotary), 0, offset)]
            for h, matrix in enumerate(matrices):
                q = turned(x_m @ heads.W_Q[h], attended + offset, rotary)
                k = turned(x_n @ heads.W_K[h // 2], attended, rotary)
                assert q @ k == pytest.approx(x_m @ matrix @ x_n, rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("style", STYLES)
def test_the_wrong_sign_and_the_wrong_style_fail(heads, rng, style):
    rotary = Rotary(style, R, 100.0)
    other = Rotary(STYLES[1 - STYLES.index(style)], R, 100.0)
    x_m, x_n = rng.standard_normal((2, D))
    score = turned(x_m @ heads.W_Q[0], 9, rotary) @ turned(x_n @ heads.W_K[0], 7, rotary)

    def at(offset, kind):
        return x_m @ rotary_qk(heads.W_Q[0], offset, a_geometry(kind), 0) @ heads.W_K[0].T @ x_n

    assert at(2, rotary) == pytest.approx(score, rel=1e-10)
    assert abs(at(-2, rotary) - score) > 1e-3 * abs(score)
    assert abs(at(2, other) - score) > 1e-3 * abs(score)


def test_the_block_is_that_of_row_vectors():
    c, s = math.cos(3.0), math.sin(3.0)
    np.testing.assert_allclose(rotation(Rotary("half", 2, 10.0), 3, 2), [[c, s], [-s, c]])


def test_rotations_add_up_along_positions():
    rotary = Rotary("interleaved", 6, 50.0)
    np.testing.assert_allclose(rotation(rotary, 5, R) @ rotation(rotary, 7, R), rotation(rotary, 12, R), atol=1e-14)


def test_layers_may_turn_differently_or_not_at_all(heads):
    local, everywhere = Rotary("half", R, 10.0), Rotary("half", R, 1e4)
    position = Position("rotary", {"local": local, "global": everywhere}, {0: "local", 1: "global", 2: None})
    geometry = a_geometry(position=position)
    for layer, kind in enumerate([local, everywhere]):
        np.testing.assert_array_equal(rotary_qk(heads.W_Q, 5, geometry, layer), heads.W_Q @ rotation(kind, 5, R))
    np.testing.assert_array_equal(rotary_qk(heads.W_Q, 5, geometry, 2), heads.W_Q)
    assert "no rotary embedding in this layer" in position_notes(geometry, 2)[0]


# --- what distance cannot change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_distance_changes_neither_subspaces_nor_ortho_s_root_mean_square_nor_the_product_of_sigmas(heads, style):
    geometry = a_geometry(Rotary(style, 6, 100.0))
    A0, B0 = next(factors_at(heads, geometry, 0, 0))
    A1, B1 = next(factors_at(heads, geometry, 0, 37))
    zero, far = decompose(A0, B0), decompose(A1, B1)

    for one, two in ((zero.input_vectors(A0), far.input_vectors(A1)),
                     (zero.output_vectors(B0).T, far.output_vectors(B1).T)):  # fmt: skip
        np.testing.assert_allclose(np.linalg.svd(one.T @ two, compute_uv=False), 1, atol=1e-10)
    ortho = [pair_quantities(found.Z)[3] for found in (zero, far)]
    assert np.mean(ortho[0] ** 2) == pytest.approx(np.mean(ortho[1] ** 2), rel=1e-10)
    assert np.prod(zero.sigma) == pytest.approx(np.prod(far.sigma), rel=1e-9)
    # while these do change
    assert np.linalg.norm(zero.sigma) != pytest.approx(np.linalg.norm(far.sigma), rel=1e-3)
    assert not np.allclose(ortho[0], ortho[1], rtol=1e-3)


def test_an_attention_factor_enters_as_its_square_on_the_rotated_dimensions_only():
    R_D = rotation(Rotary("half", 4, 10.0, attention_factor=1.5), 3, 6)
    np.testing.assert_allclose(np.linalg.svd(R_D, compute_uv=False), [2.25] * 4 + [1.0] * 2)
    np.testing.assert_array_equal(R_D[4:, 4:], np.eye(2))


# --- query/key norms ----------------------------------------------------------------------------------------------


def normed(vector, kind, gain):
    if kind == "layer":
        vector = vector - vector.mean()
    return vector / np.sqrt(np.mean(vector**2)) * gain


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("span", ["head", "width"])
@pytest.mark.parametrize("plus_one", [False, True])
def test_query_key_norms_give_the_score_up_to_the_sizes_they_divide_by(heads, rng, kind, span, plus_one):
    rotary = Rotary("half", R, 100.0)
    geometry = a_geometry(rotary, QKNorm(kind, span, plus_one))
    x_m, x_n = rng.standard_normal((2, D))
    gains = {name: heads.extras[name] + plus_one for name in ("q_norm", "k_norm")}
    queries, keys = np.einsum("d,hdr->hr", x_m, heads.W_Q), np.einsum("d,hdr->hr", x_n, heads.W_K)
    if span == "width":
        size_q, size_k = (np.std(v) if kind == "layer" else np.sqrt(np.mean(v**2)) for v in (queries, keys))
        queries = normed(queries.ravel(), kind, gains["q_norm"].ravel()).reshape(H, R) * size_q
        keys = normed(keys.ravel(), kind, gains["k_norm"].ravel()).reshape(KV, R) * size_k
    else:

        def each(vectors, gain):
            size = np.std(vectors, axis=1) if kind == "layer" else np.sqrt(np.mean(vectors**2, axis=1))
            return np.stack([normed(v, kind, g) for v, g in zip(vectors, gain, strict=True)]) * size[:, None]

        queries, keys = each(queries, gains["q_norm"]), each(keys, gains["k_norm"])
    for h, (A, B) in enumerate(factors_at(heads, geometry, 0, 6)):
        score = turned(queries[h], 10, rotary) @ turned(keys[h // 2], 4, rotary)
        assert x_m @ A @ B @ x_n == pytest.approx(score, rel=1e-9, abs=1e-9)
    assert any("not exactly bilinear" in note for note in position_notes(geometry, 0))


def test_a_layer_norm_over_one_head_takes_one_rank(heads):
    geometry = a_geometry(Rotary("half", R, 100.0), QKNorm("layer", "head"))
    A, B = next(factors_at(heads, geometry, 0, 3))
    assert decompose(A, B).rank == R - 1


def test_the_treatment_of_the_layer_norm_enters_as_well(heads):
    rotary = Rotary("half", R, 100.0)
    A, B = next(factors_at(heads, a_geometry(rotary), 0, 3, treatment="gain"))
    gain = heads.extras["norm_weight"][:, None]
    np.testing.assert_allclose(A, (gain * heads.W_Q[0]) @ rotation(rotary, 3, R))
    np.testing.assert_allclose(B, (gain * heads.W_K[0]).T)


# --- frequencies --------------------------------------------------------------------------------------------------

LONG = {
    "type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "original_max_position_embeddings": 4096,
}  # fmt: skip
REFERENCE = {
    # scaling, base, sequence length -> what transformers 5.24 computes in float32 for rotary_dim 16
    "llama3": (
        {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}, 500000.0, None,
        [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06],
    ),
    "yarn, unrounded ramp": (
        {"type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}, 150000.0, None,
        [1.0, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06, 9.24208962e-07],
    ),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 10000.0, None,
        [1.0, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012, 7.90569466e-05],
    ),
    "linear": (
        {"type": "linear", "factor": 4.0}, 10000.0, None,
        [0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05],
    ),
    "dynamic, beyond": (
        {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}, 10000.0, 4096,
        [1.0, 0.270296127, 0.0730599985, 0.0197478328, 0.00533776265, 0.00144277664, 0.000389976922, 0.000105409257],
    ),
    "dynamic, within": (
        {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}, 10000.0, 1000,
        [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786],
    ),
    "longrope, within": (
        LONG, 10000.0, 4096,
        [1.0, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532, 0.000624999986, 0.000186016332],
    ),
    "longrope, beyond": (
        LONG, 10000.0, 4097,
        [1.0, 0.158113882, 0.0333333351, 0.00790569466, 0.00200000009, 0.00052704633, 0.000142857141, 3.95284733e-05],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_scaled_frequencies_are_those_of_the_models_own_code(name):
    scaling, base, length, expected = REFERENCE[name]
    np.testing.assert_allclose(frequencies(Rotary("half", 16, base, scaling), length), expected, rtol=3e-7)


@pytest.mark.parametrize("name", ["dynamic, beyond", "longrope, beyond"])
def test_scalings_that_depend_on_a_sequence_length_ask_for_it(name):
    scaling, base, _, _ = REFERENCE[name]
    with pytest.raises(ConfigError, match="number of tokens in context") as caught:
        frequencies(Rotary("half", 16, base, scaling))
    assert "sequence_length: 4096" in str(caught.value)


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        (Rotary("half", 16, 1e4, {"type": "su"}), "'su' is unknown"),
        (Rotary("half", 16, 1e4, {"type": "yarn", "factor": 4.0}), "needs original_max_position_embeddings"),
        (Rotary("half", 7, 1e4), "7 dimensions"),
        (Rotary("quarter", 16, 1e4), "'quarter' is unknown"),
        (Rotary("half", 64, 1e4), "cannot have 64"),
        (Rotary("half", 8, 1e4, LONG), "8 numbers under short_factor"),
    ],
)
def test_faults_are_named(rotary, message):
    with pytest.raises(ArchitectureError, match=message):
        rotation(rotary, 1, 16, sequence_length=10)


def test_positions_enter_qk_matrices_only(heads):
    with pytest.raises(ArchitectureError, match="do not enter the 'value' matrix"):
        next(factors_at(heads, a_geometry(), 0, 1, matrix="value"))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("alibi", "ALiBi adds a number"), ("learned", "added to the embeddings"), ("relative", "learned bias"),
     ("none", "no position scheme")],
)  # fmt: skip
def test_other_schemes_are_stated_and_leave_the_matrix_alone(heads, scheme, words):
    geometry = a_geometry(position=Position(scheme), softcap=50.0, sinks=True)
    notes = position_notes(geometry, 0)
    assert words in notes[0]
    assert any("soft-capped at 50" in note for note in notes)
    assert any("sinks" in note for note in notes)
    for h, (A, B) in enumerate(factors_at(heads, geometry, 0, 64)):
        np.testing.assert_array_equal(A, heads.W_Q[h])
        np.testing.assert_array_equal(B, heads.W_K[h // 2].T)


# --- a layer at several distances ---------------------------------------------------------------------------------


def test_a_layer_s_file_holds_each_distance_as_its_own_decomposition(heads):
    geometry = a_geometry(Rotary("half", R, 100.0))
    arrays = decompose_at(heads, geometry, 0, [0, 3, 40])
    np.testing.assert_array_equal(arrays["offsets"], [0, 3, 40])
    assert arrays["sigma"].shape == arrays["overlap"].shape == (3, H, R)
    for place, offset in enumerate([0, 3, 40]):
        for h, (A, B) in enumerate(factors_at(heads, geometry, 0, offset)):
            U, s, Vh = np.linalg.svd(A @ B)
            np.testing.assert_allclose(arrays["sigma"][place, h], s[:R], rtol=1e-9)
            overlap = np.sum(Vh[:R] * U[:, :R].T, axis=1)
            np.testing.assert_allclose(arrays["overlap"][place, h], overlap, atol=1e-9)
            assert arrays["q_self_mean"][place, h] == pytest.approx(np.abs(overlap).mean())
    ortho = np.sqrt((arrays["ortho"] ** 2).mean(axis=2))
    np.testing.assert_allclose(ortho, ortho[:1] * np.ones((3, 1)), rtol=1e-10)


def test_without_a_rotation_all_distances_are_alike(heads):
    arrays = decompose_at(heads, a_geometry(position=Position("alibi")), 0, [0, 5])
    np.testing.assert_array_equal(arrays["sigma"][0], arrays["sigma"][1])


def test_of_latent_attention_only_the_rotary_part_turns(rng):
    geometry = a_geometry(Rotary("interleaved", 2, 100.0), matrices=["value", "qk_nope", "qk_rope"], d_head_rope=2)
    heads = LayerHeads(
        W_Q=rng.standard_normal((H, D, R)),
        W_K=rng.standard_normal((KV, D, R)),
        W_V=rng.standard_normal((KV, D, R)),
        W_O=rng.standard_normal((H, R, D)),
        extras={},
    )
    still, turning = (decompose_at(heads, geometry, 0, [0, 9], matrix=m) for m in ("qk_nope", "qk_rope"))
    assert still["sigma"].shape == (2, H, R - 2)
    np.testing.assert_array_equal(still["sigma"][0], still["sigma"][1])
    assert turning["sigma"].shape == (2, H, 2)
    assert not np.allclose(turning["sigma"][0], turning["sigma"][1], rtol=1e-3)
