"""The GGUF format of llama.cpp: metadata, a table of tensors, and their quantised bytes.

The gguf library's reader makes an object of every token of the vocabulary, which costs seconds for a model that is
read in milliseconds; so the header is walked here, over `Store.read`, and the token arrays are stepped over. The
layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Dequantising is the library's
(`gguf.quants`), which is imported only when a tensor is read.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from headmaps.checkpoint.store import Store, TensorEntry
from headmaps.errors import CheckpointError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class QuantisedType(NamedTuple):
    """How one GGUF type packs its elements: `block` elements in `nbytes` bytes."""

    code: int
    block: int
    nbytes: int


TYPES = {
    "F32": QuantisedType(0, 1, 4),
    "F16": QuantisedType(1, 1, 2),
    "Q4_0": QuantisedType(2, 32, 18),
    "Q4_1": QuantisedType(3, 32, 20),
    "Q5_0": QuantisedType(6, 32, 22),
    "Q5_1": QuantisedType(7, 32, 24),
    "Q8_0": QuantisedType(8, 32, 34),
    "Q8_1": QuantisedType(9, 32, 40),
    "Q2_K": QuantisedType(10, 256, 84),
    "Q3_K": QuantisedType(11, 256, 110),
    "Q4_K": QuantisedType(12, 256, 144),
    "Q5_K": QuantisedType(13, 256, 176),
    "Q6_K": QuantisedType(14, 256, 210),
    "Q8_K": QuantisedType(15, 256, 292),
    "IQ2_XXS": QuantisedType(16, 256, 66),
    "IQ2_XS": QuantisedType(17, 256, 74),
    "IQ3_XXS": QuantisedType(18, 256, 98),
    "IQ1_S": QuantisedType(19, 256, 50),
    "IQ4_NL": QuantisedType(20, 32, 18),
    "IQ3_S": QuantisedType(21, 256, 110),
    "IQ2_S": QuantisedType(22, 256, 82),
    "IQ4_XS": QuantisedType(23, 256, 136),
    "I8": QuantisedType(24, 1, 1),
    "I16": QuantisedType(25, 1, 2),
    "I32": QuantisedType(26, 1, 4),
    "I64": QuantisedType(27, 1, 8),
    "F64": QuantisedType(28, 1, 8),
    "IQ1_M": QuantisedType(29, 256, 56),
    "BF16": QuantisedType(30, 1, 2),
    "TQ1_0": QuantisedType(34, 256, 54),
    "TQ2_0": QuantisedType(35, 256, 66),
    "MXFP4": QuantisedType(39, 32, 17),
}
"""GGUF's tensor types by name; a test holds them against the gguf library's own table."""

NO_WEIGHTS = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64")
"""Types that hold activations or indices; no weight is stored in them and the library does not dequantise them."""

HEADER_LIMIT = 256 << 20
"""Bytes of metadata and tensor table at most: a vocabulary of 256,000 tokens with merges takes some 20 MB."""

_LONGEST_TEXT = 1 << 16
_LONGEST_KEPT_ARRAY = 4096
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 20
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
_BLOCK = 1 << 20
_NAMES = {kind.code: name for name, kind in TYPES.items()}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_header(store: Store, name: str) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Metadata and tensors of one GGUF file.

    Returns:
        metadata: every number, truth value and text, and every array of at most 4096 numbers; not the vocabulary.
        tensors: name -> entry; shapes are rows first (GGUF stores them the other way round).

    Raises:
        CheckpointError: the file is cut short, is no GGUF file of version 2 or 3, or its header is inconsistent.
    """
    walk = _Walk(store, name)
    magic = walk.take(4)
    if magic != b"GGUF":
        from headmaps.checkpoint.formats.recognise import what_it_is

        found = what_it_is(store.read(name, 0, min(walk.size, 512))) or f"it begins with {magic!r}"
        raise walk.malformed(found)
    version = walk.number("I")
    if version & 0xFFFF == 0:
        raise walk.malformed("it is written for big-endian machines")
    if version not in {2, 3}:
        raise walk.malformed(f"its version is {version}; 2 and 3 are read here")
    n_tensors, n_keys = walk.number("Q"), walk.number("Q")
    if n_tensors > _MOST_TENSORS or n_keys > _MOST_KEYS:
        raise walk.malformed(f"it claims {n_tensors} tensors and {n_keys} metadata keys")
    metadata = _read_metadata(walk, n_keys)
    entries = _read_table(walk, n_tensors)
    return metadata, _place(walk, metadata, entries)


