"""What old and new configs, and GGUF metadata, say of positions, windows and norms."""

import math
from typing import Any

import pytest

from headmaps.architectures import geometry_of, tensors_needed
from headmaps.architectures.positions import alibi_slopes
from headmaps.errors import ArchitectureError
from support.sources import LLAMA, SHAPES, names_of, source

# --- positions, in every spelling ---------------------------------------------------------------------------------


def rotary_of(config: dict[str, Any], layer: int = 0) -> Any:
    return geometry_of(source(LLAMA | config, SHAPES)).rotary_of(layer)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_old_and_new_configs_say_the_same(config: dict[str, Any]) -> None:
    rotary = rotary_of(config)
    assert (rotary.style, rotary.rotary_dim, rotary.base, rotary.scaling) == ("half", 16, 5e5, None)


def test_the_base_is_the_familys_where_the_config_is_silent() -> None:
    assert rotary_of({}).base == 1e4
    assert rotary_of({"model_type": "mixtral"}).base == 1e6


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_llama3_scaling(key: str) -> None:
    scaling = {key: "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64}
    rotary = rotary_of({"rope_theta": 5e5, "rope_scaling": scaling})
    assert rotary.scaling["type"] == "llama3"
    assert rotary.scaling["original_max_position_embeddings"] == 64
    assert rotary.attention_factor == 1.0


def test_yarn_scales_cos_and_sin() -> None:
    """gpt-oss: 0.1 ln 32 + 1 = 1.3466 on queries and on keys, 1.813 in the score."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    assert rotary_of({"rope_scaling": yarn}).attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    assert rotary_of({"rope_scaling": yarn | {"attention_factor": 1.5}}).attention_factor == 1.5
    equal = yarn | {"mscale": 0.7, "mscale_all_dim": 0.7}
    assert rotary_of({"rope_scaling": equal}).attention_factor == 1.0


def test_longrope_takes_its_factor_from_the_two_lengths() -> None:
    """Phi-3 128k: sqrt(1 + ln 32 / ln 4096) = 1.19."""
    longrope = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = {"rope_scaling": longrope, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    rotary = rotary_of(config)
    assert rotary.scaling["type"] == "longrope"
    assert rotary.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="'spiral'"):
        rotary_of({"rope_scaling": {"type": "spiral", "factor": 2.0}})


def test_gemma3_turns_its_layers_by_type_in_old_and_new_configs() -> None:
    norms = ["self_attn.q_norm", "self_attn.k_norm"]
    shapes = SHAPES | {f"{name}.weight": [16] for name in norms} | {"post_attention_layernorm.weight": [32]}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    }
    for spelling in (old, new):
        config = LLAMA | {"model_type": "gemma3_text", "sliding_window_pattern": 2, "sliding_window": 512} | spelling
        geometry = geometry_of(source(config, shapes))
        sliding, full = geometry.rotary_of(0), geometry.rotary_of(1)
        assert sliding is not None
        assert full is not None
        assert (sliding.base, sliding.scaling) == (2e4, None)
        assert (full.base, (full.scaling or {})["factor"]) == (1e6, 8.0)
        assert [geometry.window_of(layer) for layer in (0, 1)] == [512, None]


def test_a_window_that_the_config_sets_to_null_is_none() -> None:
    """Mistral's own default is 4096; the config of v0.2 says null."""
    assert geometry_of(source(LLAMA | {"model_type": "mistral", "sliding_window": None}, SHAPES)).windows == []
    assert geometry_of(source(LLAMA | {"model_type": "mistral"}, SHAPES)).windows == [4096, 4096]


def test_alibi_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(12) == pytest.approx([*(2.0**-i for i in range(1, 9)), *(2.0 ** -(i + 0.5) for i in range(4))])


# --- GGUF ---------------------------------------------------------------------------------------------------------

GGUF = {
    "model_type": "gguf:llama",
    "block_count": 2,
    "embedding_length": 32,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e5,
    "rope.dimension_count": 16,
}
GGUF_SHAPES = {
    "attn_q.weight": [64, 32],
    "attn_k.weight": [32, 32],
    "attn_v.weight": [32, 32],
    "attn_output.weight": [32, 64],
    "attn_norm.weight": [32],
}


def gguf_source(config: dict[str, Any], shapes: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    record = source(config, shapes, "blk.{i}.", **more)
    for tensors in record["layers"].values():
        for name, entry in tensors.items():
            entry["dtype"] = "F32" if "norm" in name else "Q4_1"
    return record


def test_the_geometry_of_a_gguf_file() -> None:
    geometry = geometry_of(gguf_source(GGUF, GGUF_SHAPES))
    assert (geometry.layout, geometry.quantised, geometry.dtype) == ("gguf_llama", "Q4_1", "Q4_1")
    assert (geometry.d_head, geometry.n_kv_heads, geometry.norm.epsilon) == (16, 2, 1e-5)
    rotary = geometry.rotary_of(0)
    assert rotary is not None
    assert (rotary.style, rotary.base, rotary.rotary_dim) == ("half", 1e5, 16)


def test_gguf_biases_are_those_that_are_there() -> None:
    biases = {"attn_q.bias": [64], "attn_k.bias": [32], "attn_v.bias": [32]}
    config = GGUF | {"model_type": "gguf:qwen2"}
    assert geometry_of(gguf_source(config, GGUF_SHAPES | biases)).biases == ["b_Q", "b_K", "b_V"]
    assert geometry_of(gguf_source(config, GGUF_SHAPES)).biases == []


def test_the_converter_has_added_gemmas_one_already() -> None:
    """In transformers' files the gain is 1 + w; in GGUF it is the stored number."""
    gguf = geometry_of(gguf_source(GGUF | {"model_type": "gguf:gemma"}, GGUF_SHAPES))
    assert not gguf.norm.plus_one
    assert geometry_of(source(LLAMA | {"model_type": "gemma"}, SHAPES)).norm.plus_one


def test_frequency_factors_of_a_gguf_file_are_taken_along() -> None:
    shared = {"rope_freqs.weight": {"dtype": "F32", "shape": [8]}}
    record = gguf_source(GGUF, GGUF_SHAPES, shared=shared)
    chosen = tensors_needed(GGUF, [*names_of(record), "rope_freqs.weight"], [0, 1])
    assert chosen["shared"] == {"rope_factors": "rope_freqs.weight"}
    rotary = geometry_of(record).rotary_of(0)
    assert rotary is not None
    assert rotary.scaling == {"type": "factors"}


def test_yarn_in_a_gguf_file_scales_cos_and_sin_as_llama_cpp_does() -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4096}
    rotary = geometry_of(gguf_source(GGUF | yarn, GGUF_SHAPES)).rotary_of(0)
    assert rotary is not None
    assert rotary.scaling == {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert rotary.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
