"""Where each head's rows lie in the stored tensors: one function per layout.

A stored projection computes `x @ weight.T`, so its rows are output features, and every layout in use is a rule
that gives each head its rows. A wrong rule keeps every shape: only a table and numeric tests protect, so each
function cites where its rule is written down. Weights and biases follow the same rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headmaps.errors import ArchitectureError


class Sizes(NamedTuple):
    """The numbers a layout depends on."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_head_v: int


class Rows(NamedTuple):
    """Some rows of one stored tensor: of head h's W_Q[h].T, say."""

    role: str
    """q, k, v or qkv."""
    rows: range | tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """The rows of every head."""

    query: list[Rows]
    key: list[Rows]
    value: list[Rows]
    gate: list[Rows] = field(default_factory=list)

    def stored_rows(self) -> dict[str, int]:
        """How many rows each stored tensor must have: a split uses each of them exactly once."""
        count: dict[str, int] = {}
        for role, rows in (*self.query, *self.key, *self.value, *self.gate):
            count[role] = count.get(role, 0) + len(rows)
        return count


Layout = Callable[[Sizes], Split]


def _consecutive(role: str, n: int, width: int, start: int = 0, step: int | None = None) -> list[Rows]:
    """n runs of `width` rows, one every `step` rows (back to back by default), from row `start` on."""
    step = width if step is None else step
    return [Rows(role, range(start + i * step, start + i * step + width)) for i in range(n)]


def separate(s: Sizes) -> Split:
    """q, k and v stored apart, heads back to back (transformers: LlamaAttention and most others)."""
    return Split(
        _consecutive("q", s.n_heads, s.d_head),
        _consecutive("k", s.n_kv_heads, s.d_head),
        _consecutive("v", s.n_kv_heads, s.d_head_v),
    )


def blocks(s: Sizes) -> Split:
    """One tensor: all queries, then all keys, then all values (GPT2Attention, Phi3Attention, MptAttention).

    With one key/value head also FalconAttention and GPTBigCodeAttention with `multi_query`.
    """
    keys = s.n_heads * s.d_head
    values = keys + s.n_kv_heads * s.d_head
    return Split(
        _consecutive("qkv", s.n_heads, s.d_head),
        _consecutive("qkv", s.n_kv_heads, s.d_head, keys),
        _consecutive("qkv", s.n_kv_heads, s.d_head_v, values),
    )


def per_head(s: Sizes) -> Split:
    """One tensor (H, 3, r): each head's q, k, v together (GPTNeoXAttention, BloomAttention, Falcon-RW, Persimmon)."""
    _same_number_of_heads(s, "per_head")
    step = 3 * s.d_head
    return Split(*(_consecutive("qkv", s.n_heads, s.d_head, i * s.d_head, step) for i in range(3)))


def per_group(s: Sizes) -> Split:
    """One tensor (KV, H/KV + 2, r): a group's queries, its key, its value (FalconAttention._split_heads, 40B)."""
    group = s.n_heads // s.n_kv_heads
    step = (group + 2) * s.d_head
    queries = [rows for g in range(s.n_kv_heads) for rows in _consecutive("qkv", group, s.d_head, g * step)]
    keys = _consecutive("qkv", s.n_kv_heads, s.d_head, group * s.d_head, step)
    values = _consecutive("qkv", s.n_kv_heads, s.d_head, (group + 1) * s.d_head, step)
    return Split(queries, keys, values)


MODEL_PARALLEL = 4
"""CodeGen's weights are stored as on the four TPU cores that trained them (CodeGenAttention: mp_num = 4)."""


def model_parallel(s: Sizes) -> Split:
    """One tensor of 4 chunks, each the queries, then the **values**, then the keys of a quarter of the heads."""
    _same_number_of_heads(s, "model_parallel")
    if s.n_heads % MODEL_PARALLEL:
        raise ArchitectureError(
            f"{s.n_heads} heads cannot be shared out among {MODEL_PARALLEL} model-parallel chunks",
            expected="a number of heads divisible by 4",
        )
    local = s.n_heads // MODEL_PARALLEL
    step = 3 * local * s.d_head

    def part(i: int) -> list[Rows]:
        starts = [chunk * step + i * local * s.d_head for chunk in range(MODEL_PARALLEL)]
        return [rows for start in starts for rows in _consecutive("qkv", local, s.d_head, start)]

    query, value, key = part(0), part(1), part(2)
    return Split(query, key, value)


def gated(s: Sizes) -> Split:
    """As `separate`, but q is (H, 2, r): each head's query, then the gate of its output (Qwen3NextAttention)."""
    step = 2 * s.d_head
    return Split(
        _consecutive("q", s.n_heads, s.d_head, 0, step),
        _consecutive("k", s.n_kv_heads, s.d_head),
        _consecutive("v", s.n_kv_heads, s.d_head_v),
        _consecutive("q", s.n_heads, s.d_head, s.d_head, step),
    )


def gguf_llama(s: Sizes) -> Split:
    """As `separate`, but rows of q and k stand in the order of llama.cpp's interleaved rotation: undone here.

    llama.cpp's converter (`LlamaModel.permute`) reshapes each head (2, r/2) and swaps the two axes, so stored row
    2 j + s of a head is its row s r/2 + j. Keys are permuted with the number of key/value heads.
    """
    half = s.d_head // 2
    order = [2 * j + side for side in range(2) for j in range(half)]

    def heads(role: str, n: int) -> list[Rows]:
        return [Rows(role, tuple(h * s.d_head + row for row in order)) for h in range(n)]

    return Split(heads("q", s.n_heads), heads("k", s.n_kv_heads), _consecutive("v", s.n_kv_heads, s.d_head_v))


LAYOUTS: dict[str, Layout] = {
    "separate": separate,
    "blocks": blocks,
    "per_head": per_head,
    "per_group": per_group,
    "model_parallel": model_parallel,
    "gated": gated,
    "gguf_llama": gguf_llama,
}
"""By the name that the table uses. MLA, whose matrices are products, is taken apart in headmaps.heads."""


def d_head_of(layout: str, n_heads: int, n_kv_heads: int, role: str, rows: int) -> int | None:
    """The d_head with which a tensor of a layout has this many rows; None where there is none.

    Rows grow in proportion to d_head, so the split for d_head = 2 tells the factor.
    """
    unit = LAYOUTS[layout](Sizes(n_heads, n_kv_heads, 2, 2)).stored_rows()[role]
    return 2 * rows // unit if 2 * rows % unit == 0 else None


def _same_number_of_heads(s: Sizes, layout: str) -> None:
    if s.n_heads != s.n_kv_heads:
        raise ArchitectureError(
            f"the {layout} layout has as many key/value heads as query heads, not {s.n_kv_heads} for {s.n_heads}"
        )
