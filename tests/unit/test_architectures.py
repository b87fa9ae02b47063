"""The architectures' table: which tensors are chosen, and what is refused and how."""

from typing import Any

import pytest

from headmaps.architectures import attention_layers, geometry_of, known_model_types, tensors_needed
from headmaps.errors import ArchitectureError, CheckpointError
from support.sources import LLAMA, SHAPES, names_of, source

# --- choosing tensors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.model.", "base_model.model.model."])
def test_tensors_are_found_after_any_prefix(prefix: str) -> None:
    record = source(LLAMA, SHAPES, prefix + "layers.{i}.")
    chosen = tensors_needed(LLAMA, names_of(record), [0, 1])
    assert chosen["layers"][1]["q"] == f"{prefix}layers.1.self_attn.q_proj.weight"
    assert chosen["layers"][0]["norm_weight"] == f"{prefix}layers.0.input_layernorm.weight"
    assert chosen["shared"] == {}


def test_the_name_is_anchored() -> None:
    """`sublayers.0.` is not `layers.0.`, and layer 1 is not layer 11."""
    extra = ["model.sublayers.0.self_attn.q_proj.weight", "model.layers.11.self_attn.q_proj.weight"]
    chosen = tensors_needed(LLAMA, [*names_of(source(LLAMA, SHAPES)), *extra], [0, 1])
    assert chosen["layers"][0]["q"] == "model.layers.0.self_attn.q_proj.weight"
    assert chosen["layers"][1]["q"] == "model.layers.1.self_attn.q_proj.weight"


def test_mask_buffers_of_old_files_are_not_biases() -> None:
    """`attn.bias` and `attn.masked_bias` of early GPT-2 files are the causal mask."""
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2}
    names = [f"h.0.attn.{part}" for part in ("c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias")]
    names += ["h.0.attn.bias", "h.0.attn.masked_bias", "h.0.ln_1.weight", "h.0.ln_1.bias"]
    chosen = tensors_needed(config, names, [0])["layers"][0]
    assert chosen["qkv_bias"] == "h.0.attn.c_attn.bias"
    assert "h.0.attn.bias" not in chosen.values()


def test_norms_named_by_tensorflow_are_found() -> None:
    config = LLAMA | {"model_type": "stablelm", "head_dim": 8}
    names = [*names_of(source(config, SHAPES)), "model.layers.0.input_layernorm.beta"]
    names = [name.replace("layers.0.input_layernorm.weight", "layers.0.input_layernorm.gamma") for name in names]
    chosen = tensors_needed(config, names, [0])["layers"][0]
    assert chosen["norm_weight"].endswith(".gamma")
    assert chosen["norm_bias"].endswith(".beta")


def test_a_missing_tensor_is_named() -> None:
    names = [name for name in names_of(source(LLAMA, SHAPES)) if name != "model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.layers\.1\.self_attn\.k_proj\.weight"):
        tensors_needed(LLAMA, names, [0, 1])


def test_a_checkpoint_of_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_proj\.weight"):
        tensors_needed(LLAMA, ["h.0.attn.c_attn.weight"], [0, 1])


def test_a_tensor_that_is_there_twice_is_refused_with_the_candidates() -> None:
    twice = names_of(source(LLAMA, SHAPES)) + names_of(source(LLAMA, SHAPES, "layers.{i}."))
    with pytest.raises(ArchitectureError) as error:
        tensors_needed(LLAMA, twice, [0, 1])
    candidates = ["layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"]
    assert error.value.where.splitlines() == candidates


def test_one_tensor_under_two_names_is_refused() -> None:
    names = [*names_of(source(LLAMA, SHAPES)), "model.layers.0.input_layernorm.gamma"]
    with pytest.raises(ArchitectureError, match="under 2 names"):
        tensors_needed(LLAMA, names, [0, 1])


def test_a_bias_that_the_config_denies_is_refused() -> None:
    names = [*names_of(source(LLAMA, SHAPES)), "model.layers.1.self_attn.q_proj.bias"]
    with pytest.raises(ArchitectureError, match=r"model\.layers\.1\.self_attn\.q_proj\.bias"):
        tensors_needed(LLAMA, names, [0, 1])


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.qweight",
        "model.layers.0.self_attn.q_proj.weight_scale_inv",
        "model.layers.0.self_attn.q_proj.weight_packed",
        "model.layers.0.self_attn.q_proj.weight.absmax",
    ],
)
def test_quantised_attention_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(CheckpointError, match="quantised"):
        tensors_needed(LLAMA, [*names_of(source(LLAMA, SHAPES)), name], [0, 1])


