"""Oracle cases: GPT-2, GPT-NeoX and their kin. What a case says: case.py."""

from oracle.case import FUSED, MHA, OUT, ROPE, TEXT, Case

GPT = {"vocab_size": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 16, "n_positions": 512}
CODEGEN_READS = ("qkv_proj", "qkv_proj")
H = {"attention": "h.{i}.attn", "norm": "h.{i}.ln_1"}
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

GPT_CASES = [
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
]
