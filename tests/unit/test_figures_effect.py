"""Figures 3 and 5: the parts of one head's drawing, what they show and in which order."""

import numpy as np
import pytest

from headmaps.decomposition import decompose_layer
from headmaps.errors import ResultError
from headmaps.figures import effect
from headmaps.figures.bands import band, head_bands
from headmaps.records import write_array, write_arrays
from support.random_heads import a_geometry, a_layer

FRAME = "frame."


@pytest.fixture(scope="module")
def layer():
    geometry = a_geometry()
    heads = a_layer(geometry)
    return geometry, heads, {matrix: decompose_layer(heads, geometry, matrix) for matrix in ("value", "qk")}


def write_heads(folder, heads):
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        write_array(folder / f"{name}.npy", getattr(heads, name))
    write_arrays(folder / "extras.npz", heads.extras)


def dense(heads, matrix, head):
    """The decomposition of a head's d x d matrix; two query heads share a key/value head."""
    W_Q, W_K, W_V, W_O = (array.astype(float) for array in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O))
    group = head // 2
    return np.linalg.svd(W_V[group] @ W_O[head] if matrix == "value" else W_Q[head] @ W_K[group].T)


def a_drawing(one, matrix="value"):
    return effect.draw(one, "m: Layer 13 | Head 7", effect.caption(one, FRAME, matrix, {}))


def axes_with(sheet, label):
    return next(axes for axes in sheet.figure.axes if label in (axes.get_xlabel(), axes.get_ylabel()))


def test_the_heat_map_is_Z_with_inputs_along_and_outputs_down(layer):
    one = effect.head_effect(layer[2]["value"], 2)
    axes = axes_with(a_drawing(one), "input (uⱼ)")
    np.testing.assert_array_equal(axes.images[0].get_array(), layer[2]["value"]["Z"][2])
    assert axes.get_ylabel() == "output (vᵢ)"
    assert axes.yaxis_inverted()
    assert axes.images[0].norm.vmin == -axes.images[0].norm.vmax


def test_blue_is_negative_white_is_zero_and_red_is_positive():
    blue, white, red = effect.BLUE_WHITE_RED([0.1, 0.5, 0.9])[:, :3]
    assert blue[2] > blue[0]
    np.testing.assert_allclose(white, 1.0)
    assert red[0] > red[2]


def test_above_it_are_sigma_and_its_parts_in_the_articles_colours(layer):
    one = effect.head_effect(layer[2]["value"], 1)
    strip = a_drawing(one).figure.axes[1]
    lines = {line.get_color(): line.get_ydata() for line in strip.lines if len(line.get_ydata()) == 6}
    sigma, Z = one.sigma, one.Z
    np.testing.assert_allclose(lines[effect.SIGMA], sigma)
    np.testing.assert_allclose(lines[effect.SELF], sigma * np.abs(np.diag(Z)))
    squares = lines[effect.SELF] ** 2 + lines[effect.ORTHO] ** 2 + lines[effect.ROTATION] ** 2
    np.testing.assert_allclose(squares, sigma**2)
    off_diagonal = Z - np.diag(np.diag(Z))
    np.testing.assert_allclose(lines[effect.ROTATION], sigma * np.linalg.norm(off_diagonal, axis=1))


def test_at_the_left_sigma_is_turned_and_rises_away_from_the_heat_map(layer):
    one = effect.head_effect(layer[2]["value"], 1)
    axes = axes_with(a_drawing(one), "σ")
    line = next(line for line in axes.lines if line.get_color() == effect.SIGMA)
    np.testing.assert_allclose(line.get_xdata(), one.sigma)
    np.testing.assert_allclose(line.get_ydata(), np.arange(6))
    assert axes.xaxis_inverted()
    assert axes.yaxis_inverted()
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in axes.lines)  # dashed at 1


def test_biases_are_projections_on_input_and_output_vectors(layer):
    _, heads, found = layer
    one = effect.head_effect(found["value"], 3)
    U, _, Vh = dense(heads, "value", 3)
    b_O = heads.extras["b_O"].astype(float)
    np.testing.assert_allclose(np.abs(one.bias_input["b_O"]), np.abs(b_O @ U[:, :6]), rtol=1e-9)
    np.testing.assert_allclose(np.abs(one.bias_output["b_O"]), np.abs(Vh[:6] @ b_O), rtol=1e-9)
    assert one.biases[0] == "b_V_W_O"