def test_quantised_experts_beside_plain_attention_do_not_matter() -> None:
    """gpt-oss: MXFP4 experts, BF16 attention."""
    extra = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    assert tensors_needed(LLAMA, [*names_of(source(LLAMA, SHAPES)), extra], [0])["layers"][0]["q"]


def test_an_adapter_is_refused() -> None:
    with pytest.raises(CheckpointError, match="adapter"):
        tensors_needed(LLAMA, ["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"], [0])


def test_a_layer_that_does_not_exist_is_refused_with_the_right_number() -> None:
    with pytest.raises(ArchitectureError, match="layer 2 is not there") as error:
        tensors_needed(LLAMA, names_of(source(LLAMA, SHAPES)), [0, 1, 2])
    assert "layers: 2" in str(error.value)


def test_layers_without_softmax_attention_are_left_out_and_named() -> None:
    config = LLAMA | {"model_type": "qwen3_next", "num_hidden_layers": 12}
    assert attention_layers(config) == [3, 7, 11]
    with pytest.raises(ArchitectureError, match="layer 4 has no softmax attention") as error:
        tensors_needed(config, [], [3, 4])
    assert "layers: [3, 7, 11]" in str(error.value)


# --- choosing an entry --------------------------------------------------------------------------------------------


def test_an_unknown_model_type_lists_the_known_ones_and_how_to_add_one() -> None:
    with pytest.raises(ArchitectureError, match="'mamba'") as error:
        tensors_needed({"model_type": "mamba"}, [], [0])
    assert all(name in str(error.value) for name in known_model_types())
    assert "add one entry" in str(error.value)


def test_an_unknown_gguf_family_says_that_its_layout_is_not_known() -> None:
    with pytest.raises(ArchitectureError, match="'falcon' is not in the table: its layout is not known"):
        tensors_needed({"model_type": "gguf:falcon"}, [], [0])


def test_a_config_without_model_type_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="names no model_type"):
        tensors_needed({"hidden_size": 3}, [], [0])


@pytest.mark.parametrize("stack", [None, "both"])
def test_an_encoder_decoder_asks_for_its_stack(stack: str | None) -> None:
    with pytest.raises(ArchitectureError, match="encoder-decoder") as error:
        tensors_needed({"model_type": "t5"}, [], [0], stack)
    assert "encoder, decoder, cross" in str(error.value)


def test_a_stack_where_there_is_one_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="one stack of layers"):
        tensors_needed(LLAMA, [], [0], "decoder")


def test_a_tower_where_there_is_none_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="not a multimodal model"):
        tensors_needed(LLAMA, [], [0], None, "text")


CLIP_VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP_VISION}


def test_a_multimodal_model_with_two_readable_towers_asks_which() -> None:
    with pytest.raises(ArchitectureError, match="no tower was chosen") as error:
        tensors_needed(LLAVA, [], [0])
    assert "text, vision" in str(error.value)


def test_a_multimodal_model_with_one_readable_tower_needs_no_choice() -> None:
    """Gemma 3's vision tower is not in the table; its tensors have the names of attention too."""
    config = {
        "model_type": "gemma3",
        "text_config": LLAMA | {"model_type": "gemma3_text"},
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    names = ["pre_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm"]
    shapes = SHAPES | {f"{name}.weight": [32] for name in names}
    text = names_of(source(LLAMA, shapes, "language_model.model.layers.{i}."))
    vision = [f"vision_tower.vision_model.encoder.{name[len('language_model.model.') :]}" for name in text]
    chosen = tensors_needed(config, text + vision, [0, 1])
    assert chosen["layers"][0]["q"] == "language_model.model.layers.0.self_attn.q_proj.weight"


def test_towers_are_told_apart_by_prefix() -> None:
    config = {"model_type": "clip", "text_config": CLIP_VISION | {"model_type": None}, "vision_config": CLIP_VISION}
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "layer_norm1"]
    names = [
        f"{tower}_model.encoder.layers.{i}.{part}.{end}"
        for tower in ("text", "vision")
        for i in range(2)
        for part in parts
        for end in ("weight", "bias")
    ]
    for tower in ("text", "vision"):
        chosen = tensors_needed(config, names, [0, 1], None, tower)
        assert chosen["layers"][0]["q"] == f"{tower}_model.encoder.layers.0.self_attn.q_proj.weight"


