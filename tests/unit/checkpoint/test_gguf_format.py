"""GGUF headers, read as the gguf library reads them but without its tour of the vocabulary."""

import struct
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_makers import ARCHITECTURE, MemoryStore, gguf_bytes, key, tensor_info, text

from headmaps.checkpoint.formats.gguf import NO_WEIGHTS, TYPES, config_of, dequantise, read_header
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import CheckpointError

WITH_WEIGHTS = [name for name in TYPES if name not in NO_WEIGHTS]


def read(data: bytes) -> Any:
    return read_header(MemoryStore(m=data), "m")


def test_types_are_those_of_the_library() -> None:
    for name, kind in TYPES.items():
        library = gguf.GGMLQuantizationType[name]
        assert library.value == kind.code
        assert gguf.GGML_QUANT_SIZES[library] == (kind.block, kind.nbytes)


def write_model(path: Path, n_tokens: int = 5000) -> None:
    """A file of one tensor of every type, with a vocabulary, as the library writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_head_count([4, 2])
    writer.add_rope_freq_base(1e4)
    writer.add_name("a model")
    writer.add_token_list([f"token {i} äöü" for i in range(n_tokens)])
    writer.add_token_scores([float(i) for i in range(n_tokens)])
    writer.add_chat_template("x" * 100_000)
    writer.add_array("llama.rope.long", list(range(5000)))
    random = np.random.default_rng(0)
    for name, kind in TYPES.items():
        rows = random.integers(0, 255, (3, 512 // kind.block * kind.nbytes), np.uint8)
        writer.add_tensor(f"blk.0.{name}", rows, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_header_agrees_with_the_library(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    metadata, entries = read_header(LocalStore(tmp_path), "m.gguf")
    library = gguf.GGUFReader(tmp_path / "m.gguf")
    assert [tensor.name for tensor in library.tensors] == list(entries)
    for tensor in library.tensors:
        entry = entries[tensor.name]
        assert entry.dtype == tensor.tensor_type.name
        assert entry.shape == tuple(reversed(tensor.shape.tolist())) == (3, 512)
        assert (entry.offset, entry.nbytes) == (tensor.data_offset, tensor.n_bytes)
    for name in ("general.architecture", "llama.block_count", "llama.rope.freq_base", "llama.attention.head_count"):
        assert metadata[name] == library.get_field(name).contents()


def test_the_config_is_the_metadata_of_the_architecture(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    config = config_of(read_header(LocalStore(tmp_path), "m.gguf")[0], "m")
    assert config == {
        "model_type": "gguf:llama",
        "general.architecture": "llama",
        "general.name": "a model",
        "block_count": 2,
        "attention.head_count": [4, 2],
        "rope.freq_base": 10000.0,
    }


@pytest.mark.parametrize("dtype", WITH_WEIGHTS)
def test_every_type_dequantises_as_in_the_library(tmp_path: Path, dtype: str) -> None:
    write_model(tmp_path / "m.gguf", n_tokens=1)
    entry = read_header(LocalStore(tmp_path), "m.gguf")[1][f"blk.0.{dtype}"]
    data = LocalStore(tmp_path).read("m.gguf", entry.offset, entry.nbytes)
    tensor = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == entry.name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # random bytes: some scales are infinite
        warnings.simplefilter("ignore")
        values = dequantise(data, dtype, entry.shape)
        expected = tensor.data if dtype == "F64" else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    assert values.shape == (3, 512)
    assert values.dtype == (np.float64 if dtype == "F64" else np.float32)
    np.testing.assert_array_equal(values, expected)


def test_q4_1_by_its_definition() -> None:
    """Each block of 32: scale d and minimum m as float16, then 16 bytes; low halves are elements 0 to 15."""
    random = np.random.default_rng(1)
    scale, minimum = random.normal(size=(2, 6)).astype("<f2")
    codes = random.integers(0, 16, (6, 32), np.uint8)
    blocks = b"".join(
        scale[i].tobytes() + minimum[i].tobytes() + (codes[i, :16] | codes[i, 16:] << 4).tobytes() for i in range(6)
    )
    expected = scale[:, None].astype("f4") * codes + minimum[:, None].astype("f4")
    np.testing.assert_array_equal(dequantise(blocks, "Q4_1", (3, 64)), expected.reshape(3, 64))


def test_types_without_weights_are_refused() -> None:
    for dtype in NO_WEIGHTS:
        with pytest.raises(CheckpointError, match="hold no weights"):
            dequantise(bytes(TYPES[dtype].nbytes), dtype, (TYPES[dtype].block,))


def test_a_header_longer_than_one_block_is_read_in_few_requests() -> None:
    """A vocabulary of 3 MB: texts and long arrays that lie across the blocks in which the header is read."""
    words = b"".join(text(bytes([97 + i % 26]) * (i % 40)) for i in range(100_000))
    numbers = struct.pack("<IQ", 5, 300_000) + bytes(1_200_000)
    keys = [
        key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 100_000) + words),
        key("tokenizer.ggml.types", 9, numbers),
        ARCHITECTURE,
    ]
    metadata, entries = read(gguf_bytes(keys, [tensor_info("w", (2, 4), 0, 0)], bytes(32)))
    assert metadata == {"general.architecture": "llama"}
    assert entries["w"].shape == (2, 4)


def test_a_model_with_one_part_missing_is_refused() -> None:
    metadata = read(gguf_bytes([ARCHITECTURE, key("split.count", 4, struct.pack("<I", 3))], []))[0]
    with pytest.raises(CheckpointError, match=r"one of 3 parts[\s\S]*llama-gguf-split"):
        config_of(metadata, "m")
    with pytest.raises(CheckpointError, match="does not name its architecture"):
        config_of({}, "m")


ROW = tensor_info("w", (2, 4), 0, 0)
BROKEN = {
    "empty": (b"", "past the end"),
    "cut in the counts": (b"GGUF\3\0\0\0\1\0", "past the end"),
    "safetensors": (struct.pack("<Q", 2) + b"{}" + bytes(30), "safetensors file"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "version 1": (gguf_bytes([], [], version=1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^60 tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1152921504606846976 tensors"),
    "2^60 keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys"),
    "a key of 10 GB": (gguf_bytes([struct.pack("<Q", 10**10)], []), "a name of 10000000000 bytes"),
    "a text of 10 GB": (gguf_bytes([text("k") + struct.pack("<IQ", 8, 10**10)], []), "past the end"),
    "2^61 texts": (gguf_bytes([key("k", 9, struct.pack("<IQ", 8, 1 << 61))], []), "more than the file has room for"),
    "a text of 2^64 in an array": (gguf_bytes([key("k", 9, struct.pack("<IQQ", 8, 1, (1 << 64) - 1))], []), "past"),
    "2^61 numbers": (gguf_bytes([key("k", 9, struct.pack("<IQ", 12, 1 << 61))], []), "past the end"),
    "an array of arrays": (gguf_bytes([key("k", 9, struct.pack("<IQ", 9, 1))], []), "elements have the type 9"),
    "unknown value type": (gguf_bytes([key("k", 13, b"")], []), "unknown type 13"),
    "not a number": (gguf_bytes([key("k", 6, struct.pack("<f", float("nan")))], []), "a metadata value of nan"),
    "infinity in an array": (gguf_bytes([key("k", 9, struct.pack("<IQf", 6, 1, float("inf")))], []), "infinities"),
    "key twice": (gguf_bytes([ARCHITECTURE, ARCHITECTURE], []), "general.architecture is present twice"),
    "key is not utf-8": (gguf_bytes([text(b"\xff") + struct.pack("<I", 0) + b"\0"], []), "not UTF-8"),
    "tensor twice": (
        gguf_bytes([], [ROW, tensor_info("w", (2, 4), 0, 32)], bytes(64)),
        "tensor w is present twice",
    ),
    "overlap": (gguf_bytes([], [ROW, tensor_info("v", (2, 4), 0, 16)], bytes(64)), "w and tensor v overlap"),
    "data cut short": (gguf_bytes([], [ROW], bytes(31)), "cut short"),
    "offset far outside": (gguf_bytes([], [tensor_info("w", (1,), 0, 1 << 63)], bytes(32)), "ends at byte"),
    "unknown tensor type": (gguf_bytes([], [tensor_info("w", (32,), 4, 0)], bytes(32)), "type 4, which is not known"),
    "5 dimensions": (gguf_bytes([], [tensor_info("w", (1,) * 5, 0, 0)], bytes(32)), "5 dimensions"),
    "2^32 dimensions": (gguf_bytes([], [text("w") + struct.pack("<I", 2**32 - 1)], bytes(32)), "dimensions"),
    "size overflows": (gguf_bytes([], [tensor_info("w", (1 << 33, 1 << 33), 0, 0)], bytes(32)), "impossible"),
    "row is no whole block": (gguf_bytes([], [tensor_info("w", (2, 33), 3, 0)], bytes(64)), "impossible"),
    "alignment of 3": (gguf_bytes([key("general.alignment", 4, struct.pack("<I", 3))], []), "alignment is 3"),
    "alignment is a text": (gguf_bytes([key("general.alignment", 8, text("32"))], []), "alignment is '32'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_inconsistent_file_is_refused(case: str) -> None:
    data, message = BROKEN[case]
    with pytest.raises(CheckpointError, match=message):
        read(data)


def test_a_text_that_is_not_utf8_does_not_stop_the_reading() -> None:
    """Vocabularies hold raw bytes; only names must be text."""
    assert read(gguf_bytes([key("general.name", 8, text(b"a\xffb"))], []))[0] == {"general.name": "a\ufffdb"}