def test_no_strip_for_biases_and_states_where_there_are_none(layer):
    found = {name: array for name, array in layer[2]["value"].items() if not name.startswith("bias_")}
    one = effect.head_effect(found, 0)
    text = effect.caption(one, FRAME, "value", {})
    assert "no bias" in text
    assert "band of hidden states is left out" in text
    assert len(a_drawing(one).figure.axes) == len(a_drawing(effect.head_effect(layer[2]["value"], 0)).figure.axes) - 2


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_the_band_holds_98_percent_of_the_states_on_each_vector(layer, matrix, tmp_path):
    geometry, heads, found = layer
    write_heads(tmp_path / "layer-00", heads)
    rng = np.random.default_rng(1)
    states = {name: rng.standard_normal((2000, 48)) for name in ("input", "output")}
    for name, array in states.items():
        np.save(tmp_path / f"{name}-00.npy", array.astype(np.float32))
    paths = (tmp_path / "input-00.npy", tmp_path / "output-00.npy")
    bands = head_bands(tmp_path / "layer-00", geometry, "raw", matrix, 2, *paths)
    # the vectors from a dense decomposition, up to their signs
    U, _, Vh = dense(heads, matrix, 2)
    for ours, vectors, name in (
        (bands[0], U[:, :6], "input"),
        (bands[1], Vh[:6].T, "output" if matrix == "value" else "input"),
    ):
        for k in range(6):
            inside = np.quantile(states[name] @ vectors[:, k], [0.01, 0.99])
            turned = -inside[::-1]
            assert min(np.abs(ours[:, k] - inside).max(), np.abs(ours[:, k] - turned).max()) < 1e-5
    one = effect.head_effect(found[matrix], 2, bands)
    assert "0.01 to 0.99 quantiles" in effect.caption(one, FRAME, matrix, {})
    assert len(a_drawing(one, matrix).figure.axes[0].collections) == 1


def test_the_bands_vectors_have_the_signs_of_the_decomposition(layer, tmp_path):
    geometry, heads, found = layer
    write_heads(tmp_path / "layer-00", heads)
    # states at one bias vector: the band collapses onto the stored bias line, sign included
    b_O = heads.extras["b_O"].astype(float)
    np.save(tmp_path / "states.npy", np.stack([b_O, b_O]))
    bands = head_bands(tmp_path / "layer-00", geometry, "raw", "value", 1, *[tmp_path / "states.npy"] * 2)
    np.testing.assert_allclose(bands[0], np.tile(found["value"]["bias_input_b_O"][1], (2, 1)), atol=1e-9)
    np.testing.assert_allclose(bands[1], np.tile(found["value"]["bias_output_b_O"][1], (2, 1)), atol=1e-9)


def test_a_band_is_the_quantiles_by_vector():
    states = np.stack([np.linspace(0, 1, 101), np.linspace(0, -2, 101)], axis=1)
    np.testing.assert_allclose(band(states, np.eye(2)), [[0.01, -1.98], [0.99, -0.02]])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 7)), r"\(5, 7\)"),
        (np.full((5, 48), np.nan), "NaN"),
        (np.zeros(48), r"\(48,\)"),
        (np.zeros((0, 48)), r"\(0, 48\)"),
    ],
)
def test_states_of_the_wrong_kind_are_refused(layer, tmp_path, array, message):
    geometry, heads, _ = layer
    write_heads(tmp_path / "layer-00", heads)
    np.save(tmp_path / "states.npy", array)
    with pytest.raises(ResultError, match=message) as error:
        head_bands(tmp_path / "layer-00", geometry, "raw", "value", 1, *[tmp_path / "states.npy"] * 2)
    assert "states.npy" in str(error.value)


def test_pairs_that_rounding_cannot_tell_apart_are_counted_in_the_caption():
    sigma = np.array([[4.0, 3.99, 3.0, 2.0, 1.01, 1.0]])
    found = {"sigma": sigma, "Z": np.eye(6)[None] / 2, "rank": np.array([6]), "precision_sigma": np.array([0.01])}
    one = effect.head_effect(found, 0)
    assert one.unresolved == 4
    assert "4 of 6 singular values" in effect.caption(one, FRAME, "value", {})


def test_pairs_beyond_the_rank_are_not_drawn():
    found = {"sigma": np.array([[2.0, 1.0, 0.0]]), "Z": np.diag([0.5, 0.5, 0.0])[None], "rank": np.array([2])}
    assert effect.head_effect(found, 0).Z.shape == (2, 2)


@pytest.mark.parametrize("changes", [{"rank": np.array([0])}, {"comparable": np.array([False])}])
def test_a_head_without_overlaps_says_so_in_place_of_a_drawing(changes):
    found = {"sigma": np.ones((1, 3)), "Z": np.zeros((1, 3, 3)), "rank": np.array([3]), **changes}
    one = effect.head_effect(found, 0)
    sheet = a_drawing(one)
    assert not sheet.figure.axes
    assert len(sheet.figure.texts) == 3


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1.4, [0, 1]), (-0.19, 0.3, [0, 0.2]), (-7, 5, [0, -5]), (0, 58, [0, 50]), (0, 0, [0, 0])],
)
def test_narrow_strips_have_two_ticks(low, high, expected):
    np.testing.assert_allclose(effect.two_ticks(low, high), expected)
