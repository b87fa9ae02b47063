"""The table, part two: Llama and its kin, and multi-head latent attention.

To add a family, add one entry: copy the nearest one, change what differs, and add a tiny model of it to
tests/oracle/make_fixtures.py, which shows that the entry is right. Names of fields: headmaps.architectures.entry.
"""

from collections.abc import Mapping
from dataclasses import replace

from headmaps.architectures.entry import ALL_BIASES, Architecture, biases_if
from headmaps.architectures.model import Model
from headmaps.architectures.positions import (
    alternating,
    by_type,
    every_layer,
    every_nth_is_full,
    if_used,
    mla_scale,
    qwen2_moe_types,
    qwen2_types,
    rotary,
    rotary_by_type,
    rotary_in_some_layers,
    rotary_of_mla,
    smollm3_turned,
    smollm3_types,
)
from headmaps.geometry import Norm, QKNorm

SEPARATE = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
LAYER_PRE = Norm("layer", "pre", epsilon=1e-5, bias=True)
RMS_PRE = Norm("rms", "pre", epsilon=1e-6)
QK_RMS = QKNorm("rms", "head", epsilon=1e-6)
QK_NORM_TENSORS = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}

LLAMA = Architecture(
    block="layers.{i}.",
    modules=SEPARATE,
    n_kv_heads=("num_key_value_heads",),
    d_head=("head_dim",),
    biases=biases_if("attention_bias"),
    norm=RMS_PRE,
    norm_module="input_layernorm",
    position=rotary("half"),
)

MISTRAL = replace(LLAMA, biases=(), windows=every_layer, defaults={"num_key_value_heads": 8, "sliding_window": 4096})
MIXTRAL = replace(
    MISTRAL,
    norm=replace(RMS_PRE, epsilon=1e-5),
    position=rotary("half", theta=1e6),
    defaults={"num_key_value_heads": 8},
)
QWEN2 = replace(LLAMA, biases=("q", "k", "v"), windows=by_type(qwen2_types))
QWEN2_MOE = replace(
    QWEN2,
    biases=lambda m: ("q", "k", "v") if m.get("qkv_bias", default=True) else (),
    windows=by_type(qwen2_moe_types),
)
QWEN3 = replace(LLAMA, extras=QK_NORM_TENSORS, qk_norm=QK_RMS, windows=by_type(qwen2_types), defaults={"head_dim": 128})
QWEN3_MOE = replace(QWEN3, windows=if_used, defaults={})


def qwen3_next_layers(m: Model) -> list[int]:
    """Three of four layers are linear attention (a gated delta rule), without softmax."""
    interval = m.get("full_attention_interval", default=4)
    types = m.layer_types or ["linear" if (i + 1) % interval else "full_attention" for i in range(m.n_layers)]
    return [i for i in range(m.n_layers) if types[i] == "full_attention"]


QWEN3_NEXT = replace(
    QWEN3,
    layout="gated",
    gate="sigmoid",
    norm=replace(RMS_PRE, plus_one=True),
    qk_norm=replace(QK_RMS, plus_one=True),
    position=rotary("half", partial=0.25),
    windows=lambda m: [],
    attention_layers=qwen3_next_layers,
    defaults={"head_dim": 256},
    notes=("head outputs pass a sigmoid gate of the current token before W_O: not part of the matrices",),
)

GEMMA = replace(LLAMA, norm=replace(RMS_PRE, plus_one=True), defaults={"head_dim": 256})


def query_scalar(m: Model) -> float:
    """Gemma 2 and 3: `query_pre_attn_scalar ** -0.5`."""
    return float(m.get("query_pre_attn_scalar", default=256) ** -0.5)


GEMMA2 = replace(
    GEMMA,
    norm=Norm("rms", "sandwich", plus_one=True, epsilon=1e-6),
    post_norm_module="post_attention_layernorm",
    scale=query_scalar,
    softcap="attn_logit_softcapping",
    windows=by_type(alternating),
    defaults={"head_dim": 256, "num_key_value_heads": 4, "attn_logit_softcapping": 50.0, "sliding_window": 4096},
)
GEMMA3 = replace(
    GEMMA2,
    extras=QK_NORM_TENSORS,
    qk_norm=replace(QK_RMS, plus_one=True),
    windows=by_type(every_nth_is_full(6)),
    position=rotary_by_type(
        "half", {"sliding_attention": 1e4, "full_attention": 1e6}, "rope_local_base_freq", every_nth_is_full(6)
    ),
    causal=lambda m: not m.get("use_bidirectional_attention", default=False),
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
    },
)


