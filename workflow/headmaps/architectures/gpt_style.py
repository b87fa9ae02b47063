"""The table, part one: GPT-2, GPT-NeoX and their kin.

To add a family, add one entry: copy the nearest one, change what differs, and add a tiny model of it to
tests/oracle/make_fixtures.py, which shows that the entry is right. Names of fields: headmaps.architectures.entry.
"""

from dataclasses import replace

from headmaps.architectures.entry import ALL_BIASES, Architecture, biases_if, position_learned
from headmaps.architectures.model import Model
from headmaps.architectures.positions import (
    alibi,
    alibi_mpt,
    alibi_scaled,
    gpt_neo_windows,
    rotary,
    rotary_with_dimensions,
)
from headmaps.geometry import Norm, Position

LAYER_PRE = Norm("layer", "pre", epsilon=1e-5, bias=True)


def gpt2_scale(m: Model) -> list[float]:
    """GPT2Attention: `scale_attn_weights` and `scale_attn_by_inverse_layer_idx`."""
    scale = m.d_head**-0.5 if m.get("scale_attn_weights", default=True) else 1.0
    by_layer = m.get("scale_attn_by_inverse_layer_idx", default=False)
    return [scale / (i + 1) if by_layer else scale for i in range(m.n_layers)]


GPT2 = Architecture(
    block="h.{i}.",
    modules={"qkv": "attn.c_attn", "o": "attn.c_proj"},
    layout="blocks",
    transposed=True,
    biases=ALL_BIASES,
    norm=LAYER_PRE,
    norm_module="ln_1",
    position=position_learned,
    scale=gpt2_scale,
)

GPT_BIGCODE = replace(
    GPT2,
    transposed=False,
    layout=lambda m: "blocks" if m.get("multi_query", default=True) else "per_head",
    n_kv_heads=lambda m: 1 if m.get("multi_query", default=True) else m.n_heads,
    scale=lambda m: m.d_head**-0.5 if m.get("scale_attn_weights", default=True) else 1.0,
)

GPT_NEO = Architecture(
    block="h.{i}.",
    modules={name[0]: f"attn.attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
    biases=("o",),
    norm=LAYER_PRE,
    norm_module="ln_1",
    position=position_learned,
    scale=lambda m: 1.0,
    windows=gpt_neo_windows,
)

GPTJ = Architecture(
    block="h.{i}.",
    modules={name[0]: f"attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
    norm=LAYER_PRE,
    norm_module="ln_1",
    position=rotary_with_dimensions("interleaved"),
    parallel=True,
    defaults={"rotary_dim": 64},
)

CODEGEN = replace(GPTJ, modules={"qkv": "attn.qkv_proj", "o": "attn.out_proj"}, layout="model_parallel")

GPT_NEOX = Architecture(
    block="layers.{i}.",
    modules={"qkv": "attention.query_key_value", "o": "attention.dense"},
    layout="per_head",
    biases=biases_if("attention_bias", default=True),
    norm=LAYER_PRE,
    norm_module="input_layernorm",
    position=rotary("half", partial=0.25),
    parallel=lambda m: m.get("use_parallel_residual", default=True),
)

OPT = Architecture(
    block="decoder.layers.{i}.",
    modules={name[0]: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
    biases=biases_if("enable_bias", default=True),
    norm=lambda m: replace(
        LAYER_PRE,
        place="pre" if m.get("do_layer_norm_before", default=True) else "post",
        weight=m.get("layer_norm_elementwise_affine", default=True),
        bias=m.get("layer_norm_elementwise_affine", default=True),
    ),
    norm_module="self_attn_layer_norm",
    position=position_learned,
)

BLOOM = Architecture(
    block="h.{i}.",
    modules={"qkv": "self_attention.query_key_value", "o": "self_attention.dense"},
    layout="per_head",
    biases=ALL_BIASES,
    norm=LAYER_PRE,
    norm_module="input_layernorm",
    position=alibi,
)


def falcon_layout(m: Model) -> str:
    """FalconAttention._split_heads has three branches."""
    if m.get("new_decoder_architecture", default=False):
        return "per_group"
    return "blocks" if m.get("multi_query", default=True) else "per_head"


def falcon_kv_heads(m: Model) -> int:
    """falcon-7b's config says num_kv_heads 71, but `multi_query` decides: one."""
    if m.get("new_decoder_architecture", default=False):
        return m.number("number of key/value heads", "num_kv_heads", "n_head_kv")
    return 1 if m.get("multi_query", default=True) else m.n_heads


def falcon_norm_module(m: Model) -> str:
    """The 40B architecture has a norm for attention and one for the MLP, except Falcon2-11B, which has one."""
    new = m.get("new_decoder_architecture", default=False)
    count = m.get("num_ln_in_parallel_attn", default=2 if new else 1)
    return "ln_attn" if new and count == 2 else "input_layernorm"


def falcon_position(m: Model) -> Position:
    """`alibi: true` (the RefinedWeb models), else rotary."""
    return alibi_scaled(m) if m.get("alibi", default=False) else rotary("half")(m)


FALCON = Architecture(
    block="h.{i}.",
    modules={"qkv": "self_attention.query_key_value", "o": "self_attention.dense"},
    layout=falcon_layout,
    n_kv_heads=falcon_kv_heads,
    biases=biases_if("bias"),
    norm=LAYER_PRE,
    norm_module=falcon_norm_module,
    position=falcon_position,
    parallel=lambda m: m.get("parallel_attn", default=True) or m.get("new_decoder_architecture", default=False),
)

MPT = Architecture(
    block="blocks.{i}.",
    modules={"qkv": "attn.Wqkv", "o": "attn.out_proj"},
    layout="blocks",
    norm=replace(LAYER_PRE, bias=False),
    norm_module="norm_1",
    position=alibi_mpt,
    scale=lambda m: m.get("attn_config", default={}).get("softmax_scale") or m.d_head**-0.5,
    clip=lambda m: m.get("attn_config", default={}).get("clip_qkv"),
)

GPT_STYLE = {
    "gpt2": GPT2,
    "gpt_bigcode": GPT_BIGCODE,
    "gpt_neo": GPT_NEO,
    "gptj": GPTJ,
    "codegen": CODEGEN,
    "gpt_neox": GPT_NEOX,
    "opt": OPT,
    "bloom": BLOOM,
    "falcon": FALCON,
    "mpt": MPT,
}
