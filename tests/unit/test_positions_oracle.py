"""The QK matrix at a distance against the scores of the models' own code, family by family."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headmaps.positions import factors_at
from oracle.cases import CASES
from oracle.test_oracle import inputs, rebuilt, up_to_a_constant

TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("positions")


def with_biases(heads, geometry):
    """The same heads reading one more number, always 1, in place of their biases: the score is then one matrix."""
    changes = {}
    for name in ("W_Q", "W_K"):
        W = np.float64(getattr(heads, name))
        changes[name] = np.concatenate([W, heads.extras.get(f"b_{name[2]}", np.zeros(W[:, 0].shape))[:, None]], axis=1)
    return replace(heads, **changes), replace(geometry, d_model=geometry.d_model + 1)


def sizes(x, W, norm):
    """(heads, n, 1): what a norm on queries or keys divides by; 1 without one."""
    projected = np.einsum("nd,hdr->hnr", x, W)
    if norm is None:
        return np.ones((len(W), len(x), 1))
    if norm.span == "width":
        wide = projected.transpose(1, 0, 2).reshape(len(x), -1)[None]
        projected = np.broadcast_to(wide, (len(W), *wide.shape[1:]))
    variance = projected.var(axis=2) if norm.kind == "layer" else (projected**2).mean(axis=2)
    return np.sqrt(variance + norm.epsilon)[..., None]


def bilinear(found, layer, sign=1):
    """Scores of every head from `W_Q R(D) W_K^T` alone, D the distance of the two tokens; only those with D >= 0."""
    x, _, positions = (value[0] if value.ndim == 3 else value for value in inputs(found, layer))
    x = np.hstack([np.float64(x), np.ones((len(x), 1))])
    heads, geometry = with_biases(found.heads[layer], found.geometry)
    geometry = replace(geometry, sequence_length=int(positions.max()) + 1)
    made = np.zeros((geometry.n_heads, len(x), len(x)))
    distances = positions[:, None] - positions[None, :]
    for distance in np.unique(distances[distances >= 0]):
        there = distances == distance
        for h, (A, B) in enumerate(factors_at(heads, geometry, layer, sign * int(distance))):
            made[h][there] = ((x @ A) @ (B @ x.T))[there]
    query, key = sizes(x, heads.W_Q, geometry.qk_norm), sizes(x, heads.W_K, geometry.qk_norm)
    key = np.repeat(key, geometry.n_heads // geometry.n_kv_heads, axis=0)
    made = geometry.scale_of(layer) * made / query / key.transpose(0, 2, 1)
    return (made if geometry.softcap is None else geometry.softcap * np.tanh(made / geometry.softcap)), distances >= 0


# a bias inside the norm on queries and keys, and clipping, make of the score what no matrix of the two tokens is
NOT_BILINEAR = {"persimmon", "phi-qk-norm", "olmo"}
COVERED = [
    case
    for case in CASES
    if not (case.contiguous or case.stack or "deepseek" in case.name or case.name in NOT_BILINEAR)
]


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case.name)
def test_scores_at_every_distance_of_the_fixture(case, scratch):
    found = rebuilt(case.name, scratch)
    for layer in case.layers:
        made, causal = bilinear(found, layer)
        seen = found.expected[f"{layer}.visible"][0] & causal
        expected = found.expected[f"{layer}.scores"][0]
        if found.geometry.sinks:
            made, expected = up_to_a_constant(made, seen), up_to_a_constant(expected, seen)
        np.testing.assert_allclose(np.where(seen, made, 0), np.where(seen, expected, 0), atol=TOLERANCE)


def test_the_families_that_remain_span_the_styles_and_the_scalings(scratch):
    found = [rebuilt(case.name, scratch) for case in COVERED]
    rotary = [each.geometry.rotary_of(layer) for each in found for layer in each.geometry.layers]
    assert {each.style for each in rotary if each} == {"half", "interleaved"}
    assert {each.scaling["type"] for each in rotary if each and each.scaling} >= {
        "linear",
        "dynamic",
        "yarn",
        "longrope",
    }
    assert None in rotary
    assert {each.geometry.qk_norm.span for each in found if each.geometry.qk_norm} == {"head", "width"}


@pytest.mark.parametrize("name", ["llama", "gptj", "qwen3"])
def test_the_wrong_sign_fails(name, scratch):
    found = rebuilt(name, scratch)
    made, causal = bilinear(found, 0, sign=-1)
    seen = found.expected["0.visible"][0] & causal
    assert np.abs(np.where(seen, made - found.expected["0.scores"][0], 0)).max() > 100 * TOLERANCE
