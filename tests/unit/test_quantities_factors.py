"""Quantities from the factors against the d x d matrix, and the score's bias terms against scores."""

from dataclasses import replace

import numpy as np
import pytest

from headmaps.factor_quantities import FACTOR_REGISTRY, bias_reach, directionality, factor_quantities, score_biases
from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors

D, R, H, KV = 24, 6, 4, 2
NORM = Norm("layer", "pre", bias=True)
GEOMETRY = Geometry("made", "split", [0], 1, D, H, KV, R, R, "F32", 1.0, Position("none"), NORM)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(6)


@pytest.fixture
def heads(generator: np.random.Generator) -> LayerHeads:
    shapes = {"W_Q": (H, D, R), "W_K": (KV, D, R), "W_V": (KV, D, R), "W_O": (H, R, D)}
    biases = {"b_Q": (H, R), "b_K": (KV, R), "b_V": (KV, R), "b_O": (D,)}
    extras = {name: generator.normal(size=shape) for name, shape in biases.items()}
    return LayerHeads(**{name: generator.normal(size=shape) for name, shape in shapes.items()}, extras=extras)


def of_layer(heads: LayerHeads, matrix: str, treatment: str = "raw") -> list[dict[str, float]]:
    layer = LayerFactors(heads, GEOMETRY, matrix, treatment)
    return [factor_quantities(layer, head, A, B, factors) for head, (A, B, factors) in enumerate(layer)]


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_row_and_column_norms_are_those_of_the_full_matrix(matrix: str, heads: LayerHeads) -> None:
    for head, found in enumerate(of_layer(heads, matrix)):
        group = head // (H // KV)
        W = heads.W_V[group] @ heads.W_O[head] if matrix == "value" else heads.W_Q[head] @ heads.W_K[group].T
        rows, columns = np.linalg.norm(W, axis=1), np.linalg.norm(W, axis=0)
        assert found["input_participation"] == pytest.approx(np.sum(rows**2) ** 2 / np.sum(rows**4))
        assert found["output_participation"] == pytest.approx(np.sum(columns**2) ** 2 / np.sum(columns**4))
        assert found["directionality"] == pytest.approx(directionality(rows, columns))


def test_directionality_points_to_the_side_with_outlier_dimensions() -> None:
    even, peaked = np.ones(100), np.where(np.arange(100) == 7, 50.0, 1.0)
    assert directionality(even, peaked) == 1
    assert directionality(peaked, even) == -1
    assert directionality(peaked, peaked) == 0
    assert directionality(even, even) == 0


def test_norms_survive_any_split_into_factors_but_not_a_change_of_basis(
    heads: LayerHeads, generator: np.random.Generator
) -> None:
    names = ("directionality", "input_participation", "output_participation")
    peaked = replace(heads, W_Q=heads.W_Q * np.where(np.arange(D) < 2, 9.0, 1.0)[:, None], extras={})
    G = np.linalg.qr(generator.normal(size=(R, R)))[0] * np.geomspace(1, 300, R)
    split = replace(peaked, W_Q=peaked.W_Q @ G, W_K=peaked.W_K @ np.linalg.inv(G).T)
    before, after = of_layer(peaked, "qk")[1], of_layer(split, "qk")[1]
    assert [after[name] for name in names] == pytest.approx([before[name] for name in names])
    basis, _ = np.linalg.qr(generator.normal(size=(D, D)))
    turned = replace(peaked, W_Q=basis @ peaked.W_Q, W_K=basis @ peaked.W_K)
    assert of_layer(turned, "qk")[1]["input_participation"] > 2 * before["input_participation"]


