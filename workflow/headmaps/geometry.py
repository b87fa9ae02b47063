"""What a checkpoint's attention looks like, beyond its numbers: `geometry.json` as a type.

Everything that later stages need to interpret `W_Q W_K W_V W_O` is here, so that none of them reads a model's
config again. Numbers that can differ by layer are asked for by layer: `scale_of`, `rotary_of`, `window_of`.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from headmaps.errors import ArchitectureError, ResultError
from headmaps.records import read_json, write_json

T = TypeVar("T")


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of one kind of layer (Su et al. 2021, arXiv:2104.09864).

    Dimension pair i turns by `position * base**(-2 i / rotary_dim)`, before `scaling`; dimensions from
    `rotary_dim` on are not turned.
    """

    style: str
    """`half`: pairs (i, i + rotary_dim/2), as in GPT-NeoX and Llama; `interleaved`: pairs (2i, 2i + 1), as in GPT-J."""
    rotary_dim: int
    """How many leading dimensions of a head are turned (of `qk_rope` in MLA: all of them)."""
    base: float
    scaling: dict[str, Any] | None = None
    """None, or the checkpoint's own parameters with `type`: linear, dynamic, llama3, yarn or longrope."""
    attention_factor: float = 1.0
    """Multiplies cos and sin, on the query's and on the key's side: rotated dimensions of the score gain its square."""


@dataclass(frozen=True)
class Position:
    """How the attention of a checkpoint knows where a token is."""

    scheme: str
    """`none` | `learned` (added to the embeddings) | `rotary` | `alibi` | `relative` (a learned bias per distance)."""
    rotary: dict[str, Rotary] = field(default_factory=dict)
    """Variants by name; `default` where all layers share one."""
    variant_of_layer: dict[int, str | None] = field(default_factory=dict)
    """Layer -> name of its variant, None for a layer without rotation; empty where all layers use `default`."""
    slopes: list[float] = field(default_factory=list)
    """ALiBi: score gains `slopes[h] * (attended position - current position)`, in units of the scaled score."""
    relative: dict[str, Any] | None = None
    """Relative bias: buckets, max_distance, bidirectional (T5). The table is `relative_bias (buckets, H)` in extras."""


@dataclass(frozen=True)
class Norm:
    """The norms around attention.

    `place`: `pre` (attention reads a normed stream), `sandwich` (pre, and its output is normed before it is added),
    `output` (attention reads the raw stream; its output is normed before it is added: OLMo 2), `post` (the stream is
    normed after the addition: BERT), `none`. extras hold `norm_weight`, `norm_bias` of the norm that attention reads
    through, `post_norm_weight`, `post_norm_bias` of the norm on its output; of `post` norms nothing.
    """

    kind: str
    """`layer` (centres, then scales) | `rms` (scales) | `none`."""
    place: str
    plus_one: bool = False
    """The gain is 1 + the stored weight (Gemma)."""
    epsilon: float = 0.0
    weight: bool = True
    """False: a norm without gain (OLMo)."""
    bias: bool = False


@dataclass(frozen=True)
class QKNorm:
    """A norm on queries and keys, before any rotation; extras hold `q_norm (H, r)`, `k_norm (KV, r)`, `*_bias`."""

    kind: str
    """`layer` | `rms`."""
    span: str
    """`head`: mean square over one head's r numbers; `width`: over all heads' H * r (KV * r) at once."""
    plus_one: bool = False
    epsilon: float = 0.0