# --- shapes and dimensions ----------------------------------------------------------------------------------------


def test_the_geometry_of_a_grouped_model() -> None:
    geometry = geometry_of(source(LLAMA, SHAPES))
    assert (geometry.n_heads, geometry.n_kv_heads, geometry.d_head, geometry.d_model) == (4, 2, 16, 32)
    assert geometry.layers == [0, 1]
    assert geometry.dtype == "BF16"
    assert geometry.scale == 0.25
    assert geometry.norm.epsilon == 1e-5
    assert geometry.quantised is None


def test_without_head_dim_the_tensors_say_it() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "head_dim"}
    assert geometry_of(source(config, SHAPES)).d_head == 16


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("self_attn.q_proj.weight", [60, 32]),
        ("self_attn.k_proj.weight", [64, 32]),
        ("self_attn.v_proj.weight", [32, 31]),
        ("self_attn.o_proj.weight", [64, 32]),
        ("input_layernorm.weight", [33]),
    ],
)
def test_a_tensor_of_another_shape_is_refused_with_both_shapes(name: str, shape: list[int]) -> None:
    with pytest.raises(ArchitectureError) as error:
        geometry_of(source(LLAMA, SHAPES | {name: shape}))
    assert f"model.layers.0.{name} has shape {shape}" in str(error.value)
    assert str(SHAPES[name]) in str(error.value)


def test_an_explicit_head_dim_is_held_against_the_tensors() -> None:
    """d_model / H would be 8; the config says 12, the tensors 16."""
    with pytest.raises(ArchitectureError, match=r"q_proj\.weight has shape \[64, 32\]"):
        geometry_of(source(LLAMA | {"head_dim": 12}, SHAPES))


def test_rows_that_heads_cannot_share_are_refused() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "head_dim"}
    with pytest.raises(ArchitectureError, match="4 query heads on 2 key/value heads cannot share"):
        geometry_of(source(config, SHAPES | {"self_attn.q_proj.weight": [62, 32]}))


def test_indivisible_heads_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="4 query heads cannot be shared out among 3"):
        geometry_of(source(LLAMA | {"num_key_value_heads": 3}, SHAPES))


@pytest.mark.parametrize("value", [None, "four", 0, True])
def test_a_dimension_must_be_a_number(value: Any) -> None:
    with pytest.raises(ArchitectureError, match="number of heads") as error:
        geometry_of(source(LLAMA | {"num_attention_heads": value}, SHAPES))
    assert "num_attention_heads" in str(error.value)


def test_a_stray_number_of_key_heads_is_ignored_where_the_family_has_none() -> None:
    """GPT-NeoX configs may carry num_key_value_heads; falcon-7b says num_kv_heads 71 and has one."""
    config = {"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    names = {"attention.query_key_value": ([96, 32], [96]), "attention.dense": ([32, 32], [32])}
    names |= {"input_layernorm": ([32], [32])}
    shapes = {f"{name}.weight": pair[0] for name, pair in names.items()}
    shapes |= {f"{name}.bias": pair[1] for name, pair in names.items()}
    assert geometry_of(source(config | {"num_key_value_heads": 2}, shapes, "layers.{i}.")).n_kv_heads == 4
    falcon = {"model_type": "falcon", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shapes = {
        "self_attention.query_key_value.weight": [48, 32],
        "self_attention.dense.weight": [32, 32],
        "input_layernorm.weight": [32],
        "input_layernorm.bias": [32],
    }
    assert geometry_of(source(falcon | {"num_kv_heads": 4}, shapes, "h.{i}.")).n_kv_heads == 1


def test_what_the_notes_say() -> None:
    geometry = geometry_of(source(LLAMA | {"num_hidden_layers": 30}, SHAPES))
    assert "2 of the 30 layers are looked at" in geometry.notes
