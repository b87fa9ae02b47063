"""Our heads and geometry against transformers: what the models compute, rebuilt to 1e-4 from `.npy` and `.json` files.

The fixtures are made by make_fixtures.py, which says how. A wrong split of a fused tensor, a wrong pairing of query and
key heads, a wrong scale, rotation, norm, window, slope or bias fails here for the family it is wrong for.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headmaps.architectures import known_model_types
from headmaps.geometry import Geometry, read_geometry
from headmaps.heads import LayerHeads, layer_heads, read_layer_heads
from headmaps.positions import rotation
from headmaps.records import read_json
from headmaps.steps import fetch_layer, resolve
from headmaps.steps import geometry as geometry_step
from headmaps.steps import heads as heads_step
from oracle import rebuild
from oracle.case import Case
from oracle.cases import CASES

FIXTURES = Path(__file__).parent / "fixtures"
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Rebuilt:
    """One fixture taken through the workflow's steps."""

    geometry: Geometry
    heads: dict[int, LayerHeads]
    expected: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracle")


def run(step: Any, **flags: Any) -> None:
    """One of the workflow's steps, with its flags."""
    step.main([part for name, value in flags.items() for part in (f"--{name}", str(value))])


@cache
def rebuilt(case_name: str, scratch: Path) -> Rebuilt:
    """A fixture taken through the steps of the workflow, from its folder to the files of its heads, read back."""
    case = next(case for case in CASES if case.name == case_name)
    geometry, heads = through_the_steps(case, FIXTURES / case.name, scratch / case.name)
    return Rebuilt(geometry, heads, expected_of(case))


def expected_of(case: Case) -> dict[str, np.ndarray]:
    """What transformers computes."""
    with np.load(FIXTURES / case.name / "expected.npz") as archive:
        return {name: archive[name] for name in archive.files}


def through_the_steps(case: Case, path: Path, folder: Path) -> tuple[Geometry, dict[int, LayerHeads]]:
    """The checkpoint at `path`, in whatever format."""
    folder.mkdir()
    entry = {"source": "local", "path": str(path)}
    chosen = {"layers": list(case.layers), "stack": case.stack, "tower": case.tower}
    source, shape = folder / "source.json", folder / "geometry.json"
    run(resolve, spec=json.dumps(entry | {key: value for key, value in chosen.items() if value}), source=source)
    run(geometry_step, spec="{}", source=source, output=shape)
    geometry = read_geometry(shape)
    heads = {}
    for layer in case.layers:
        tensors, record = folder / f"layer-{layer}.safetensors", folder / f"layer-{layer}.json"
        run(fetch_layer, spec=json.dumps(entry), source=source, layer=layer, output=tensors, record=record)
        files = {"directory": folder / f"heads-{layer}", "record": folder / f"heads-{layer}.json"}
        run(heads_step, spec="{}", geometry=shape, source=source, checkpoint=tensors, layer=layer, **files)
        heads[layer] = read_layer_heads(files["directory"], geometry)
    return geometry, heads


def inputs(found: Rebuilt, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the stream that keys read, and positions."""
    x = found.expected[f"{layer}.x"]
    source = found.expected.get(f"{layer}.x_source", x)
    return x, source, found.expected.get("positions", np.arange(x.shape[1]))


def as_transformers_orders_it(value: np.ndarray, geometry: Geometry) -> np.ndarray:
    """DeepSeek-V3 turns pairs (2i, 2i + 1) and leaves them as halves: the same scores, columns in another order."""
    if geometry.model_type != "deepseek_v3":
        return value
    start = geometry.d_head - (geometry.d_head_rope or 0)
    rotated = value[..., start:]
    return np.concatenate([value[..., :start], rotated[..., 0::2], rotated[..., 1::2]], axis=-1)


def up_to_a_constant(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Scores less the mean of those that are seen: the softmax cannot tell (ALiBi, sinks)."""
    kept = np.where(seen, scores, 0)
    return np.where(seen, kept - kept.sum(-1, keepdims=True) / seen.sum(-1, keepdims=True), 0)


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_queries_keys_and_values(case: Case, scratch: Path) -> None:
    found = rebuilt(case.name, scratch)
    for layer in case.layers:
        x, source, positions = inputs(found, layer)
        q, k, v = rebuild.queries_keys_values(x, source, positions, found.heads[layer], found.geometry, layer)
        group = found.geometry.n_heads // found.geometry.n_kv_heads
        made = {"q": q, "k": np.repeat(k, group, axis=1), "v": np.repeat(v, group, axis=1)}
        for name, value in made.items():
            ordered = value if name == "v" else as_transformers_orders_it(value, found.geometry)
            np.testing.assert_allclose(ordered, found.expected[f"{layer}.{name}"], atol=TOLERANCE, err_msg=name)


@every_case
def test_scores_and_output(case: Case, scratch: Path) -> None:
    found = rebuilt(case.name, scratch)
    geometry = found.geometry
    for layer in case.layers:
        x, source, positions = inputs(found, layer)
        heads = found.heads[layer]
        q, k, v = rebuild.queries_keys_values(x, source, positions, heads, geometry, layer)
        scores = rebuild.scores_of(q, k, heads, geometry, layer)
        seen = rebuild.visible(*scores.shape[2:], geometry, layer)
        expected = found.expected[f"{layer}.scores"]
        np.testing.assert_array_equal(np.broadcast_to(seen, scores.shape), found.expected[f"{layer}.visible"])
        if geometry.position.scheme == "alibi" or geometry.sinks:
            made, expected = up_to_a_constant(scores, seen), up_to_a_constant(expected, seen)
        else:
            made = np.where(seen, scores, 0)
        np.testing.assert_allclose(made, expected, atol=TOLERANCE)
        output = rebuild.attention_output(scores, v, x, seen, heads, geometry)
        np.testing.assert_allclose(output, found.expected[f"{layer}.output"], atol=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.norm], ids=lambda case: case.name)
