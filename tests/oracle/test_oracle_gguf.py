"""GGUF files of the oracle's models, made as llama.cpp's converter makes them, give what transformers computes.

`convert_hf_to_gguf.py` reorders the rows of Llama's queries and keys so that the pairs that turn together are
neighbours, adds the 1 to Gemma's norm gains, and writes F32 for norms and biases; the tests do the same here.
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.dtypes import decode
from headmaps.checkpoint.store import LocalStore
from oracle import rebuild
from oracle.case import Case
from oracle.cases import CASES
from oracle.test_oracle import FIXTURES, TOLERANCE, expected_of, through_the_steps

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma", "gemma2": "gemma2"}
"""Case -> general.architecture."""


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    rows = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return rows.swapaxes(1, 2).reshape(weights.shape)


def converted(case: Case, path: Path) -> Path:
    """The fixture as a GGUF file."""
    store = LocalStore(FIXTURES / case.name)
    catalogue = open_checkpoint(store)
    config: dict[str, Any] = dict(catalogue.config)
    architecture = ARCHITECTURES[case.name]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    for name, entry in catalogue.tensors.items():
        match = re.fullmatch(r"(?:model\.)?layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if not match or match[2] not in NAMES or (match[2].startswith("post_") and architecture != "gemma2"):
            continue
        values = decode(store.read(entry.file, entry.offset, entry.nbytes), entry.dtype, entry.shape)
        if architecture == "llama" and match[2] in ("self_attn.q_proj", "self_attn.k_proj"):
            values = permuted(values, config[{"q": "num_attention_heads", "k": "num_key_value_heads"}[match[2][10]]])
        if architecture.startswith("gemma") and "norm" in match[2]:
            values = values + 1
        writer.add_tensor(f"blk.{match[1]}.{NAMES[match[2]]}.{match[3]}", np.ascontiguousarray(values))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_transformers_computes_comes_out_of_the_gguf_file(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    geometry, heads = through_the_steps(case, converted(case, tmp_path / "model.gguf"), tmp_path / "results")
    assert geometry.model_type == f"gguf:{ARCHITECTURES[name]}"
    expected = expected_of(case)
    positions = expected["positions"]
    group = geometry.n_heads // geometry.n_kv_heads
    for layer in case.layers:
        x = rebuild.read_by_attention(expected[f"{layer}.stream"], heads[layer], geometry)
        np.testing.assert_allclose(x, expected[f"{layer}.x"], atol=TOLERANCE, err_msg="norm")
        q, k, v = rebuild.queries_keys_values(x, x, positions, heads[layer], geometry, layer)
        made = {"q": q, "k": np.repeat(k, group, axis=1), "v": np.repeat(v, group, axis=1)}
        for part, value in made.items():
            np.testing.assert_allclose(value, expected[f"{layer}.{part}"], atol=TOLERANCE, err_msg=part)
        if case.post_norm:
            gain = heads[layer].extras["post_norm_weight"]
            normed = rebuild.normed(expected[f"{layer}.output"], geometry.norm, gain, None)
            np.testing.assert_allclose(normed, expected[f"{layer}.post_normed"], atol=TOLERANCE)
        if name == "gemma2":
            continue  # the file does not say the scale: llama.cpp knows it of the published sizes
        scores, seen = rebuild.scores_of(q, k, heads[layer], geometry, layer), expected[f"{layer}.visible"]
        np.testing.assert_allclose(np.where(seen, scores, 0), expected[f"{layer}.scores"], atol=TOLERANCE)
        output = rebuild.attention_output(scores, v, x, seen, heads[layer], geometry)
        np.testing.assert_allclose(output, expected[f"{layer}.output"], atol=TOLERANCE)


def test_rows_left_in_the_order_of_the_file_turn_wrongly(tmp_path: Path) -> None:
    """The products of queries and keys do not feel the order; what turns with what does."""
    case = next(case for case in CASES if case.name == "llama")
    geometry, heads = through_the_steps(case, converted(case, tmp_path / "model.gguf"), tmp_path / "results")
    expected, layer = expected_of(case), heads[0]
    in_order = rebuild.queries_keys_values(expected["0.x"], expected["0.x"], None, layer, geometry, 0)
    order = permuted(np.arange(geometry.d_head), 1)
    wrong = (in_order[0][..., order], in_order[1][..., order])
    still = rebuild.scores_of(*in_order[:2], layer, geometry, 0)
    np.testing.assert_allclose(rebuild.scores_of(*wrong, layer, geometry, 0), still, atol=TOLERANCE)
    turned = [rebuild.turned(part, expected["positions"], geometry, 0) for part in wrong]
    seen = expected["0.visible"]
    off = np.where(seen, rebuild.scores_of(turned[0], turned[1], layer, geometry, 0) - expected["0.scores"], 0)
    assert np.abs(off).max() > 100 * TOLERANCE