def qk_layernorm(m: Model) -> QKNorm | None:
    """Phi and StableLM: a LayerNorm per head, if `qk_layernorm`."""
    return QKNorm("layer", "head", epsilon=1e-5) if m.get("qk_layernorm") else None


def qk_layernorm_tensors(m: Model) -> dict[str, str]:
    """Phi and Persimmon: one gain and bias for all heads."""
    if not m.get("qk_layernorm"):
        return {}
    both = {"": "weight", "_bias": "bias"}
    return {f"{x}_norm{end}": f"self_attn.{x}_layernorm.{part}" for x in "qk" for end, part in both.items()}


def stablelm_norm_tensors(m: Model) -> dict[str, str]:
    """StableLM 2 12B: a gain per head, each a tensor of its own, no bias."""
    if not m.get("qk_layernorm"):
        return {}
    heads = {"q": m.n_heads, "k": m.n_kv_heads}
    return {f"{x}_norm.{h}": f"self_attn.{x}_layernorm.norms.{h}.weight" for x, n in heads.items() for h in range(n)}


PHI = replace(
    LLAMA,
    modules=SEPARATE | {"o": "self_attn.dense"},
    biases=ALL_BIASES,
    norm=LAYER_PRE,
    position=rotary("half", partial=0.5),
    qk_norm=qk_layernorm,
    extras=qk_layernorm_tensors,
    parallel=True,
)
PHI3 = replace(
    LLAMA,
    modules={"qkv": "self_attn.qkv_proj", "o": "self_attn.o_proj"},
    layout="blocks",
    biases=(),
    norm=replace(RMS_PRE, epsilon=1e-5),
    windows=every_layer,
)
STABLELM = replace(
    LLAMA,
    biases=biases_if("use_qkv_bias", roles=("q", "k", "v")),
    d_head=(),
    norm=LAYER_PRE,
    position=rotary("half", partial=0.25),
    qk_norm=qk_layernorm,
    extras=stablelm_norm_tensors,
    parallel=lambda m: m.get("use_parallel_residual", default=False),
)
OLMO = replace(
    LLAMA,
    norm=Norm("layer", "pre", epsilon=1e-5, weight=False),
    epsilon=(),
    norm_module=None,
    clip=lambda m: m.get("clip_qkv"),
)
OLMO2 = replace(
    LLAMA,
    norm=Norm("rms", "output", epsilon=1e-5),
    norm_module=None,
    post_norm_module="post_attention_layernorm",
    extras=QK_NORM_TENSORS,
    qk_norm=QKNorm("rms", "width", epsilon=1e-5),
)
OLMO3 = replace(
    OLMO2,
    windows=by_type(every_nth_is_full(4)),
    position=rotary_by_type(
        "half", {"sliding_attention": 5e5, "full_attention": 5e5}, "rope_theta", every_nth_is_full(4)
    ),
    defaults={"sliding_window": 4096},
)


def cohere_qk_norm(m: Model) -> QKNorm | None:
    """Command R+: a LayerNorm per head with a gain per head, no bias, if `use_qk_norm`."""
    return QKNorm("layer", "head", epsilon=1e-5) if m.get("use_qk_norm") else None


def cohere_tensors(m: Model) -> Mapping[str, str]:
    """The gains of `cohere_qk_norm`."""
    return QK_NORM_TENSORS if m.get("use_qk_norm") else {}