def test_bias_shares_are_the_mean_squares_of_the_scores_four_terms(
    heads: LayerHeads, generator: np.random.Generator
) -> None:
    found = of_layer(heads, "qk")[3]
    W_Q, W_K, b_Q, b_K = heads.W_Q[3], heads.W_K[1], heads.extras["b_Q"][3], heads.extras["b_K"][1]
    x, y = generator.normal(size=(2, 100_000, D))
    q, k = x @ W_Q, y @ W_K
    terms = {
        "bilinear": np.sum(q * k, axis=1),
        "key": k @ b_Q,
        "query": q @ b_K,
        "constant": np.full(len(x), b_Q @ b_K),
    }
    score = np.sum((q + b_Q) * (k + b_K), axis=1)
    np.testing.assert_allclose(sum(terms.values()), score, rtol=1e-9, atol=1e-9)
    total = sum(np.mean(term**2) for term in terms.values())
    for name in ("key", "query", "constant"):
        assert found[f"bias_{name}_share"] == pytest.approx(np.mean(terms[name] ** 2) / total, rel=0.03)
    assert found["bias_constant"] == pytest.approx(b_Q @ b_K)


def test_bias_terms_survive_a_change_of_the_heads_inner_basis(
    heads: LayerHeads, generator: np.random.Generator
) -> None:
    A, B, b_Q, b_K = heads.W_Q[0], heads.W_K[0].T, heads.extras["b_Q"][0], heads.extras["b_K"][0]
    G = generator.normal(size=(R, R))
    inverse = np.linalg.inv(G)
    assert score_biases(A @ G, inverse @ B, b_Q @ G, inverse @ b_K, 1.0) == pytest.approx(
        score_biases(A, B, b_Q, b_K, 1.0)
    )


def test_a_value_bias_writes_its_share(heads: LayerHeads) -> None:
    for head, found in enumerate(of_layer(heads, "value")):
        group = head // (H // KV)
        W, constant = heads.W_V[group] @ heads.W_O[head], heads.extras["b_V"][group] @ heads.W_O[head]
        expected = np.sum(constant**2) / (np.sum(W**2) + np.sum(constant**2))
        assert found["bias_write_share"] == pytest.approx(expected)


def test_a_bias_outside_the_row_space_is_measured(generator: np.random.Generator) -> None:
    A = generator.normal(size=(D, R)) @ np.diag([1, 1, 1, 1, 1, 0])
    b = np.array([0, 0, 0, 0, 3.0, 4.0])
    outside, reach = bias_reach(b, np.linalg.qr(A, mode="r"), D)
    assert outside == pytest.approx(16 / 25)
    x, *_ = np.linalg.lstsq(A.T, b, rcond=None)
    assert reach == pytest.approx(np.linalg.norm(x) / np.sqrt(D))
    full = bias_reach(b, np.linalg.qr(generator.normal(size=(D, R)), mode="r"), D)
    assert full[0] == 0
    assert np.isnan(bias_reach(np.zeros(R), np.eye(R), D)[0])


def test_the_norms_bias_acts_as_a_bias_once_its_gain_is_folded(
    heads: LayerHeads, generator: np.random.Generator
) -> None:
    gain, beta = generator.normal(size=(2, D))
    plain = replace(heads, extras={"norm_weight": gain, "norm_bias": beta})
    assert "bias_key_share" not in of_layer(plain, "qk", "raw")[0]
    folded = replace(
        heads,
        W_Q=gain[:, None] * heads.W_Q,
        W_K=gain[:, None] * heads.W_K,
        extras={"b_Q": beta @ heads.W_Q, "b_K": beta @ heads.W_K},
    )
    for found, expected in zip(of_layer(plain, "qk", "gain"), of_layer(folded, "qk"), strict=True):
        assert found == pytest.approx(expected)


def test_a_checkpoint_without_biases_has_no_bias_quantities(heads: LayerHeads) -> None:
    for matrix in ("value", "qk"):
        found = of_layer(replace(heads, extras={}), matrix)[0]
        assert not [name for name in found if name.startswith("bias")]


def test_a_zero_head_has_none_of_them(heads: LayerHeads) -> None:
    zero = replace(heads, W_Q=np.zeros_like(heads.W_Q), extras={})
    assert np.isnan(list(of_layer(zero, "qk")[0].values())).all()


def test_every_registered_factor_quantity_is_computed_and_no_other(heads: LayerHeads) -> None:
    made = {name for matrix in ("value", "qk") for name in of_layer(heads, matrix)[0]}
    assert made == set(FACTOR_REGISTRY)
