"""Oracle cases: Llama and its kin, and multi-head latent attention. What a case says: case.py."""

from oracle.case import FUSED, MHA, ROPE, Case

GQA = MHA | {"num_key_value_heads": 2}
WIDE = GQA | {"head_dim": 16}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
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

LLAMA_CASES = [
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
        WIDE | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "rope_parameters": ROPE},
    ),
    Case("qwen2_moe", "qwen2_moe", WIDE | EXPERTS | {"rope_parameters": ROPE, "use_sliding_window": False}),
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
    Case("phi", "phi", WIDE | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, writes="dense"),
    Case(
        "phi-qk-norm",
        "phi",
        MHA | {"qk_layernorm": True, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        writes="dense",
    ),
    Case(
        "phi3",
        "phi3",
        WIDE | {"pad_token_id": 0, "rope_parameters": ROPE | {"partial_rotary_factor": 0.75}, "sliding_window": 4},
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
    Case("olmo", "olmo", WIDE | {"clip_qkv": 0.6, "rope_parameters": ROPE}),
    Case(
        "olmo2", "olmo2", WIDE | {"rope_parameters": ROPE}, norm=None, post_norm="layers.{i}.post_attention_layernorm"
    ),
    Case(
        "olmo3",
        "olmo3",
        WIDE
        | {
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"sliding_attention": ROPE, "full_attention": YARN},
        },
        norm=None,
        post_norm="layers.{i}.post_attention_layernorm",
    ),
    Case("cohere", "cohere", WIDE | {"rope_parameters": ROPE}),
    Case("cohere-qk-norm", "cohere", WIDE | {"rope_parameters": ROPE, "use_qk_norm": True}),
    Case(
        "cohere2",
        "cohere2",
        WIDE | FOUR | {"sliding_window": 4, "rope_parameters": ROPE},
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
    Case("smollm3", "smollm3", WIDE | FOUR | {"pad_token_id": 0, "rope_parameters": ROPE}, layers=(2, 3)),
    Case("granite", "granite", WIDE | {"attention_multiplier": 0.11, "rope_parameters": ROPE}),
    Case("starcoder2", "starcoder2", WIDE | {"sliding_window": 4, "rope_parameters": ROPE}),
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
]
