"""Where a checkpoint's bytes come from: one small interface, whatever the source.

A `Store` is a set of named files that can be read by byte range: a folder on disk (`LocalStore`, here) or a
repository on the Hub (`headmaps.checkpoint.hub`). The format readers ask a store for ranges and nothing else,
so that the same code, with the same checks, reads a local file and a file at the other end of a connection.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from headmaps.errors import CheckpointError

TEXT_LIMIT = 64 << 20
"""The most bytes `Store.text` reads: the index of the largest published checkpoints is below 20 MB."""


class Store(Protocol):
    """Named files that can be read by byte range. Names are relative, with forward slashes."""

    description: str
    """What messages call this store: a path, or repo@commit."""
    provenance: Mapping[str, Any]
    """What source.json says of the origin beyond the config: {"commit": the full commit} for the Hub, else nothing."""

    def files(self) -> Mapping[str, int]:
        """Every file's name and its size in bytes."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes of file `name` from `offset`.

        Raises:
            CheckpointError: no such file, or the range does not lie inside it.
        """

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes of each (offset, length), in the order asked for; a store may join neighbours into one request.

        Raises:
            CheckpointError: as `read`.
        """

    def text(self, name: str) -> bytes:
        """The whole of a small file (config.json, an index).

        Raises:
            CheckpointError: no such file, or it is larger than `TEXT_LIMIT`.
        """


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies.

    Attributes:
        name: the tensor's full name in the checkpoint.
        file: the store's file that holds it.
        dtype: F32, BF16, F16, F64, F8_E4M3 ... (safetensors' names) or a GGUF type such as Q4_1.
        shape: rows first, as a C-ordered array has it.
        offset: of its first byte, from the beginning of the file.
        nbytes: how many bytes to read there.
        stride: in elements, for a tensor that is not stored in C order (a transposed or sliced view in a pickled
            checkpoint); then `nbytes` spans from its first to its last element. None means C order.
        crc32: of exactly these bytes, where the file itself says it (a torch archive does, for each storage).
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    stride: tuple[int, ...] | None = None
    crc32: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As in source.json, where the name is the key."""
        value: dict[str, Any] = {
            "file": self.file,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "nbytes": self.nbytes,
        }
        if self.stride is not None:
            value["stride"] = list(self.stride)
        if self.crc32 is not None:
            value["crc32"] = self.crc32
        return value

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> "TensorEntry":
        """The inverse of `to_json`."""
        stride = value.get("stride")
        return cls(
            name=name,
            file=value["file"],
            dtype=value["dtype"],
            shape=tuple(value["shape"]),
            offset=value["offset"],
            nbytes=value["nbytes"],
            stride=None if stride is None else tuple(stride),
            crc32=value.get("crc32"),
        )


def safe_name(name: str, *, where: str) -> str:
    """`name` itself, if it is a relative path that stays inside its folder.

    Args:
        where: the file that the name was read from, for the message.

    Raises:
        CheckpointError: it is absolute, climbs with `..`, is empty, or has backslashes, drive letters or control
            characters.
    """
    parts = name.split("/")
    bad = (
        not name
        or name.startswith("/")
        or any(part in {"", ".", ".."} for part in parts)
        or "\\" in name
        or ":" in parts[0]
        or any(ord(character) < 32 for character in name)
    )
    if bad:
        raise CheckpointError(
            f"the file name {name!r} leaves its folder or is not a plain relative path",
            where=where,
            expected="a relative path with forward slashes and without ..",
            do="do not use this checkpoint: a name like this is a mistake or an attack",
        )
    return str(PurePosixPath(name))


class LocalStore:
    """A folder of checkpoint files, or a single file, on this machine. Never touches the network.

    A symbolic link is followed only inside the folder, or from a Hub cache's `snapshots/COMMIT/` to the
    `blobs/` of the same cached repository.
    """

    def __init__(self, path: Path) -> None:
        """Open a folder or a single file.

        Raises:
            CheckpointError: there is nothing at `path`.
        """
        self.path = Path(path)
        self.description = str(path)
        self.provenance: Mapping[str, Any] = {}
        if not self.path.exists():
            raise CheckpointError(
                f"there is no checkpoint at {self.path}",
                where=str(self.path.absolute()),
                expected="a folder with config.json and weights, or one .gguf or .safetensors file",
                do="correct the model's `path`",
            )
        # the path itself is the user's own choice, so a link there is followed; links inside are the checkpoint's
        self._only: tuple[str, ...] = ()
        self.root = self.path.resolve()
        if self.path.is_file():
            self.root = self.path.absolute().parent.resolve()
            self._only = (self.path.name, "config.json")
            if not self._inside(self.path.resolve()):
                self.root = self.path.resolve().parent
                self._only = (self.path.resolve().name, "config.json")
        self._sizes: dict[str, int] | None = None
        self._outside: list[str] = []

    def files(self) -> dict[str, int]:
        """Every regular file's name and size; hidden files, and links that leave the folder, are left out.

        A store made from a single file knows that file, and a config.json beside it.
        """
        if self._sizes is None:
            self._sizes = dict(sorted(self._walk()))
        return self._sizes

    def _walk(self) -> Iterator[tuple[str, int]]:
        if self._only:
            candidates = [self.root / name for name in self._only]
        else:
            candidates = []
            for directory, folders, names in os.walk(self.root):
                folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
                candidates += [Path(directory, name) for name in names if not name.startswith(".")]
        for path in candidates:
            name = path.relative_to(self.root).as_posix()
            if not self._inside(path.resolve()):
                self._outside.append(name)
            elif path.is_file():
                yield name, path.stat().st_size

    def refuse_outside(self, names: Iterable[str]) -> None:
        """Say so if one of `names` is left out of `files` because it is a link that leaves the folder.

        Raises:
            CheckpointError: naming the link.
        """
        self.files()
        for name in names:
            if name in self._outside:
                raise self._leaves(name)

    def _inside(self, target: Path) -> bool:
        if target.is_relative_to(self.root):
            return True
        if self.root.parent.name == "snapshots":
            return target.is_relative_to(self.root.parent.parent / "blobs")
        return False

    @property
    def single(self) -> str | None:
        """The name of the file this store was made from; None for a folder."""
        return self._only[0] if self._only else None

    def _locate(self, name: str) -> Path:
        path = self.root / safe_name(name, where=self.description)
        if self._only and name not in self._only:
            raise self._missing(name)
        if not self._inside(path.resolve()):
            raise self._leaves(name)
        if not path.is_file():
            raise self._missing(name)
        return path

    def _leaves(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{name} is a symbolic link that leaves the checkpoint's folder",
            where=str(self.root / name),
            expected=f"files inside {self.root}",
            do="if you trust it, copy or hard-link the file there, or give the real folder as `path`",
        )

    def _missing(self, name: str) -> CheckpointError:
        some = ", ".join(list(self.files())[:12]) or "nothing"
        return CheckpointError(f"the file {name} is missing", where=self.description, expected=f"found there: {some}")

    def read(self, name: str, offset: int, length: int) -> bytes:
        """See `Store.read`."""
        return next(self.read_ranges(name, [(offset, length)]))

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """See `Store.read_ranges`."""
        with open(self._locate(name), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            for offset, length in ranges:
                if offset < 0 or length < 0 or offset + length > size:
                    raise CheckpointError(
                        f"{name} ends at byte {size}, but bytes {offset} to {offset + length} were wanted",
                        where=self.description,
                        do="the file is cut short or not what it says it is: fetch it again",
                    )
                stream.seek(offset)
                data = stream.read(length)
                if len(data) < length:
                    raise CheckpointError(f"{name} was cut short while it was being read", where=self.description)
                yield data

    def text(self, name: str) -> bytes:
        """See `Store.text`."""
        path = self._locate(name)
        size = path.stat().st_size
        if size > TEXT_LIMIT:
            raise CheckpointError(
                f"{name} has {size} bytes; a file of this kind is small",
                where=self.description,
                expected="at most 64 MiB",
            )
        return path.read_bytes()