COHERE = replace(
    LLAMA,
    norm=replace(LAYER_PRE, bias=False),
    position=rotary("interleaved", theta=5e5),
    qk_norm=cohere_qk_norm,
    extras=cohere_tensors,
    parallel=True,
)
COHERE2 = replace(
    COHERE,
    qk_norm=None,
    extras={},
    windows=by_type(every_nth_is_full(4)),
    position=rotary_in_some_layers(
        "interleaved", 1e4, lambda m: [kind == "sliding_attention" for kind in every_nth_is_full(4)(m)]
    ),
    defaults={"sliding_window": 4096},
)
GPT_OSS = replace(
    LLAMA,
    biases=biases_if("attention_bias", default=True),
    norm=replace(RMS_PRE, epsilon=1e-5),
    position=rotary("half", theta=150000.0),
    windows=by_type(alternating),
    extras={"sinks": "self_attn.sinks"},
    sinks=True,
    notes=("a learned sink logit per head takes part in the softmax: not part of the matrices",),
    defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
)
SMOLLM3 = replace(
    LLAMA,
    position=rotary_in_some_layers("half", 2e6, smollm3_turned),
    windows=by_type(smollm3_types),
    defaults={"num_key_value_heads": 4},
)
GRANITE = replace(LLAMA, scale=lambda m: float(m.get("attention_multiplier", default=1.0)))
STARCODER2 = replace(
    LLAMA,
    biases=biases_if("use_bias", default=True),
    norm=LAYER_PRE,
    windows=every_layer,
    defaults={"num_key_value_heads": 2},
)
NEMOTRON = replace(LLAMA, norm=replace(LAYER_PRE, plus_one=True), position=rotary("half", partial=0.5))
GLM = replace(
    LLAMA,
    biases=biases_if("attention_bias", default=True, roles=("q", "k", "v")),
    position=rotary("interleaved", partial=0.5),
    norm=replace(RMS_PRE, epsilon=1.5625e-07),
    defaults={"num_key_value_heads": 2, "head_dim": 128},
)
GLM4 = replace(
    GLM,
    norm=Norm("rms", "sandwich", epsilon=1.5625e-07),
    post_norm_module="post_self_attn_layernorm",
)
PERSIMMON = replace(
    LLAMA,
    modules={"qkv": "self_attn.query_key_value", "o": "self_attn.dense"},
    layout="per_head",
    n_kv_heads=(),
    d_head=(),
    biases=ALL_BIASES,
    norm=LAYER_PRE,
    position=rotary("half", partial=0.5),
    qk_norm=qk_layernorm,
    extras=qk_layernorm_tensors,
    defaults={"qk_layernorm": True},
)

# --- Multi-head latent attention ----------------------------------------------------------------------------------

MLA_QUERY = {"q_a": "self_attn.q_a_proj", "q_b": "self_attn.q_b_proj"}
MLA_KEY_VALUE = {"kv_a": "self_attn.kv_a_proj_with_mqa", "kv_b": "self_attn.kv_b_proj", "o": "self_attn.o_proj"}


def has_low_rank_query(m: Model) -> bool:
    """DeepSeek-V2-Lite says `q_lora_rank: null` and has a plain q_proj."""
    return m.get("q_lora_rank") is not None


def mla_extras(m: Model) -> dict[str, str]:
    """The gains of the norms inside the low-rank paths."""
    gains = {"kv_a_norm": "self_attn.kv_a_layernorm.weight"}
    return gains | ({"q_a_norm": "self_attn.q_a_layernorm.weight"} if has_low_rank_query(m) else {})


DEEPSEEK = replace(
    LLAMA,
    modules=lambda m: (MLA_QUERY if has_low_rank_query(m) else {"q": "self_attn.q_proj"}) | MLA_KEY_VALUE,
    layout="mla",
    n_kv_heads=(),
    d_head=(),
    extras=mla_extras,
    position=rotary_of_mla,
    scale=mla_scale,
    defaults={
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    notes=(
        "latent attention: an RMS norm divides inside the low-rank paths of q, and of k (without its rotated part) and "
        "v, so the matrices are right up to one positive factor per token; the gains of those norms are folded in",
        "the rotated part of the key is one for all heads and passes no norm: qk_nope and qk_rope are two matrices",
    ),
)

LLAMA_STYLE = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "phi": PHI,
    "phi3": PHI3,
    "stablelm": STABLELM,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "gpt_oss": GPT_OSS,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "starcoder2": STARCODER2,
    "nemotron": NEMOTRON,
    "glm": GLM,
    "glm4": GLM4,
    "persimmon": PERSIMMON,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
}
