"""How a config says where tokens are: rotary parameters of every format in use, ALiBi slopes, sliding windows.

Read both spellings: transformers 5 writes `rope_parameters` (one dict, or one per layer type), older files
`rope_theta`, `rope_scaling` and the partial factor apart. Attention factors follow transformers 5.24,
modeling_rope_utils.py, in whose words the parameters are recorded.
"""

import math
from collections.abc import Mapping
from typing import Any

from headmaps.architectures.entry import Rule
from headmaps.architectures.model import Model
from headmaps.errors import ArchitectureError
from headmaps.geometry import Position, Rotary

SCALINGS = ("linear", "dynamic", "llama3", "yarn", "longrope")
_OLD_NAMES = {"su": "longrope", "mrope": "default"}
"""Phi-3's first files say `su`; `mrope` (Qwen2-VL) turns text tokens as the default does."""


def rotary(style: str, partial: float = 1.0, theta: float = 10000.0) -> Rule[Position]:
    """One rotation for all layers; `partial` and `theta` are the family's defaults."""

    def rule(m: Model) -> Position:
        return Position("rotary", {"default": rotary_of(m, _parameters(m, None), style, partial, theta)})

    return rule


def rotary_with_dimensions(style: str) -> Rule[Position]:
    """As `rotary`, the number of turned dimensions being a key of its own, `rotary_dim` (GPT-J, CodeGen)."""

    def rule(m: Model) -> Position:
        dimensions = m.get("rotary_dim", default=m.d_head)
        return Position("rotary", {"default": Rotary(style, dimensions, 10000.0)})

    return rule


def rotary_in_some_layers(style: str, theta: float, turned: Rule[list[bool]]) -> Rule[Position]:
    """One rotation, in the layers that `turned` says; none in the others (Cohere 2, SmolLM3)."""

    def rule(m: Model) -> Position:
        variants = {i: "default" if yes else None for i, yes in enumerate(turned(m))}
        parameters = _parameters(m, None)
        return Position("rotary", {"default": rotary_of(m, parameters, style, 1.0, theta)}, variants)

    return rule


def rotary_by_type(style: str, theta: Mapping[str, float], local_key: str, types: Rule[list[str]]) -> Rule[Position]:
    """One rotation per layer type (Gemma 3, OLMo 3).

    In old files `rope_scaling` and `rope_theta` speak of full attention; the sliding layers turn unscaled, with the
    base under `local_key`.
    """

    def rule(m: Model) -> Position:
        by_type = {}
        for kind, base in theta.items():
            parameters = _parameters(m, kind)
            if parameters is None and kind == "sliding_attention":
                parameters = {"rope_theta": m.get(local_key, default=base)}
            by_type[kind] = rotary_of(m, parameters or _parameters(m, None), style, 1.0, base)
        return Position("rotary", by_type, dict(enumerate(types(m))))

    return rule


def rotary_of_mla(m: Model) -> Position:
    """DeepSeek: `qk_rope` is turned as a whole, in interleaved pairs unless the config says otherwise."""
    style = "interleaved" if m.get("rope_interleave", default=True) else "half"
    dimensions = m.number("rotated head dimension", "qk_rope_head_dim")
    return Position("rotary", {"default": rotary_of(m, _parameters(m, None), style, 1.0, 10000.0, dimensions)})


def _parameters(m: Model, kind: str | None) -> dict[str, Any] | None:
    """The config's rope parameters: of a layer type in the nested format, else of the model. None: not nested."""
    parameters = m.get("rope_parameters")
    nested = isinstance(parameters, Mapping) and any(isinstance(value, Mapping) for value in parameters.values())
    if kind is not None:
        return dict(parameters.get(kind) or {}) if nested and isinstance(parameters, Mapping) else None
    if isinstance(parameters, Mapping) and not nested:
        return dict(parameters)
    scaling = m.get("rope_scaling")
    return dict(scaling) if isinstance(scaling, Mapping) else {}