@dataclass(frozen=True)
class Geometry:
    """One model's attention: dimensions, positions, norms and whatever else decides what a head matrix means."""

    model_type: str
    layout: str
    """Name of the split that took the stored tensors apart (headmaps.layouts)."""
    layers: list[int]
    """The layers looked at, ascending; hybrids leave out those without softmax attention."""
    n_layers: int
    """Layers of the stack, looked at or not."""
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    """Columns of W_Q[h] and W_K[g]."""
    d_head_v: int
    """Columns of W_V[g], rows of W_O[h]."""
    dtype: str
    """Of the stored attention matrices: F32, BF16, Q4_1 ...; several joined by +."""
    scale: float | list[float]
    """Factor of q.k before the softmax; a list runs along `layers`."""
    position: Position
    norm: Norm
    matrices: list[str] = field(default_factory=lambda: ["value", "qk"])
    """MLA has `qk_nope` and `qk_rope` in place of `qk`."""
    d_head_rope: int | None = None
    """MLA: the last so many columns of W_Q and W_K are the rotated part; the key's is shared by all heads."""
    d_source: int | None = None
    """Cross-attention: width of the stream that keys and values read; None where it is the query's own."""
    qk_norm: QKNorm | None = None
    biases: list[str] = field(default_factory=list)
    """Of b_Q b_K b_V b_O, those the checkpoint has."""
    softcap: float | None = None
    """scores -> softcap * tanh(scores / softcap), before the mask (Gemma 2)."""
    windows: list[int | None] = field(default_factory=list)
    """Sliding windows along `layers` (None: all positions); empty where no layer has one."""
    sinks: bool = False
    """A learned logit per head joins the softmax and takes its share (gpt-oss): `sinks (H)` in extras."""
    gate: str | None = None
    """`sigmoid`: head outputs times sigmoid(x @ W_G[h]) before W_O (Qwen3-Next): `W_G (H, d, r)` in extras."""
    clip: float | None = None
    """Queries, keys and values are clipped to [-clip, clip] after projection (MPT, OLMo)."""
    causal: bool = True
    parallel: bool = False
    """Attention and MLP read the same stream and are added together."""
    stack: str | None = None
    """Of an encoder-decoder: encoder | decoder | cross."""
    tower: str | None = None
    """Of a multimodal model: text | vision."""
    sequence_length: int | None = None
    """The length that `dynamic` and `longrope` scaling are evaluated at, from the workflow's config."""
    quantised: str | None = None
    """The quantised format the weights were read from, if any."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the results must know: what is not linear, not looked at, or not part of the matrices."""

    def __post_init__(self) -> None:
        check_heads(self.model_type, self.n_heads, self.n_kv_heads)

    def rank_of(self, matrix: str) -> int:
        """Largest possible rank of a head's matrix: its inner dimension r.

        Raises:
            ArchitectureError: this model has no such matrix.
        """
        ranks = {"value": self.d_head_v, "qk": self.d_head}
        if self.d_head_rope is not None:
            ranks = {"value": self.d_head_v, "qk_nope": self.d_head - self.d_head_rope, "qk_rope": self.d_head_rope}
        if matrix not in ranks:
            raise ArchitectureError(
                f"a {self.model_type} model has no {matrix!r} matrix",
                expected="one of " + ", ".join(self.matrices),
                do=self.mla_note if self.d_head_rope is not None else "choose one of these",
            )
        return ranks[matrix]

    mla_note = "the position-free and the rotated part of q.k pass different inner norms: they are two matrices"

    def kv_heads_of(self, matrix: str) -> int:
        """Number of distinct key/value heads behind a matrix (MLA's rotated key is one for all heads)."""
        return 1 if matrix == "qk_rope" else self.n_kv_heads

    def group_of(self, head: int, matrix: str = "value") -> int:
        """The key/value head that a query head uses: `h // (H // KV)`, never `h % KV`."""
        return head // (self.n_heads // self.kv_heads_of(matrix))

    def scale_of(self, layer: int) -> float:
        """Factor of q.k before the softmax in a layer."""
        return self.scale[self.layers.index(layer)] if isinstance(self.scale, list) else self.scale

    def rotary_of(self, layer: int) -> Rotary | None:
        """The rotation of a layer's queries and keys, or None."""
        variants = self.position.variant_of_layer
        name = variants[layer] if variants else "default"
        return self.position.rotary.get(name) if name is not None else None

    def window_of(self, layer: int) -> int | None:
        """How many positions a layer's sliding window spans, the current one included; None: all."""
        return self.windows[self.layers.index(layer)] if self.windows else None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values (`from_json` reverses it)."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Geometry":
        """From what `to_json` gave, also after a round trip through a file."""
        value = dict(value)
        position = dict(value["position"])
        position["rotary"] = {name: _made(Rotary, rotary) for name, rotary in position["rotary"].items()}
        position["variant_of_layer"] = {int(layer): name for layer, name in position["variant_of_layer"].items()}
        value["position"] = _made(Position, position)
        value["norm"] = _made(Norm, value["norm"])
        value["qk_norm"] = _made(QKNorm, value["qk_norm"]) if value["qk_norm"] else None
        return _made(cls, value)


def check_heads(model_type: str, n_heads: int, n_kv_heads: int) -> None:
    """Each key/value head serves the same number of query heads.

    Raises:
        ArchitectureError: the numbers do not allow it.
    """
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ArchitectureError(
            f"{n_heads} query heads cannot be shared out among {n_kv_heads} key/value heads",
            where=f"{model_type}: number of heads",
            expected="a number of query heads divisible by the number of key/value heads",
            do="check num_attention_heads and num_key_value_heads in the checkpoint's config.json",
        )


def _made(kind: type[T], value: dict[str, Any]) -> T:
    unknown = sorted(set(value) - {item.name for item in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise _of_another_version(f"has keys that this version does not know: {', '.join(unknown)}")
    try:
        return kind(**value)
    except TypeError as error:
        raise _of_another_version(f"lacks keys that this version needs ({error})") from None


def _of_another_version(fault: str) -> ResultError:
    what = f"geometry.json {fault}: it was written by another version of headmaps"
    return ResultError(what, do="delete it and run snakemake")


def write_geometry(path: Path, geometry: Geometry) -> None:
    """Write `geometry.json`."""
    write_json(path, geometry.to_json())


def read_geometry(path: Path) -> Geometry:
    """Read `geometry.json`.

    Raises:
        ResultError: the file is missing, not JSON, or of another version.
    """
    return Geometry.from_json(read_json(path))
