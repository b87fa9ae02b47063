"""What one entry of the table says about a family of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headmaps.architectures.model import Model
from headmaps.geometry import Norm, Position, QKNorm

T = TypeVar("T")
Rule = Callable[[Model], T]

ALL_BIASES = ("q", "k", "v", "o", "qkv")
"""Biases on every projection, whichever of these an architecture stores."""


def inverse_root(m: Model) -> float:
    """1/sqrt(d_head) (Vaswani et al. 2017)."""
    return float(m.d_head**-0.5)


def biases_if(key: str, default: bool = False, roles: tuple[str, ...] = ALL_BIASES) -> Rule[tuple[str, ...]]:
    """Biases on `roles` where the config's key says so."""
    return lambda m: roles if m.get(key, default=default) else ()


def position_none(_: Model) -> Position:
    """Nothing that attention sees."""
    return Position("none")


def position_learned(_: Model) -> Position:
    """Learned or fixed embeddings, added to the stream before the first layer: attention itself has none."""
    return Position("learned")


@dataclass(frozen=True)
class Architecture:
    """One family. A field that depends on the config is a function of the Model instead of a value."""

    block: str
    """Path of layer {i} after whatever prefix: `layers.{i}.`; matched at the beginning of a name or after a dot."""
    modules: Mapping[str, str] | Rule[Mapping[str, str]]
    """The projections inside a block: q k v o, or qkv o; each has `.weight`, and `.bias` where `biases` says so."""
    layout: str | Rule[str] = "separate"
    """How rows of the projections are shared out among heads: a name in headmaps.layouts, or `mla`."""
    biases: tuple[str, ...] | Rule[tuple[str, ...]] = ()
    """Which projections have one."""
    biases_as_stored: bool = False
    """The config does not say which biases there are; the tensors do (GGUF)."""
    transposed: bool = False
    """Weights are stored (in, out): transformers' Conv1D, GPT-2's only."""

    norm: Norm | Rule[Norm] = field(default_factory=lambda: Norm("none", "none"))
    epsilon: tuple[str, ...] = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    """Where the config keeps the norm's epsilon; the entry's norm gives it where the config does not."""
    norm_module: str | Rule[str | None] | None = None
    """The norm that attention reads through."""
    post_norm_module: str | None = None
    """The norm on attention's output, before it is added to the stream."""
    extras: Mapping[str, str] | Rule[Mapping[str, str]] = field(default_factory=dict)
    """Other tensors of a layer, name in extras.npz -> full name in the block. `q_norm.{h}`: one tensor a head."""
    shared: Mapping[str, str] | Rule[Mapping[str, str]] = field(default_factory=dict)
    """Tensors outside the layer that its attention needs, as `extras`, full names without prefix."""
    qk_norm: QKNorm | Rule[QKNorm | None] | None = None

    position: Rule[Position] = position_none
    scale: Rule[float | list[float]] = inverse_root
    """Factor of q.k; a list runs over all layers of the stack."""
    windows: Rule[list[int | None]] = lambda m: []
    """Sliding windows over all layers of the stack; empty: none."""
    window_key: str = "sliding_window"
    softcap: str | None = None
    """The config's key of the soft-cap on scores."""
    clip: Rule[float | None] = lambda m: None
    sinks: bool = False
    gate: str | None = None
    causal: bool | Rule[bool] = True
    parallel: bool | Rule[bool] = False
    attention_layers: Rule[list[int]] = lambda m: list(range(m.n_layers))
    """The layers with softmax attention."""
    notes: tuple[str, ...] | Rule[tuple[str, ...]] = ()

    d_model: tuple[str, ...] = ("hidden_size", "n_embd", "d_model", "dim")
    n_layers: tuple[str, ...] = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    n_heads: tuple[str, ...] = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    n_kv_heads: tuple[str, ...] | Rule[int] = ()
    """Where the config keeps the number of key/value heads; (): as many as query heads, whatever the config says."""
    d_head: tuple[str, ...] = ()
    """Where the config may name d_head; (): the family has d_model / n_heads, whatever the config says."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for keys that a config leaves out, where configs in use do leave them out."""


def value_of(rule: Any, m: Model) -> Any:
    """A field's value: itself, or what its rule says of this model."""
    return rule(m) if callable(rule) else rule