def rotary_of(
    m: Model, parameters: Mapping[str, Any] | None, style: str, partial: float, theta: float, width: int | None = None
) -> Rotary:
    """One Rotary from the config's parameters.

    Args:
        parameters: rope_parameters or rope_scaling, possibly empty.
        partial, theta: the family's defaults.
        width: of the part of a head that is turned by `partial`; d_head by default.

    Raises:
        ArchitectureError: a scaling that is not known here.
    """
    given = {key: value for key, value in (parameters or {}).items() if value is not None}
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    kind = _OLD_NAMES.get(kind, kind)
    base = float(given.pop("rope_theta", None) or m.get("rope_theta", "rotary_emb_base", default=theta))
    factor = given.pop("partial_rotary_factor", None)
    factor = m.get("partial_rotary_factor", "rotary_pct", default=partial) if factor is None else factor
    rotary_dim = int((width or m.d_head) * factor)
    if kind == "default":
        return Rotary(style, rotary_dim, base)
    if kind not in SCALINGS:
        raise ArchitectureError(
            f"the rotary scaling {kind!r} of this {m.model_type} model is not known",
            where="config.json: rope_parameters or rope_scaling",
            expected=", ".join(("default", *SCALINGS)),
        )
    if (maximum := m.get("max_position_embeddings")) is not None:
        given.setdefault("max_position_embeddings", maximum)
    original = m.get("original_max_position_embeddings")
    if kind in ("llama3", "yarn", "longrope") and original is None:
        original = given.get("original_max_position_embeddings", maximum)
    if original is not None:
        given["original_max_position_embeddings"] = original
    if kind in ("yarn", "longrope"):
        given.setdefault("factor", maximum / original if maximum and original else None)
    return Rotary(style, rotary_dim, base, {"type": kind, **given}, _attention_factor(m, kind, given))


