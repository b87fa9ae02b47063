"""The table, part four: GGUF, by the architecture that its metadata names.

Keys are those of the metadata without the architecture's name (`attention.head_count`), names those of llama.cpp.
Its converter stores norm gains ready to multiply: for Gemma the 1 is added already, so `plus_one` is never set here.
"""

from dataclasses import replace
from typing import Any

from headmaps.architectures.entry import Architecture, Rule, inverse_root
from headmaps.architectures.model import Model
from headmaps.architectures.positions import alternating, by_type, every_nth_is_full, yarn_mscale
from headmaps.geometry import Norm, Position, QKNorm, Rotary

QK_NORM_TENSORS = {"q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight"}
FREQUENCY_FACTORS = "rope_freqs.weight"
"""Llama 3's rotary scaling, which the converter stores as a divisor of each frequency."""


def gguf_rotary(theta: float = 10000.0) -> Rule[Position]:
    """One rotation for all layers, in halves once the rows stand in the model's own order."""

    def rule(m: Model) -> Position:
        return Position("rotary", {"default": _rotary(m, m.get("rope.freq_base", default=theta))})

    return rule


def gemma3_rotary(m: Model) -> Position:
    """Gemma 3: sliding layers turn with base 1e4, unscaled (llama.cpp: rope_freq_base_train_swa)."""
    local = Rotary("half", m.d_head, 10000.0)
    turned = {"sliding_attention": local, "full_attention": _rotary(m, m.get("rope.freq_base", default=1e6))}
    return Position("rotary", turned, dict(enumerate(every_nth_is_full(6)(m))))


def _rotary(m: Model, base: float) -> Rotary:
    dimensions = m.get("rope.dimension_count", default=m.d_head)
    kind = m.get("rope.scaling.type", default="none")
    scaling: dict[str, Any] | None = None
    if FREQUENCY_FACTORS in m.names:
        scaling = {"type": "factors"}
    elif kind != "none":
        scaling = {"type": kind, "factor": m.get("rope.scaling.factor")}
        if (original := m.get("rope.scaling.original_context_length")) is not None:
            scaling["original_max_position_embeddings"] = original
        if (maximum := m.get("context_length")) is not None:
            scaling["max_position_embeddings"] = maximum
    factor = float(m.get("rope.scaling.attn_factor", default=1.0))
    if scaling and scaling["type"] == "yarn":
        factor *= yarn_mscale(scaling["factor"])  # as llama.cpp does (rope_yarn)
    return Rotary("half", dimensions, float(base), scaling, factor)


def gemma2_scale(m: Model) -> float:
    """1/sqrt(d_head), except for the 27B model: 1/sqrt(d_model / H) (llama.cpp, gemma2: LLM_TYPE_27B)."""
    return inverse_root(m) if m.n_layers != 46 else float((m.d_model // m.n_heads) ** -0.5)


def gemma3_scale(m: Model) -> float:
    """As `gemma2_scale`; here the 27B model has 62 layers."""
    return inverse_root(m) if m.n_layers != 62 else float((m.d_model // m.n_heads) ** -0.5)


def gguf_frequency_factors(m: Model) -> dict[str, str]:
    """Where the file has them."""
    return {"rope_factors": FREQUENCY_FACTORS} if FREQUENCY_FACTORS in m.names else {}


GGUF_LLAMA = Architecture(
    block="blk.{i}.",
    modules={"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"},
    layout="gguf_llama",
    biases_as_stored=True,
    norm=Norm("rms", "pre", epsilon=1e-6),
    norm_module="attn_norm",
    shared=gguf_frequency_factors,
    position=gguf_rotary(),
    d_model=("embedding_length",),
    n_layers=("block_count",),
    n_heads=("attention.head_count",),
    n_kv_heads=("attention.head_count_kv",),
    d_head=("attention.key_length",),
    epsilon=("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
)
GGUF_QWEN2 = replace(GGUF_LLAMA, layout="separate")
GGUF_QWEN3 = replace(GGUF_QWEN2, extras=QK_NORM_TENSORS, qk_norm=QKNorm("rms", "head", epsilon=1e-6))
GGUF_GEMMA = replace(GGUF_LLAMA, layout="separate")
GGUF_GEMMA2 = replace(
    GGUF_GEMMA,
    norm=Norm("rms", "sandwich", epsilon=1e-6),
    post_norm_module="post_attention_norm",
    scale=gemma2_scale,
    softcap="attn_logit_softcapping",
    windows=by_type(alternating),
    window_key="attention.sliding_window",
)
GGUF_GEMMA3 = replace(
    GGUF_GEMMA2,
    scale=gemma3_scale,
    softcap=None,
    extras=QK_NORM_TENSORS,
    qk_norm=QKNorm("rms", "head", epsilon=1e-6),
    position=gemma3_rotary,
    windows=by_type(every_nth_is_full(6)),
)

GGUF_STYLE = {
    "gguf:llama": GGUF_LLAMA,
    "gguf:qwen2": GGUF_QWEN2,
    "gguf:qwen2moe": GGUF_QWEN2,
    "gguf:qwen3": GGUF_QWEN3,
    "gguf:qwen3moe": GGUF_QWEN3,
    "gguf:gemma": GGUF_GEMMA,
    "gguf:gemma2": GGUF_GEMMA2,
    "gguf:gemma3": GGUF_GEMMA3,
}
