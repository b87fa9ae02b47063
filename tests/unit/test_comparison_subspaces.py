"""How far the heads of two checkpoints moved apart: planted rotations, and full d x d matrices."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads
from headmaps.subspaces import COLUMNS, layer_subspaces, principal_angles, relative_change

D, H, R = 30, 2, 4
GEOMETRY = Geometry(
    model_type="test", layout="separate", layers=[0], n_layers=1, d_model=D, n_heads=H, n_kv_heads=H, d_head=R,
    d_head_v=R, dtype="F32", scale=1.0, position=Position("none"), norm=Norm("rms", "pre"),
)  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def a_layer(rng):
    def draw(*shape):
        return rng.standard_normal(shape)

    return LayerHeads(W_Q=draw(H, D, R), W_K=draw(H, D, R), W_V=draw(H, D, R), W_O=draw(H, R, D))


@pytest.mark.parametrize(("k", "m"), [(4, 4), (4, 2), (2, 4), (0, 3)])
def test_angles_are_those_of_an_independent_method(rng, k, m):
    one, two = (np.linalg.qr(rng.standard_normal((D, width)))[0] for width in (k, m))
    expected = np.sort(subspace_angles(one, two)) if k else np.empty(0)
    np.testing.assert_allclose(principal_angles(one, two), expected, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-6, 0.5, np.pi / 2 - 1e-9, np.pi / 2])
def test_a_planted_angle_is_found_however_small(rng, angle):
    frame = np.linalg.qr(rng.standard_normal((D, 5)))[0]
    one, turned = frame[:, :3], frame[:, :3].copy()
    turned[:, 2] = np.cos(angle) * frame[:, 2] + np.sin(angle) * frame[:, 4]
    np.testing.assert_allclose(principal_angles(one, turned), [0, 0, angle], atol=1e-15, rtol=1e-7)


def test_a_change_of_weights_is_measured_without_cancellation(rng):
    A, B = rng.standard_normal((D, R)), rng.standard_normal((R, D))
    A2, B2 = A + 1e-11 * rng.standard_normal(A.shape), B
    expected = np.linalg.norm((A2 - A) @ B) / np.linalg.norm(A @ B)
    assert relative_change(A, B, A2, B2) == pytest.approx(expected, rel=1e-3)
    assert relative_change(A, B, 2 * A, B) == pytest.approx(1.0)
    assert np.isnan(relative_change(0 * A, B, A, B))


def test_other_factors_of_the_same_matrix_are_no_change(rng):
    one = a_layer(rng)
    G = rng.standard_normal((R, R))
    two = LayerHeads(one.W_Q @ G, one.W_K @ np.linalg.inv(G).T, one.W_V @ G, np.linalg.inv(G) @ one.W_O)
    for matrix in ("value", "qk"):
        for name, values in layer_subspaces(one, two, GEOMETRY, matrix).items():
            np.testing.assert_allclose(values, 0, atol=1e-8, err_msg=name)


def test_only_the_side_that_changed_has_an_angle(rng):
    one = a_layer(rng)
    W_O = one.W_O.copy()
    W_O[1] = rng.standard_normal((R, D))
    found = layer_subspaces(one, LayerHeads(one.W_Q, one.W_K, one.W_V, W_O), GEOMETRY, "value")
    assert tuple(found) == COLUMNS
    np.testing.assert_allclose(found["input_angle_max"], 0, atol=1e-8)
    expected = np.degrees(subspace_angles(one.W_O[1].T, W_O[1].T))
    np.testing.assert_allclose(found["output_angle_max"], [0, expected.max()], atol=1e-8)
    np.testing.assert_allclose(found["output_angle_mean"], [0, expected.mean()], atol=1e-8)
    assert found["weight_change"][0] == pytest.approx(0, abs=1e-12)
    assert found["weight_change"][1] > 0.5


def test_a_zero_head_has_no_angles(rng):
    one = a_layer(rng)
    W_V = one.W_V.copy()
    W_V[0] = 0
    found = layer_subspaces(one, LayerHeads(one.W_Q, one.W_K, W_V, one.W_O), GEOMETRY, "value")
    assert np.isnan(found["input_angle_mean"][0])
    assert found["weight_change"][0] == pytest.approx(1.0)
    np.testing.assert_allclose(found["input_angle_mean"][1], 0, atol=1e-8)