def _attention_factor(m: Model, kind: str, given: Mapping[str, Any]) -> float:
    """What YaRN and LongRoPE multiply cos and sin with."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if (explicit := given.get("attention_factor")) is not None:
        return float(explicit)
    factor = given["factor"]
    if factor is None:
        raise ArchitectureError(
            f"the {kind} rotary scaling of this {m.model_type} model names no factor",
            where="config.json: rope_parameters or rope_scaling",
            expected="factor, or max_position_embeddings and original_max_position_embeddings",
        )
    if kind == "longrope":
        original = given["original_max_position_embeddings"]
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    all_dimensions = given.get("mscale_all_dim")
    if given.get("mscale") and all_dimensions:
        return yarn_mscale(factor, given["mscale"]) / yarn_mscale(factor, all_dimensions)
    return yarn_mscale(factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """`0.1 mscale ln(factor) + 1` (Peng et al. 2023, arXiv:2309.00071, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def mla_scale(m: Model) -> float:
    """(nope + rope)^-1/2, times mscale^2 where a scaling names `mscale_all_dim` (DeepseekV3Attention)."""
    width = m.number("head dimension without position", "qk_nope_head_dim")
    width += m.number("rotated head dimension", "qk_rope_head_dim")
    parameters = _parameters(m, None) or {}
    all_dimensions = parameters.get("mscale_all_dim")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    mscale = yarn_mscale(parameters["factor"], all_dimensions) if all_dimensions and kind != "default" else 1.0
    return float(width**-0.5 * mscale * mscale)


def alibi_slopes(n_heads: int) -> list[float]:
    """Slopes of ALiBi (Press et al. 2021, arXiv:2108.12409): 2^(-8 i / n), with the paper's rule for other n."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return slopes + between


def alibi(m: Model) -> Position:
    """BLOOM: the bias is added to the scaled score."""
    return Position("alibi", slopes=alibi_slopes(m.n_heads))


def alibi_scaled(m: Model) -> Position:
    """Falcon-RW: the bias is scaled with the score, by 1/sqrt(d_head)."""
    return Position("alibi", slopes=[slope * m.d_head**-0.5 for slope in alibi_slopes(m.n_heads)])


def alibi_mpt(m: Model) -> Position:
    """MPT (build_mpt_alibi_tensor): its own maximum, and its own order where the heads are no power of two."""
    attention = m.get("attn_config", default={})
    if not attention.get("alibi", True):
        return Position("learned")
    power = 2 ** math.ceil(math.log2(m.n_heads))
    steepest = attention.get("alibi_bias_max", 8)
    slopes = [2.0 ** (-(i + 1) * steepest / power) for i in range(power)]
    if power != m.n_heads:
        slopes = (slopes[1::2] + slopes[::2])[: m.n_heads]
    return Position("alibi", slopes=slopes)


def relative(bidirectional: bool) -> Rule[Position]:
    """T5: a learned bias per head and bucket of distance, stored in block 0, added in every layer."""

    def rule(m: Model) -> Position:
        buckets = m.get("relative_attention_num_buckets", default=32)
        distance = m.get("relative_attention_max_distance", default=128)
        table = {"buckets": buckets, "max_distance": distance, "bidirectional": bidirectional}
        return Position("relative", relative=table)

    return rule


def every_layer(m: Model) -> list[int | None]:
    """Mistral, Mixtral, Phi-3, StarCoder 2: one window for all layers, if any."""
    window = m.get(m.entry.window_key)
    return [window] * m.n_layers if window else []


def if_used(m: Model) -> list[int | None]:
    """Qwen3-MoE: as `every_layer`, if `use_sliding_window`."""
    return every_layer(m) if m.get("use_sliding_window") else []


def by_type(types: Rule[list[str]]) -> Rule[list[int | None]]:
    """A window in layers of type sliding_attention."""

    def rule(m: Model) -> list[int | None]:
        window = m.get(m.entry.window_key)
        return [window if kind == "sliding_attention" else None for kind in types(m)] if window else []

    return rule


def alternating(m: Model) -> list[str]:
    """Gemma 2, gpt-oss: sliding first, then every second layer."""
    return m.layer_types or _pattern(m, 2)


def every_nth_is_full(n: int) -> Rule[list[str]]:
    """Gemma 3 (6), Cohere 2 and OLMo 3 (4): each n-th layer sees everything."""
    return lambda m: m.layer_types or _pattern(m, m.get("sliding_window_pattern", default=n))


def _pattern(m: Model, n: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % n else "full_attention" for i in range(m.n_layers)]


def qwen2_types(m: Model) -> list[str]:
    """Qwen2, Qwen3: sliding from layer `max_window_layers` on, if `use_sliding_window`."""
    if not m.get("use_sliding_window"):
        return ["full_attention"] * m.n_layers
    first = m.get("max_window_layers", default=28)
    return m.layer_types or ["sliding_attention" if i >= first else "full_attention" for i in range(m.n_layers)]


def qwen2_moe_types(m: Model) -> list[str]:
    """Qwen2-MoE: every second layer below `max_window_layers`, if `use_sliding_window`."""
    if not m.get("use_sliding_window"):
        return ["full_attention"] * m.n_layers
    last = m.get("max_window_layers", default=28)
    sliding = [(i + 1) % 2 and i < last for i in range(m.n_layers)]
    return m.layer_types or ["sliding_attention" if yes else "full_attention" for yes in sliding]


def smollm3_turned(m: Model) -> list[bool]:
    """SmolLM3: `no_rope_layers[i] == 0` means that layer i is not turned; by default each fourth."""
    interval = m.get("no_rope_layer_interval", default=4)
    flags = m.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(m.n_layers)]
    return [bool(flag) for flag in flags[: m.n_layers]]


def smollm3_types(m: Model) -> list[str]:
    """SmolLM3: the layers without rotation slide, if `use_sliding_window`."""
    slide = bool(m.get("use_sliding_window"))
    made = ["sliding_attention" if slide and not turned else "full_attention" for turned in smollm3_turned(m)]
    return m.layer_types or made


def gpt_neo_windows(m: Model) -> list[int | None]:
    """GPT-Neo: `attention_types` such as [[["global", "local"], 12]]; local layers see `window_size` positions."""
    kinds = m.get("attention_layers") or [
        kind
        for names, times in m.get("attention_types", default=[[["global", "local"], m.n_layers // 2]])
        for _ in range(times)
        for kind in names
    ]
    window = m.get("window_size", default=256)
    return [window if kind == "local" else None for kind in kinds]
