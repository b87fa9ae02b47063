"""The safetensors header, read as the library reads it; all that the format forbids is refused, by name."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from checkpoint_makers import MemoryStore, f32, safetensors_bytes
from safetensors.numpy import save_file

from headmaps.checkpoint.dtypes import decode
from headmaps.checkpoint.formats.safetensors import join_shards, read_header, read_index, shards_of
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def read_sharded(store: MemoryStore, index: str) -> dict[str, Any]:
    weight_map = read_index(store, index)
    return join_shards(store, index, weight_map, {shard: read_header(store, shard) for shard in shards_of(weight_map)})


def read(data: bytes) -> dict[str, Any]:
    return read_header(MemoryStore(m=data), "m")


def test_header_and_values_agree_with_the_library(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).normal(size=(4, 6))
    kinds = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    arrays = {f"layers.0.{name}": draw.astype(kind) for name, kind in kinds.items()}
    arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32), "ids": np.arange(5)}
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    store = LocalStore(tmp_path)
    entries = read_header(store, "model.safetensors")
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as library:
        assert set(entries) == set(library.keys())
        for name, entry in entries.items():
            piece = library.get_slice(name)
            assert (entry.dtype, list(entry.shape)) == (piece.get_dtype(), piece.get_shape())
            if entry.dtype != "I64":
                values = decode(store.read(entry.file, entry.offset, entry.nbytes), entry.dtype, entry.shape)
                np.testing.assert_array_equal(values, library.get_tensor(name).astype(values.dtype))


W = f32(0, 8, [2])
BROKEN = {
    "empty file": (b"", "0 bytes, too few"),
    "cut in the length": (b"\1\0\0", "3 bytes, too few"),
    "cut in the header": (safetensors_bytes({"w": W})[:20], "claims a header of"),
    "header of 10 GB": (safetensors_bytes(b"{}", claim=10_000_000_000), "claims a header of 10000000000 bytes"),
    "header of 2^63": (safetensors_bytes(b"{}", claim=1 << 63), "claims a header of"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "Git LFS pointer"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "zip archive": (b"PK\x03\x04" + bytes(40), "zip archive"),
    "not json": (safetensors_bytes(b"{'w': 1}"), "not valid JSON"),
    "not utf-8": (safetensors_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "nested without end": (safetensors_bytes(b"[" * 100_000), "not valid JSON"),
    "a number of a million digits": (safetensors_bytes(b'{"w": ' + b"9" * 1_000_000 + b"}"), "not valid JSON"),
    "a list": (safetensors_bytes([1]), "not a JSON object"),
    "half a surrogate": (safetensors_bytes(b'{"\\ud800": {"dtype":"F32","shape":[],"data_offsets":[0,4]}}'), "Unicode"),
    "name twice": (
        safetensors_bytes(f'{{"w": {json.dumps(W)}, "w": {json.dumps(W)}}}'.encode(), bytes(8)),
        "'w' is present twice",
    ),
    "metadata of numbers": (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
    "entry without shape": (safetensors_bytes({"w": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "tensor w"),
    "entry is a number": (safetensors_bytes({"w": 3}), "tensor w"),
    "unknown type": (safetensors_bytes({"w": {**W, "dtype": "F31"}}, bytes(8)), "unknown type 'F31'"),
    "type is a list": (safetensors_bytes({"w": {**W, "dtype": []}}, bytes(8)), "unknown type"),
    "negative size": (safetensors_bytes({"w": {**W, "shape": [-2]}}, bytes(8)), "shape"),
    "size is true": (safetensors_bytes({"w": {**W, "shape": [True, 2]}}, bytes(8)), "shape"),
    "size is a fraction": (safetensors_bytes({"w": {**W, "shape": [2.0]}}, bytes(8)), "shape"),
    "offsets reversed": (safetensors_bytes({"w": f32(8, 0, [2])}, bytes(8)), "shape"),
    "three offsets": (safetensors_bytes({"w": {**W, "data_offsets": [0, 4, 8]}}, bytes(8)), "shape"),
    "shape does not fit": (safetensors_bytes({"w": f32(0, 8, [3])}, bytes(8)), "does not have 8 bytes"),
    "overlap": (safetensors_bytes({"v": W, "w": f32(4, 12, [2])}, bytes(12)), "overlap"),
    "two names on the same bytes": (safetensors_bytes({"v": W, "w": W}, bytes(8)), "overlap"),
    "gap": (safetensors_bytes({"v": W, "w": f32(12, 20, [2])}, bytes(20)), "gap"),
    "gap at the beginning": (safetensors_bytes({"w": f32(4, 12, [2])}, bytes(12)), "gap"),
    "data cut short": (safetensors_bytes({"w": W}, bytes(7)), "end at byte"),
    "bytes appended": (safetensors_bytes({"w": W}, bytes(9)), "end at byte"),
    "data far outside": (safetensors_bytes({"w": f32(0, 1 << 62, [1 << 60])}, bytes(8)), "end at byte"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_the_format_forbids_is_refused(case: str) -> None:
    data, message = BROKEN[case]
    with pytest.raises(CheckpointError, match=message):
        read(data)


def test_the_library_refuses_the_same_files() -> None:
    """Except a name that is present twice, of which the library silently takes the last."""
    for case, (data, _) in BROKEN.items():
        if case not in {"name twice", "size is true"}:
            with pytest.raises(safetensors.SafetensorError):
                safetensors.deserialize(data)


def shard(*names: str) -> bytes:
    return safetensors_bytes({name: f32(4 * i, 4 * i + 4, [1]) for i, name in enumerate(names)}, bytes(4 * len(names)))


def sharded(weight_map: Any, **shards: bytes) -> MemoryStore:
    store = MemoryStore(**shards)
    store.contents[INDEX] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return store


def test_a_sharded_checkpoint_is_the_union_of_its_shards() -> None:
    entries = read_sharded(sharded({"a": "one", "b": "two", "c": "one"}, one=shard("a", "c"), two=shard("b")), INDEX)
    assert {name: entry.file for name, entry in entries.items()} == {"a": "one", "b": "two", "c": "one"}


def test_faults_of_an_index() -> None:
    cases = [
        (sharded({"a": "../one"}, one=shard("a")), "leaves its folder"),
        (sharded({"a": "/etc/passwd"}, one=shard("a")), "leaves its folder"),
        (sharded({"a": "one", "b": "two"}, one=shard("a")), "shard two is missing; the index says that it holds b"),
        (sharded({"a": "one", "b": "one"}, one=shard("a")), "b is in one, but it is not"),
        (sharded({"a": "one", "b": "two"}, one=shard("a", "b"), two=shard("c")), "but it is not; it is in one"),
        (sharded({"a": "one", "b": "two"}, one=shard("a"), two=shard("a", "b")), "tensor a is present twice"),
        (sharded({}, one=shard("a")), 'no "weight_map"'),
        (sharded({"a": 1}, one=shard("a")), 'no "weight_map"'),
        (sharded({"a": "one"}, one=shard("a")[:-1]), "end at byte"),
    ]
    for store, message in cases:
        with pytest.raises(CheckpointError, match=message):
            read_sharded(store, INDEX)
    store = sharded({"a": "one"}, one=shard("a"))
    store.contents[INDEX] = b'{"weight_map": {"a": "one", "a": "two"}}'
    with pytest.raises(CheckpointError, match="'a' is present twice"):
        read_sharded(store, INDEX)


def test_a_remote_header_costs_its_own_bytes_only() -> None:
    data = safetensors_bytes({"w": f32(0, 4_000_000, [1_000_000])}, bytes(4_000_000))
    store = MemoryStore(m=data)
    read_header(store, "m")
    assert store.bytes_read == 8 + struct.unpack("<Q", data[:8])[0]