def test_the_norm_that_attention_reads_through(case: Case, scratch: Path) -> None:
    found = rebuilt(case.name, scratch)
    assert found.geometry.norm.place in ("pre", "sandwich")
    for layer in case.layers:
        x = rebuild.read_by_attention(found.expected[f"{layer}.stream"], found.heads[layer], found.geometry)
        np.testing.assert_allclose(x, found.expected[f"{layer}.x"], atol=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.post_norm], ids=lambda case: case.name)
def test_the_norm_on_the_output(case: Case, scratch: Path) -> None:
    found = rebuilt(case.name, scratch)
    assert found.geometry.norm.place in ("output", "sandwich")
    for layer in case.layers:
        extras = found.heads[layer].extras
        made = rebuild.normed(found.expected[f"{layer}.output"], found.geometry.norm, extras["post_norm_weight"], None)
        np.testing.assert_allclose(made, found.expected[f"{layer}.post_normed"], atol=TOLERANCE)


def test_every_family_of_the_table_has_a_fixture() -> None:
    written_by_transformers = {name for name in known_model_types() if not name.startswith("gguf:")}
    towers = {"clip_text_model", "clip_vision_model", "gemma3"}  # parts and wrappers: under `clip` and `gemma3_text`
    assert written_by_transformers - towers == {case.model_type for case in CASES}


ROTARY = [case for case in CASES if not case.contiguous and "deepseek" not in case.name]


@pytest.mark.parametrize("case", ROTARY, ids=lambda case: case.name)
def test_the_other_sense_of_rotation_fails(case: Case, scratch: Path) -> None:
    """The check is sharp: turning the other way gives other scores."""
    found = rebuilt(case.name, scratch)
    layer = next(layer for layer in case.layers if found.geometry.rotary_of(layer))
    x, source, positions = inputs(found, layer)
    q, k, _ = rebuild.queries_keys_values(x, source, -positions, found.heads[layer], found.geometry, layer)
    scores = rebuild.scores_of(q, k, found.heads[layer], found.geometry, layer)
    seen = found.expected[f"{layer}.visible"]
    assert np.abs(np.where(seen, scores - found.expected[f"{layer}.scores"], 0)).max() > 100 * TOLERANCE


AT_DISTANCES = [case for case in CASES if not case.contiguous and case.name != "gpt_oss"]
"""With sinks transformers subtracts each row's maximum from the scores first; test_scores_and_output has that case."""


@pytest.mark.parametrize("case", AT_DISTANCES, ids=lambda case: case.name)
def test_scores_at_each_distance_are_q_r_of_d_k(case: Case, scratch: Path) -> None:
    """The score at distance D is `q R(D) k^T` of the unturned q and k: the QK matrix there is W_Q R(D) W_K^T."""
    found = rebuilt(case.name, scratch)
    geometry = found.geometry
    start = geometry.d_head - (geometry.d_head_rope or geometry.d_head)
    for layer in case.layers:
        x, source, positions = inputs(found, layer)
        q, k, _ = rebuild.queries_keys_values(x, source, None, found.heads[layer], geometry, layer)
        k = np.repeat(k, geometry.n_heads // geometry.n_kv_heads, axis=1)
        rotary = geometry.rotary_of(layer)
        expected, seen = found.expected[f"{layer}.scores"], found.expected[f"{layer}.visible"]
        for n, m in np.argwhere(seen[0, 0]):
            R = np.eye(geometry.d_head)
            if rotary is not None:
                length = int(positions.max()) + 1
                R[start:, start:] = rotation(rotary, int(positions[n] - positions[m]), len(R) - start, length)
            score = ((q[:, :, n] @ R) * k[:, :, m]).sum(axis=-1) * geometry.scale_of(layer)
            if geometry.softcap:
                score = geometry.softcap * np.tanh(score / geometry.softcap)
            np.testing.assert_allclose(score, expected[:, :, n, m], atol=TOLERANCE, err_msg=f"{n} sees {m}")


def test_pairing_keys_by_remainder_fails(scratch: Path) -> None:
    """`h % KV` in the place of `h // (H // KV)`: the fixture tells them apart."""
    found = rebuilt("llama", scratch)
    x, source, positions = inputs(found, 0)
    heads = found.heads[0]
    _, k, _ = rebuild.queries_keys_values(x, source, positions, heads, found.geometry, 0)
    wrong = np.tile(k, (1, 2, 1, 1))
    assert np.abs(wrong - found.expected["0.k"]).max() > 0.1


def test_a_flat_split_of_a_per_head_tensor_fails(scratch: Path) -> None:
    """Pythia's query_key_value split into three equal blocks keeps every shape: only the numbers tell."""
    found = rebuilt("gpt_neox", scratch)
    flat = replace(found.geometry, layout="blocks")
    folder = scratch / "gpt_neox"
    tensors = heads_step.tensors_of_layer(folder / "layer-0.safetensors", read_json(folder / "source.json"), 0)
    wrong = layer_heads(tensors, flat)
    assert wrong.W_Q.shape == found.heads[0].W_Q.shape
    x, stream, positions = inputs(found, 0)
    q, _, _ = rebuild.queries_keys_values(x, stream, positions, wrong, flat, 0)
    assert np.abs(q - found.expected["0.q"]).max() > 0.1
