"""The tiny models of the oracle: one per family and variant of the architectures' table.

Sizes are chosen so that a mistake shows: 2 key/value heads of 4 query heads where the family allows, heads whose width
is not d_model / H where the config can say so, 2 layers (4 where layers differ), windows shorter than the input.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: of the fixture's folder.
        model_type: as transformers calls it.
        config: what differs from the family's defaults.
        auto: the transformers class that makes the model.
        attention: path of the attention module of layer {i}, after whatever prefix.
        reads: the projections, inside the attention module, whose input is the stream read by queries, and by keys.
        writes: the output projection, inside the attention module (`..` goes one up).
        norm: the norm before attention, path as `attention`; None where nothing is to be checked.
        post_norm: the norm after the output projection.
        layers: which layers are stored.
        stack, tower: as the workflow's config says it.
        scaled_query: the model scales q itself, before q meets k.
        contiguous: positions are 0, 1, 2, ...; else they have gaps, to see the rotation at many distances.
    """

    name: str
    model_type: str
    config: dict[str, Any]
    attention: str = "layers.{i}.self_attn"
    reads: tuple[str, str] = ("q_proj", "k_proj")
    writes: str = "o_proj"
    norm: str | None = "layers.{i}.input_layernorm"
    post_norm: str | None = None
    auto: str = "AutoModelForCausalLM"
    layers: tuple[int, ...] = (0, 1)
    stack: str | None = None
    tower: str | None = None
    scaled_query: bool = False
    contiguous: bool = False
    implementation: str = "eager"
    """Which of transformers' attention functions is watched."""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Further random inputs of the model: name -> shape."""


TEXT = {"vocab_size": 32, "max_position_embeddings": 512}
GPT = {"vocab_size": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 16, "n_positions": 512}
MHA = TEXT | {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GQA = MHA | {"num_key_value_heads": 2}
WIDE = GQA | {"head_dim": 16}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
FUSED = {"reads": ("query_key_value", "query_key_value"), "writes": "dense"}
ROPE = {"rope_type": "default", "rope_theta": 100.0}
"""A low base, so that every pair of dimensions turns visibly over the distances of the fixture."""
FOUR = {"num_hidden_layers": 4}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 256,
}
CODEGEN_READS = ("qkv_proj", "qkv_proj")
H = {"attention": "h.{i}.attn", "norm": "h.{i}.ln_1"}
OUT = {"writes": "out_proj"}
FALCON = {"attention": "h.{i}.self_attention", "norm": "h.{i}.input_layernorm", **FUSED}
FALCON_SIZES = TEXT | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 16}
MPT_SIZES = {"vocab_size": 32, "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 1, "max_seq_len": 16}
MPT = {
    "attention": "blocks.{i}.attn",
    "norm": "blocks.{i}.norm_1",
    "reads": ("Wqkv", "Wqkv"),
    "contiguous": True,
    **OUT,
}
BERT = {
    "attention": "encoder.layer.{i}.attention.self",
    "reads": ("query", "key"),
    "writes": "../output.dense",
    "norm": None,
    "auto": "AutoModel",
    "contiguous": True,
}
MLA = MHA | {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "head_dim": 8,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
MLA_READS = {"reads": ("q_a_proj", "kv_a_proj_with_mqa")}
T5_SIZES = {
    "vocab_size": 32,
    "d_model": 32,
    "d_kv": 10,
    "d_ff": 16,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
}
T5 = {"reads": ("q", "k"), "writes": "o", "auto": "AutoModelForSeq2SeqLM", "contiguous": True}
WHISPER_SIZES = {
    "vocab_size": 32,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_mel_bins": 4,
    "max_source_positions": 6,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
WHISPER = {
    "auto": "AutoModelForSpeechSeq2Seq",
    "contiguous": True,
    "scaled_query": True,
    "inputs": {"input_features": (4, 12)},
    **OUT,
}
CLIP_TEXT = TEXT | {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "projection_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CLIP_VISION = {
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": 8,
    "image_size": 8,
    "patch_size": 4,
}
CLIP = {
    "attention": "encoder.layers.{i}.self_attn",
    "norm": "encoder.layers.{i}.layer_norm1",
    "contiguous": True,
    "inputs": {"pixel_values": (3, 8, 8)},
    **OUT,
}

CASES = [
    Case("gpt2", "gpt2", GPT, reads=("c_attn", "c_attn"), writes="c_proj", contiguous=True, **H),
    Case(
        "gpt2-inverse-layer",
        "gpt2",
        GPT | {"scale_attn_by_inverse_layer_idx": True},
        reads=("c_attn", "c_attn"),
        writes="c_proj",
        contiguous=True,
        auto="AutoModel",
        **H,
    ),
    Case("gpt_bigcode-mqa", "gpt_bigcode", GPT, reads=("c_attn", "c_attn"), writes="c_proj", contiguous=True, **H),
    Case(
        "gpt_bigcode-mha",
        "gpt_bigcode",
        GPT | {"multi_query": False, "num_key_value_heads": 4},
        reads=("c_attn", "c_attn"),
        writes="c_proj",
        contiguous=True,
        **H,
    ),
    Case(
        "gpt_neo",
        "gpt_neo",
        TEXT
        | {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 16,
            "window_size": 3,
            "attention_types": [[["global", "local"], 1]],
        },
        attention="h.{i}.attn.attention",
        norm="h.{i}.ln_1",
        contiguous=True,
        **OUT,
    ),
    Case("gptj", "gptj", GPT | {"rotary_dim": 4}, **H, **OUT),
    Case("codegen", "codegen", GPT | {"n_embd": 64, "n_head": 8, "rotary_dim": 4}, reads=CODEGEN_READS, **H, **OUT),
    Case("gpt_neox", "gpt_neox", MHA, attention="layers.{i}.attention", **FUSED),
    Case(
        "gpt_neox-no-bias",
        "gpt_neox",
        MHA
        | {
            "attention_bias": False,
            "use_parallel_residual": False,
            "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
        },
        attention="layers.{i}.attention",
        **FUSED,
    ),
    Case(
        "opt",
        "opt",
        TEXT
        | {
            "hidden_size": 32,
            "ffn_dim": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 32,
        },
        attention="decoder.layers.{i}.self_attn",
        norm="decoder.layers.{i}.self_attn_layer_norm",
        scaled_query=True,
        contiguous=True,
        **OUT,
    ),
    Case(
        "opt-post",
        "opt",
        TEXT
        | {
            "hidden_size": 32,
            "ffn_dim": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": False,
            "enable_bias": False,
        },
        attention="decoder.layers.{i}.self_attn",
        norm=None,
        scaled_query=True,
        contiguous=True,
        **OUT,
    ),
    Case(
        "bloom",
        "bloom",
        {"vocab_size": 32, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        attention="h.{i}.self_attention",
        norm="h.{i}.input_layernorm",
        contiguous=True,
        **FUSED,
    ),
    Case(
        "bloom-6-heads",
        "bloom",
        {"vocab_size": 32, "hidden_size": 36, "n_layer": 2, "n_head": 6},
        attention="h.{i}.self_attention",
        norm="h.{i}.input_layernorm",
        contiguous=True,
        **FUSED,
    ),
    Case("falcon-7b", "falcon", FALCON_SIZES | {"num_kv_heads": 4, "rope_parameters": ROPE}, **FALCON),
    Case(
        "falcon-rw",
        "falcon",
        FALCON_SIZES | {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True, "num_kv_heads": 4},
        contiguous=True,
        implementation="sdpa",  # transformers 5.24 adds ALiBi twice in its eager path, in the mask and to the logits
        **FALCON,
    ),
    Case(
        "falcon-40b",
        "falcon",
        FALCON_SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, "rope_parameters": ROPE},
        **(FALCON | {"norm": "h.{i}.ln_attn"}),
    ),
    Case(
        "falcon-11b",
        "falcon",
        FALCON_SIZES
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "rope_parameters": ROPE},
        **FALCON,
    ),
    Case("mpt", "mpt", MPT_SIZES, **MPT),
    Case(
        "mpt-clipped-6-heads",
        "mpt",
        MPT_SIZES
        | {"d_model": 36, "n_heads": 6, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3, "alibi": True}},
        **MPT,
    ),
    Case("llama", "llama", WIDE | {"rope_parameters": ROPE}),
    Case("llama-implicit-width", "llama", GQA | {"rope_parameters": LLAMA3, "attention_bias": True}),
    Case("llama-yarn", "llama", WIDE | {"rope_parameters": YARN}),
    Case("llama-linear", "llama", WIDE | {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}}),
    Case("llama-dynamic", "llama", WIDE | {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}}),
    Case("mistral", "mistral", WIDE | {"sliding_window": 4, "rope_parameters": ROPE}),
    Case(
        "mixtral",
        "mixtral",
        WIDE | {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": ROPE, "sliding_window": None},
    ),
    Case(
        "qwen2",
        "qwen2",
        GQA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "rope_parameters": ROPE},
    ),
    Case("qwen2_moe", "qwen2_moe", GQA | EXPERTS | {"rope_parameters": ROPE, "use_sliding_window": False}),
    Case("qwen3", "qwen3", WIDE | {"rope_parameters": ROPE}),
    Case("qwen3_moe", "qwen3_moe", WIDE | EXPERTS | {"rope_parameters": ROPE, "num_local_experts": 2}),
    Case(
        "qwen3_next",
        "qwen3_next",
        WIDE
        | EXPERTS
        | FOUR
        | {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
            "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        },
        layers=(1, 3),
    ),
    Case("gemma", "gemma", WIDE | {"rope_parameters": ROPE}),
    Case(
        "gemma2",
        "gemma2",
        WIDE
        | {"query_pre_attn_scalar": 20, "sliding_window": 4, "attn_logit_softcapping": 3.0, "rope_parameters": ROPE},
        post_norm="layers.{i}.post_attention_layernorm",
    ),
    Case(
        "gemma3_text",
        "gemma3_text",
        WIDE
        | {
            "query_pre_attn_scalar": 20,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": ROPE | {"rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
            },
        },
        post_norm="layers.{i}.post_attention_layernorm",
    ),
    Case("phi", "phi", GQA | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, writes="dense"),
    Case(
        "phi-qk-norm",
        "phi",
        MHA | {"qk_layernorm": True, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        writes="dense",
    ),
    Case(
        "phi3",
        "phi3",
        GQA | {"pad_token_id": 0, "rope_parameters": ROPE | {"partial_rotary_factor": 0.75}, "sliding_window": 4},
        reads=("qkv_proj", "qkv_proj"),
    ),
    Case(
        "phi3-longrope",
        "phi3",
        GQA | {"pad_token_id": 0, "original_max_position_embeddings": 256, "rope_parameters": LONGROPE},
        reads=("qkv_proj", "qkv_proj"),
    ),
    Case("stablelm", "stablelm", GQA | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.25}}),
    Case(
        "stablelm-qk-norm",
        "stablelm",
        GQA
        | {
            "qk_layernorm": True,
            "use_qkv_bias": True,
            "use_parallel_residual": True,
            "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    Case("olmo", "olmo", GQA | {"clip_qkv": 0.6, "rope_parameters": ROPE}),
    Case("olmo2", "olmo2", GQA | {"rope_parameters": ROPE}, norm=None, post_norm="layers.{i}.post_attention_layernorm"),
    Case(
        "olmo3",
        "olmo3",
        GQA
        | {
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"sliding_attention": ROPE, "full_attention": YARN},
        },
        norm=None,
        post_norm="layers.{i}.post_attention_layernorm",
    ),
    Case("cohere", "cohere", GQA | {"rope_parameters": ROPE}),
    Case("cohere-qk-norm", "cohere", GQA | {"rope_parameters": ROPE, "use_qk_norm": True}),
    Case(
        "cohere2",
        "cohere2",
        GQA | FOUR | {"sliding_window": 4, "rope_parameters": ROPE},
        layers=(0, 3),
    ),
    Case(
        "gpt_oss",
        "gpt_oss",
        WIDE
        | {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 4,
            "rope_parameters": YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
        },
    ),
    Case("smollm3", "smollm3", GQA | FOUR | {"pad_token_id": 0, "rope_parameters": ROPE}, layers=(2, 3)),
    Case("granite", "granite", GQA | {"attention_multiplier": 0.11, "rope_parameters": ROPE}),
    Case("starcoder2", "starcoder2", GQA | {"sliding_window": 4, "rope_parameters": ROPE}),
    Case("nemotron", "nemotron", WIDE | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
    Case("glm", "glm", WIDE | {"pad_token_id": 0, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
    Case(
        "glm4",
        "glm4",
        WIDE | {"pad_token_id": 0, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        post_norm="layers.{i}.post_self_attn_layernorm",
    ),
    Case("persimmon", "persimmon", MHA | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, **FUSED),
    Case("deepseek_v2", "deepseek_v2", MLA | {"rope_parameters": ROPE}, **MLA_READS),
    Case(
        "deepseek_v2-lite",
        "deepseek_v2",
        MLA | {"q_lora_rank": None, "rope_parameters": ROPE},
        reads=("q_proj", "kv_a_proj_with_mqa"),
    ),
    Case(
        "deepseek_v3",
        "deepseek_v3",
        MLA | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        **MLA_READS,
    ),
    Case("bert", "bert", MHA, **BERT),
    Case("roberta", "roberta", MHA | {"pad_token_id": 0}, **BERT),
    Case(
        "distilbert",
        "distilbert",
        TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 16},
        attention="transformer.layer.{i}.attention",
        reads=("q_lin", "k_lin"),
        writes="out_lin",
        norm=None,
        auto="AutoModel",
        contiguous=True,
    ),
    Case(
        "vit",
        "vit",
        {
            "hidden_size": 32,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 8,
            "patch_size": 4,
        },
        attention="layers.{i}.attention",
        norm="layers.{i}.layernorm_before",
        auto="AutoModel",
        contiguous=True,
        inputs={"pixel_values": (3, 8, 8)},
    ),
    Case(
        "clip-text",
        "clip",
        {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION},
        tower="text",
        auto="AutoModel",
        **CLIP,
    ),
    Case(
        "clip-vision",
        "clip",
        {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION},
        tower="vision",
        auto="AutoModel",
        **CLIP,
    ),
    Case(
        "t5-encoder",
        "t5",
        T5_SIZES,
        attention="encoder.block.{i}.layer.0.SelfAttention",
        norm="encoder.block.{i}.layer.0.layer_norm",
        stack="encoder",
        **T5,
    ),
    Case(
        "t5-decoder",
        "t5",
        T5_SIZES,
        attention="decoder.block.{i}.layer.0.SelfAttention",
        norm="decoder.block.{i}.layer.0.layer_norm",
        stack="decoder",
        layers=(0, 2),
        **T5,
    ),
    Case(
        "t5-cross",
        "t5",
        T5_SIZES,
        attention="decoder.block.{i}.layer.1.EncDecAttention",
        norm="decoder.block.{i}.layer.1.layer_norm",
        stack="cross",
        **T5,
    ),
    Case(
        "whisper-encoder",
        "whisper",
        WHISPER_SIZES,
        attention="encoder.layers.{i}.self_attn",
        norm="encoder.layers.{i}.self_attn_layer_norm",
        stack="encoder",
        **WHISPER,
    ),
    Case(
        "whisper-decoder",
        "whisper",
        WHISPER_SIZES,
        attention="decoder.layers.{i}.self_attn",
        norm="decoder.layers.{i}.self_attn_layer_norm",
        stack="decoder",
        layers=(0, 2),
        **WHISPER,
    ),
    Case(
        "whisper-cross",
        "whisper",
        WHISPER_SIZES,
        attention="decoder.layers.{i}.encoder_attn",
        norm="decoder.layers.{i}.encoder_attn_layer_norm",
        stack="cross",
        **WHISPER,
    ),
]
