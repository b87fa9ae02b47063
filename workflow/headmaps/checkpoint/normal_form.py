"""The normal form: one layer's tensors in one safetensors file, whatever the source was.

Names and types are the checkpoint's own; tensors of a GGUF file are dequantised to float32. Any safetensors reader
opens it.
"""

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headmaps.checkpoint.dtypes import BITS, size_in_bytes
from headmaps.errors import CheckpointError
from headmaps.records import atomic_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview | NDArray[Any]


class Described(NamedTuple):
    """A tensor to be written: name, safetensors type, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@contextmanager
def _room(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise CheckpointError(
            f"the disk is full ({error.strerror})",
            where=str(path),
            do="free some space and run again: the layers that are there are kept; `headmaps plan` says what is needed",
        ) from None


@contextmanager
def writing(path: Path, tensors: Sequence[Described]) -> Iterator[Callable[[str, "Buffer"], None]]:
    """Write a layer file, whole or not at all, tensor by tensor in any order.

    The bytes depend on the tensors alone: widest types first, then by name, so that every tensor is aligned.

    Yields:
        write(name, data): puts the tensor's bytes (C order, little-endian) in their place; every tensor once.

    Raises:
        CheckpointError: the disk is full.
        ValueError: data of the wrong size, or a tensor was not written: a fault of the caller.
    """
    header: dict[str, Any] = {}
    position = 0
    for name, dtype, shape in sorted(tensors, key=lambda tensor: (-BITS[tensor.dtype], tensor.name)):
        nbytes = size_in_bytes(dtype, shape)
        assert nbytes is not None
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    missing = set(header)
    with _room(path), atomic_path(path) as temporary, open(temporary, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)

        def write(name: str, data: "Buffer") -> None:
            begin, end = header[name]["data_offsets"]
            view = memoryview(data).cast("B") if end > begin else memoryview(b"")  # type: ignore[arg-type]
            if len(view) != end - begin:
                raise ValueError(f"{name}: {len(view)} bytes instead of {end - begin}")
            stream.seek(start + begin)
            stream.write(view)
            missing.remove(name)

        yield write
        if missing:
            raise ValueError(f"not written: {', '.join(sorted(missing))}")