def config_of(metadata: dict[str, Any], where: str) -> dict[str, Any]:
    """The model's configuration as GGUF states it, in the place of a config.json.

    Returns:
        `model_type` "gguf:llama", the general keys under their own names (`general.name`), and the keys of the
        architecture without its name: `block_count`, `attention.head_count`, `rope.freq_base` ...

    Raises:
        CheckpointError: it names no architecture, or is one part of several files.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError("the GGUF file does not name its architecture", where=where)
    parts = metadata.get("split.count", 0)
    if parts > 1:
        raise CheckpointError(
            f"the GGUF file is one of {parts} parts",
            where=where,
            expected="a checkpoint in one file",
            do="join the parts with `llama-gguf-split --merge`",
        )
    config: dict[str, Any] = {"model_type": f"gguf:{architecture}"}
    for key, value in metadata.items():
        if key.startswith(f"{architecture}."):
            config[key.removeprefix(f"{architecture}.")] = value
        elif key.startswith("general."):
            config[key] = value
    return config


def dequantise(data: bytes | bytearray | memoryview, dtype: str, shape: Sequence[int]) -> "NDArray[Any]":
    """The tensor's values, float32 (float64 for F64), C order.

    Raises:
        CheckpointError: the type holds no weights, or this version of the gguf library does not read it.
    """
    import numpy as np

    raw = np.frombuffer(data, "u1")
    if dtype in {"F32", "F64"}:
        return raw.view("<f4" if dtype == "F32" else "<f8").reshape(tuple(shape))
    if dtype in NO_WEIGHTS:
        raise CheckpointError(f"GGUF tensors of type {dtype} hold no weights")
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = TYPES[dtype]
    rows = raw.reshape((-1, shape[-1] // kind.block * kind.nbytes)) if len(shape) else raw
    try:
        values = dequantize(rows, GGMLQuantizationType(kind.code))
    except (NotImplementedError, ValueError) as error:
        raise CheckpointError(f"the gguf library does not dequantise {dtype} ({error})") from None
    return np.ascontiguousarray(values, dtype="<f4").reshape(tuple(shape))


def _read_metadata(walk: "_Walk", count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    seen = set()
    for _ in range(count):
        key, kind = walk.text(), walk.number("I")
        if key in seen:
            raise walk.malformed(f"the key {key} is present twice")
        seen.add(key)
        value = _read_value(walk, kind)
        if value is not None and not key.startswith("tokenizer."):
            metadata[key] = value
    return metadata


def _read_value(walk: "_Walk", kind: int) -> Any:
    """The value, or None for what is stepped over: arrays of text, long arrays and long texts."""
    if kind in _SCALARS:
        value = walk.number(_SCALARS[kind])
        if isinstance(value, float) and not isfinite(value):
            raise walk.malformed(f"a metadata value of {value}")
        return value
    if kind == _STRING:
        length = walk.number("Q")
        if length > _LONGEST_TEXT:
            return walk.skip(length)
        return walk.take(length).decode("utf-8", errors="replace")
    if kind != _ARRAY:
        raise walk.malformed(f"a metadata value of the unknown type {kind}")
    element, count = walk.number("I"), walk.number("Q")
    if element == _STRING:
        return walk.skip_texts(count)
    if element not in _SCALARS:
        raise walk.malformed(f"an array whose elements have the type {element}")
    if count > _LONGEST_KEPT_ARRAY:
        return walk.skip(count * struct.calcsize(f"<{_SCALARS[element]}"))
    values = walk.numbers(_SCALARS[element], count)
    if not all(isfinite(value) for value in values):
        raise walk.malformed("a metadata array with infinities or values that are not numbers")
    return values


def _read_table(walk: "_Walk", count: int) -> list[TensorEntry]:
    entries = []
    for _ in range(count):
        name, n_dimensions = walk.text(), walk.number("I")
        if n_dimensions > _MOST_DIMENSIONS:
            raise walk.malformed(f"tensor {name} claims {n_dimensions} dimensions")
        shape = tuple(reversed(walk.numbers("Q", n_dimensions)))
        code, offset = walk.number("I"), walk.number("Q")
        if code not in _NAMES:
            raise walk.malformed(f"tensor {name} has the type {code}, which is not known here")
        kind = TYPES[_NAMES[code]]
        if prod(shape) >= 1 << 63 or (shape[-1] if shape else 1) % kind.block:
            raise walk.malformed(f"tensor {name}, {_NAMES[code]} of shape {list(shape)}, is impossible")
        nbytes = prod(shape) // kind.block * kind.nbytes
        entries.append(TensorEntry(name, walk.name, _NAMES[code], shape, offset, nbytes))
    return entries


def _place(walk: "_Walk", metadata: dict[str, Any], entries: list[TensorEntry]) -> dict[str, TensorEntry]:
    """Turn offsets within the data into offsets within the file, checked."""
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise walk.malformed(f"its alignment is {alignment!r}, not a power of two")
    start = -(-walk.position // alignment) * alignment
    placed: dict[str, TensorEntry] = {}
    end, before = start, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        here = replace(entry, offset=start + entry.offset)
        if entry.name in placed:
            raise walk.malformed(f"the tensor {entry.name} is present twice")
        if here.offset < end:
            raise walk.malformed(f"{before} and tensor {entry.name} overlap")
        end, before = here.offset + here.nbytes, f"tensor {entry.name}"
        if end > walk.size:
            raise CheckpointError(
                f"tensor {entry.name} ends at byte {end}, but the GGUF file has {walk.size} bytes",
                where=walk.where,
                do="the file is cut short: fetch it again",
            )
        placed[entry.name] = here
    return {entry.name: placed[entry.name] for entry in entries}


class _Walk:
    """A position in a file that moves forward; reads large blocks, so that many small steps are few requests."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.where = f"{store.description}: {name}"
        size = store.files().get(name)
        self.size = len(store.read(name, 0, 0)) if size is None else size
        self.position = 0  # in the file, of the next byte
        self._buffer = b""
        self._start = 0  # in the file, of the buffer's first byte

    def malformed(self, fault: str) -> CheckpointError:
        return CheckpointError(f"not a GGUF file that can be read: {fault}", where=self.where)

    def need(self, count: int) -> int:
        """Make sure that `count` more bytes are in the buffer; the position in the buffer where they begin."""
        end = self.position + count
        if end > self.size:
            raise CheckpointError(
                f"the GGUF header runs past the end of the file ({self.size} bytes)",
                where=self.where,
                do="the file is cut short or damaged: fetch it again",
            )
        if end > HEADER_LIMIT:
            raise self.malformed(f"its header is longer than {HEADER_LIMIT >> 20} MiB")
        at = self.position - self._start
        if at + count > len(self._buffer):
            block = min(max(count, _BLOCK), self.size - self.position)
            self._buffer = self.store.read(self.name, self.position, block)
            self._start, at = self.position, 0
        self.position = end
        return at

    def take(self, count: int) -> bytes:
        at = self.need(count)
        return self._buffer[at : at + count]

    def number(self, code: str) -> Any:
        at = self.need(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self._buffer, at)[0]

    def numbers(self, code: str, count: int) -> list[Any]:
        at = self.need(count * struct.calcsize(f"<{code}"))
        return list(struct.unpack_from(f"<{count}{code}", self._buffer, at))

    def text(self) -> str:
        length = self.number("Q")
        if length > _LONGEST_TEXT:
            raise self.malformed(f"a name of {length} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.malformed(f"the text before byte {self.position} is not UTF-8") from None

    def skip(self, count: int) -> None:
        """Step over bytes without reading them."""
        if self.position + count > min(self.size, HEADER_LIMIT):
            self.need(count)
        self.position += count
        if self.position - self._start > len(self._buffer):
            self._buffer, self._start = b"", self.position

    def skip_texts(self, count: int) -> None:
        """Step over `count` texts: a vocabulary, the bulk of most headers."""
        if count * 8 > self.size - self.position:
            raise self.malformed(f"an array of {count} texts, more than the file has room for")
        unpack, buffer, at = struct.Struct("<Q").unpack_from, self._buffer, self.position - self._start
        last = len(buffer) - 8
        for _ in range(count):
            if at > last:
                self.position = self._start + at
                at = self.need(8)
                buffer, last = self._buffer, len(self._buffer) - 8
            at += 8 + unpack(buffer, at)[0]
        self.position = self._start + at
        self.skip(0)
