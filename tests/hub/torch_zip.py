"""Writes what torch.save writes, without torch: a zip of stored entries, `data.pkl` and one entry a storage.

The layout is that of PyTorch's `caffe2/serialize/inline_container.cc`: entries are not compressed, and a storage's
bytes begin at a multiple of 64, for which the local header is padded by an extra field named `FB`.
"""

import pickle
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STORAGES = {"BF16": ("BFloat16Storage", 2), "F16": ("HalfStorage", 2), "F32": ("FloatStorage", 4)}
_ALIGN = 64


@dataclass(frozen=True)
class Stored:
    """A tensor to write: its type, shape, and the bytes (little-endian, C order) in pieces.

    Attributes:
        pieces: yields the bytes; None for zeros that take no room on the disk.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[bytes]] | None

    @property
    def nbytes(self) -> int:
        count = STORAGES[self.dtype][1]
        for length in self.shape:
            count *= length
        return count


def _state_dict_pickle(tensors: Mapping[str, Stored]) -> bytes:
    """The pickle (protocol 2) of an OrderedDict of tensors, as torch.save writes a state dict."""

    def text(value: str) -> bytes:
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data

    def number(value: int) -> bytes:
        if value < 256:
            return b"K" + bytes([value])
        if value < 65536:
            return b"M" + struct.pack("<H", value)
        if value < 1 << 31:
            return b"J" + struct.pack("<i", value)
        data = value.to_bytes(value.bit_length() // 8 + 1, "little")
        return b"\x8a" + bytes([len(data)]) + data

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(number(value) for value in values) + b"t"

    out = [b"\x80\x02", b"ccollections\nOrderedDict\n)R("]
    for key, (name, tensor) in enumerate(tensors.items()):
        storage, width = STORAGES[tensor.dtype]
        strides = tuple(_product(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        persistent = (
            b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(str(key)) + text("cpu")
            + number(tensor.nbytes // width) + b"tQ"
        )  # fmt: skip
        arguments = persistent + number(0) + numbers(tensor.shape) + numbers(strides)
        arguments += b"\x89" + b"ccollections\nOrderedDict\n)R"
        out += [text(name), b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"]
    out.append(b"u.")
    return b"".join(out)


def _product(values: tuple[int, ...]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def write_torch_zip(path: Path, tensors: Mapping[str, Stored], folder: str = "pytorch_model") -> None:
    """Write a state dict to `path`, as torch.save does. Tensors without pieces become holes of a sparse file.

    The archive has to stay below 4 GiB (no zip64 here).
    """
    directory: list[bytes] = []
    with open(path, "wb") as stream:

        def add(name: str, size: int, pieces: Callable[[], Iterator[bytes]] | None) -> None:
            start, encoded = stream.tell(), f"{folder}/{name}".encode()
            padding = -(start + 30 + len(encoded) + 4) % _ALIGN
            extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
            data = start + 30 + len(encoded) + len(extra)
            stream.seek(data)
            crc = 0
            if pieces is None:
                crc = _crc_of_zeros(size)
                stream.truncate(data + size)
            else:
                for piece in pieces():
                    crc = zlib.crc32(piece, crc)
                    stream.write(piece)
                assert stream.tell() == data + size
            common = struct.pack("<HHHHHIIIH", 0, 0x0800, 0, 0, 0, crc, size, size, len(encoded))
            stream.seek(start)
            stream.write(b"PK\3\4" + common + struct.pack("<H", len(extra)) + encoded + extra)
            stream.seek(data + size)
            fields = struct.pack("<HHHHII", 0, 0, 0, 0, 0, start)
            directory.append(b"PK\1\2" + struct.pack("<H", 0) + common + fields + encoded)

        pickled = _state_dict_pickle(tensors)
        add("data.pkl", len(pickled), lambda: iter([pickled]))
        for key, tensor in enumerate(tensors.values()):
            add(f"data/{key}", tensor.nbytes, tensor.pieces)
        add("version", 2, lambda: iter([b"3\n"]))
        start, entries = stream.tell(), b"".join(directory)
        count = len(directory)
        stream.write(entries + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(entries), start, 0))


def _crc_of_zeros(size: int) -> int:
    crc, block = 0, bytes(1 << 20)
    while size:
        crc = zlib.crc32(block[: min(size, len(block))], crc)
        size -= min(size, len(block))
    return crc


def loads_with_stub(data: bytes) -> object:
    """Unpickle a `data.pkl` of this module with harmless stand-ins for torch: for the writer's own test."""
    import io
    from collections import OrderedDict

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            if (module, name) == ("collections", "OrderedDict"):
                return OrderedDict
            if module == "torch":
                return name
            return lambda *arguments: arguments

        def persistent_load(self, pid: object) -> object:
            return pid

    return Reader(io.BytesIO(data)).load()
