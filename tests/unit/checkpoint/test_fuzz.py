"""Whatever bytes a reader is given, it ends soon, with tensors inside the file or with the typed error."""

import json
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import (
    ARCHITECTURE,
    FIXTURES,
    MemoryStore,
    f32,
    gguf_bytes,
    key,
    safetensors_bytes,
    tensor_info,
    text,
    torch_file,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headmaps.checkpoint.formats import gguf, safetensors, torch_zip
from headmaps.checkpoint.formats.state_dict import read_pickle
from headmaps.checkpoint.store import TensorEntry
from headmaps.errors import CheckpointError

SAFE = safetensors_bytes({"v": f32(0, 8, [2]), "w": f32(8, 32, [2, 3])}, bytes(32))
TOKENS = key("tokenizer.ggml.tokens", 9, b"\x08\0\0\0\3\0\0\0\0\0\0\0" + text("a") + text("") + text("bc"))
GGUF = gguf_bytes(
    [ARCHITECTURE, TOKENS, key("llama.block_count", 4, b"\2\0\0\0")],
    [tensor_info("v", (2, 32), 3, 0), tensor_info("w", (2, 4), 0, 64)],
    bytes(96),
)
TORCH = torch_file({"v": np.zeros(3), "w": np.zeros((2, 3))})
REAL_TORCH = (FIXTURES / "every_kind.bin").read_bytes()
PICKLE = REAL_TORCH[REAL_TORCH.index(b"\x80\x02") : REAL_TORCH.index(b"PK\x07\x08")]


def read_torch(store: MemoryStore, name: str) -> dict[str, TensorEntry]:
    file = torch_zip.read_header(store, name)
    return torch_zip.located(store, file, list(file.entries))


READERS: dict[str, tuple[Callable[[Any, str], dict[str, TensorEntry]], bytes]] = {
    "safetensors": (safetensors.read_header, SAFE),
    "gguf": (lambda store, name: gguf.read_header(store, name)[1], GGUF),
    "torch": (read_torch, TORCH),
    "torch's own": (read_torch, REAL_TORCH),
}


def check(reader: Callable[[Any, str], dict[str, TensorEntry]], data: bytes) -> None:
    store = MemoryStore(m=data)
    try:
        entries = reader(store, "m")
    except CheckpointError:
        return
    for name, entry in entries.items():
        assert entry.name == name
        assert len(store.read("m", entry.offset, entry.nbytes)) == entry.nbytes
        json.dumps(entry.to_json(), ensure_ascii=False).encode()


EXAMPLES = int(os.environ.get("HEADMAPS_FUZZ_EXAMPLES", "300"))
"""Of each test; a long run in development: HEADMAPS_FUZZ_EXAMPLES=100000 pytest tests/unit/checkpoint/test_fuzz.py"""

INTERESTING = [b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"]
edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(["put", "cut", "add"]), st.sampled_from(INTERESTING)),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for place, action, value in changes:
        at = int(place * len(data))
        if action == "put":
            data = data[:at] + value + data[at + len(value) :]
        elif action == "add":
            data = data[:at] + value + data[at:]
        else:
            data = data[:at] + data[at + len(value) :]
    return data


bounded = settings(max_examples=EXAMPLES, deadline=10_000, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("kind", READERS)
@bounded
@given(changes=edits)
def test_damaged_files(kind: str, changes: list[tuple[float, str, bytes]]) -> None:
    reader, data = READERS[kind]
    check(reader, data)
    check(reader, edited(data, changes))


@pytest.mark.parametrize("kind", READERS)
@bounded
@given(data=st.binary(max_size=200))
def test_any_bytes_behind_the_magic(kind: str, data: bytes) -> None:
    reader, valid = READERS[kind]
    for length in (0, 4, 8, 24):
        check(reader, valid[:length] + data)


names = st.one_of(st.text(max_size=5), st.sampled_from(["__metadata__", "v", "w"]))
sizes = st.one_of(st.integers(-1, 40), st.sampled_from([1 << 31, 1 << 62, 1 << 64, -(1 << 63)]), st.floats(), st.none())
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4", "X", 3, None]),
        "shape": st.one_of(st.lists(sizes, max_size=3), sizes),
        "data_offsets": st.one_of(st.lists(sizes, max_size=3), sizes),
    }
)
anything = st.recursive(st.one_of(sizes, st.text(max_size=3)), lambda inner: st.lists(inner, max_size=3))


@bounded
@given(header=st.dictionaries(names, st.one_of(entries, anything), max_size=4), data=st.binary(max_size=64))
def test_any_safetensors_header(header: dict[str, Any], data: bytes) -> None:
    check(safetensors.read_header, safetensors_bytes(header, data))


OPCODES = st.sampled_from(
    [bytes([code]) for code in b"\x80\x95(}])t\x85\x86\x87N\x88\x89KMJG\x8aX\x8cqr\x94hjc\x93RQsuaeb."]
)
pieces = st.lists(
    st.one_of(OPCODES, st.binary(max_size=3), st.sampled_from([b"ctorch\nFloatStorage\n", b"K\1", b")R"]))
)


@bounded
@given(program=pieces, at=st.integers(0, len(PICKLE)))
def test_any_pickle_program(program: list[bytes], at: int) -> None:
    for data in (b"".join(program), PICKLE[:at] + b"".join(program) + PICKLE[at:]):
        try:
            read_pickle(data, "m")
        except CheckpointError:
            continue


numbers = st.one_of(st.integers(0, 70), st.sampled_from([1 << 16, (1 << 32) - 1, 1 << 33, 1 << 62, (1 << 64) - 1]))
values = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=3).map(text),
    numbers.map(lambda n: struct.pack("<Q", n)),
    st.tuples(st.integers(0, 13), numbers, st.binary(max_size=9)).map(lambda t: struct.pack("<IQ", *t[:2]) + t[2]),
)
keys = st.builds(
    key,
    st.sampled_from(["general.architecture", "general.alignment", "split.count", "llama.block_count", "k"]),
    st.integers(0, 14),
    values,
)
infos = st.builds(
    tensor_info,
    st.sampled_from(["v", "w", ""]),
    st.lists(numbers, max_size=5),
    st.integers(0, 45),
    st.sampled_from([0, 1, 32, 64, 96, 1 << 40, (1 << 64) - 32]),
)


@bounded
@given(
    given_keys=st.lists(keys, max_size=4),
    tensors=st.lists(infos, max_size=3),
    data=st.sampled_from([0, 31, 32, 200]),
    version=st.sampled_from([2, 3, 3, 3, 4]),
)
def test_any_gguf_header(given_keys: list[bytes], tensors: list[bytes], data: int, version: int) -> None:
    check(READERS["gguf"][0], gguf_bytes(given_keys, tensors, bytes(data), version=version))
