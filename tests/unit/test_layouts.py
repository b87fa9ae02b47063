"""Layouts: each takes every stored row exactly once, and gives each head the rows that were planted for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headmaps.errors import ArchitectureError
from headmaps.layouts import LAYOUTS, Rows, Sizes, Split, d_head_of

GROUPED = Sizes(n_heads=4, n_kv_heads=2, d_head=6, d_head_v=6)
EQUAL = Sizes(n_heads=8, n_kv_heads=8, d_head=6, d_head_v=6)
ONE_FOR_ALL = Sizes(n_heads=4, n_kv_heads=1, d_head=6, d_head_v=6)
SAME_NUMBER = ("per_head", "model_parallel")


def sizes_of(layout: str) -> Sizes:
    """Grouped heads (KV = 2, H = 4) where the layout has them: with KV = 1 or KV = H a wrong pairing can hide."""
    return EQUAL if layout in SAME_NUMBER else GROUPED


def label(kind: str, head: int, row: int) -> int:
    """A number that names one row of one head: planted, it tells where the row ended up."""
    return {"q": 1, "k": 2, "v": 3, "g": 4}[kind] * 10_000 + head * 100 + row


def planted(kind: str, heads: int, width: int) -> np.ndarray:
    """(heads, width) labels."""
    return np.array([[label(kind, h, i) for i in range(width)] for h in range(heads)])


def picked(stored: dict[str, np.ndarray], heads: list[Rows]) -> np.ndarray:
    """What a split takes for each head, (heads, width)."""
    return np.array([stored[role][list(rows)] for role, rows in heads])


def separate(s: Sizes) -> dict[str, np.ndarray]:
    return {
        "q": planted("q", s.n_heads, s.d_head).ravel(),
        "k": planted("k", s.n_kv_heads, s.d_head).ravel(),
        "v": planted("v", s.n_kv_heads, s.d_head_v).ravel(),
    }


def blocks(s: Sizes) -> dict[str, np.ndarray]:
    return {"qkv": np.concatenate(list(separate(s).values()))}


def per_head(s: Sizes) -> dict[str, np.ndarray]:
    return {"qkv": np.stack([planted(kind, s.n_heads, s.d_head) for kind in "qkv"], axis=1).ravel()}


def per_group(s: Sizes) -> dict[str, np.ndarray]:
    queries = planted("q", s.n_heads, s.d_head).reshape(s.n_kv_heads, -1, s.d_head)
    keys, values = (planted(kind, s.n_kv_heads, s.d_head)[:, None] for kind in "kv")
    return {"qkv": np.concatenate([queries, keys, values], axis=1).ravel()}


def model_parallel(s: Sizes) -> dict[str, np.ndarray]:
    chunks = [planted(kind, s.n_heads, s.d_head).reshape(4, -1) for kind in "qvk"]  # q, v, k: CodeGen's own order
    return {"qkv": np.concatenate(chunks, axis=1).ravel()}


def gated(s: Sizes) -> dict[str, np.ndarray]:
    both = np.stack([planted("q", s.n_heads, s.d_head), planted("g", s.n_heads, s.d_head)], axis=1)
    return separate(s) | {"q": both.ravel()}


def gguf_llama(s: Sizes) -> dict[str, np.ndarray]:
    def permute(rows: np.ndarray, heads: int) -> np.ndarray:
        # llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute
        return rows.reshape(heads, 2, len(rows) // heads // 2).swapaxes(1, 2).reshape(rows.shape)

    stored = separate(s)
    return stored | {"q": permute(stored["q"], s.n_heads), "k": permute(stored["k"], s.n_kv_heads)}


STORED = {
    "separate": separate,
    "blocks": blocks,
    "per_head": per_head,
    "per_group": per_group,
    "model_parallel": model_parallel,
    "gated": gated,
    "gguf_llama": gguf_llama,
}


def all_rows(split: Split) -> list[tuple[str, int]]:
    heads = [*split.query, *split.key, *split.value, *split.gate]
    return [(role, row) for role, rows in heads for row in rows]


def test_every_layout_is_planted_here() -> None:
    assert set(STORED) == set(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_head_gets_the_rows_planted_for_it(layout: str) -> None:
    s = sizes_of(layout)
    stored, split = STORED[layout](s), LAYOUTS[layout](s)
    np.testing.assert_array_equal(picked(stored, split.query), planted("q", s.n_heads, s.d_head))
    np.testing.assert_array_equal(picked(stored, split.key), planted("k", s.n_kv_heads, s.d_head))
    np.testing.assert_array_equal(picked(stored, split.value), planted("v", s.n_kv_heads, s.d_head_v))
    if split.gate:
        np.testing.assert_array_equal(picked(stored, split.gate), planted("g", s.n_heads, s.d_head))


def test_one_key_for_all_heads_is_blocks_with_one_key_head() -> None:
    """Falcon-7B and GPT-BigCode: [H * r queries, r keys, r values]."""
    stored = {"qkv": np.concatenate([planted(kind, n, 6).ravel() for kind, n in (("q", 4), ("k", 1), ("v", 1))])}
    split = LAYOUTS["blocks"](ONE_FOR_ALL)
    np.testing.assert_array_equal(picked(stored, split.key), planted("k", 1, 6))
    np.testing.assert_array_equal(picked(stored, split.value), planted("v", 1, 6))


@pytest.mark.parametrize("wrong", ["blocks", "model_parallel", "per_group"])
def test_a_wrong_split_keeps_every_shape_but_not_the_rows(wrong: str) -> None:
    """What makes a fused tensor dangerous: the per-head one can be cut in other ways without any error."""
    stored = per_head(EQUAL)
    split = LAYOUTS[wrong](EQUAL)
    taken = picked(stored, split.key)
    assert split.stored_rows() == LAYOUTS["per_head"](EQUAL).stored_rows()
    assert taken.shape == (8, 6)
    if wrong != "per_group":  # with one query a group it is the same rule
        assert not np.array_equal(taken, planted("k", 8, 6))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(groups=st.integers(1, 4), group=st.integers(1, 3), half=st.integers(1, 5))
def test_a_split_takes_every_stored_row_exactly_once(layout: str, groups: int, group: int, half: int) -> None:
    n_kv_heads = 4 * groups if layout == "model_parallel" else groups
    n_heads = n_kv_heads if layout in SAME_NUMBER else n_kv_heads * group
    split = LAYOUTS[layout](Sizes(n_heads, n_kv_heads, 2 * half, 2 * half))
    every = [(role, row) for role, count in split.stored_rows().items() for row in range(count)]
    assert sorted(all_rows(split)) == sorted(every)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d_head_follows_from_the_number_of_rows(layout: str) -> None:
    s = sizes_of(layout)
    for role, count in LAYOUTS[layout](s).stored_rows().items():
        assert d_head_of(layout, s.n_heads, s.n_kv_heads, role, count) == s.d_head
        assert d_head_of(layout, s.n_heads, s.n_kv_heads, role, count + 1) is None


@pytest.mark.parametrize("layout", SAME_NUMBER)
def test_layouts_without_grouped_heads_refuse_them(layout: str) -> None:
    with pytest.raises(ArchitectureError, match="as many key/value heads as query heads"):
        LAYOUTS[layout](GROUPED)


def test_codegen_needs_four_equal_chunks() -> None:
    with pytest.raises(ArchitectureError, match="6 heads cannot be shared out among 4"):
        LAYOUTS["model_parallel"](Sizes(6, 6, 4, 4))
