"""Checkpoints for the tests: small valid files of every format, and the means to break them."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headmaps.checkpoint.dtypes import decode
from headmaps.checkpoint.formats.safetensors import read_header
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"


class MemoryStore:
    """A store of files in memory that counts what is read."""

    def __init__(self, **files: bytes) -> None:
        self.contents = {name.replace("__", "."): data for name, data in files.items()}
        self.description = "memory"
        self.provenance: Mapping[str, Any] = {}
        self.bytes_read = 0

    def files(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.contents.items()}

    def read(self, name: str, offset: int, length: int) -> bytes:
        return next(self.read_ranges(name, [(offset, length)]))

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        data = self.text(name)
        for offset, length in ranges:
            if offset < 0 or length < 0 or offset + length > len(data):
                raise CheckpointError("past the end")
            self.bytes_read += length
            yield data[offset : offset + length]

    def text(self, name: str) -> bytes:
        if name not in self.contents:
            raise CheckpointError("missing")
        return self.contents[name]


def read_layer(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a layer file by name, decoded to floats."""
    store = LocalStore(path)
    entries = read_header(store, path.name)
    return {n: decode(store.read(e.file, e.offset, e.nbytes), e.dtype, e.shape) for n, e in entries.items()}


def safetensors_bytes(header: Any, data: bytes = b"", *, claim: int | None = None) -> bytes:
    """A file with any header at all; `claim` is the header length that it states."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claim is None else claim) + text + data


def f32(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    """A header entry."""
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


# --- GGUF -------------------------------------------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    """One metadata entry: 4 is a uint32, 8 a text, 9 an array."""
    return text(name) + struct.pack("<I", kind) + value


def tensor_info(name: str, shape: Sequence[int], code: int, offset: int) -> bytes:
    """One row of the tensor table; `shape` rows first, as numpy has it."""
    dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", code, offset)


def gguf_bytes(keys: Sequence[bytes], tensors: Sequence[bytes], data: bytes = b"", *, version: int = 3) -> bytes:
    """A file with any keys and tensor table."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


ARCHITECTURE = key("general.architecture", 8, text("llama"))


# --- torch ------------------------------------------------------------------------------------------------------------

STORAGES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "F64": "DoubleStorage"}


def _number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"J" + struct.pack("<i", value) if value < 1 << 31 else b"\x8a\x08" + struct.pack("<q", value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _tuple(items: Sequence[int]) -> bytes:
    return b"(" + b"".join(_number(item) for item in items) + b"t"


def tensor_program(
    storage: str, numel: int, shape: Sequence[int], stride: Sequence[int], offset: int = 0, dtype: str = "F32"
) -> bytes:
    """The instructions that torch.save writes for one tensor."""
    reference = b"(" + _text("storage") + b"ctorch\n" + STORAGES[dtype].encode() + b"\n"
    reference += _text(storage) + _text("cpu") + _number(numel) + b"tQ"
    arguments = reference + _number(offset) + _tuple(shape) + _tuple(stride) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def state_dict_program(tensors: Mapping[str, bytes]) -> bytes:
    """A pickle of a dictionary of tensors."""
    items = b"".join(_text(name) + program for name, program in tensors.items())
    return b"\x80\x02}(" + items + b"u."


def torch_bytes(
    program: bytes, storages: Mapping[str, bytes], *, byteorder: bytes = b"little", method: int = zipfile.ZIP_STORED
) -> bytes:
    """An archive as torch.save writes it."""
    return zip_bytes(
        {"archive/data.pkl": program, "archive/byteorder": byteorder}
        | {f"archive/data/{name}": data for name, data in storages.items()},
        method,
    )


def zip_bytes(entries: Mapping[str, bytes] | list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    pairs = entries if isinstance(entries, list) else list(entries.items())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in pairs:
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return buffer.getvalue()


def torch_file(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A pickled state dict of float32 arrays."""
    programs, storages = {}, {}
    for number, (name, given) in enumerate(arrays.items()):
        array = np.ascontiguousarray(given, "<f4")
        programs[name] = tensor_program(str(number), array.size, array.shape, [step // 4 for step in array.strides])
        storages[str(number)] = array.tobytes()
    return torch_bytes(state_dict_program(programs), storages)


class Calls:
    """Pickles as a call of `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def hostile_pickle(function: Any, *arguments: Any) -> bytes:
    """What Python's own pickle would run on loading."""
    return pickle.dumps({"weight": Calls(function, *arguments)}, protocol=2)
