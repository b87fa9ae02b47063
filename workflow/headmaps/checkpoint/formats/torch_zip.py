"""pytorch_model.bin: a zip archive of one pickle, which names the tensors, and their storages as raw bytes.

Written by torch.save since version 1.6. The storages are stored uncompressed, so a tensor is a byte range of the
file, local or remote; the pickle is read by `state_dict`, which cannot run code. torch is not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from headmaps.checkpoint.dtypes import BITS
from headmaps.checkpoint.formats.recognise import what_it_is
from headmaps.checkpoint.formats.state_dict import PICKLE_LIMIT, View, read_pickle, state_dict_of
from headmaps.checkpoint.formats.zip_directory import Member, locate, read_directory
from headmaps.checkpoint.store import Store, TensorEntry
from headmaps.errors import CheckpointError


@dataclass(frozen=True)
class TorchFile:
    """One archive: its tensors (with offsets within their storages), and the archive entries of their storages."""

    file: str
    entries: Mapping[str, TensorEntry]
    members: Mapping[str, Member]


def read_header(store: Store, name: str) -> TorchFile:
    """Every tensor of one archive, from its directory and its pickle.

    The entries' offsets count from the beginning of their storage until `located` has read its local header.

    Raises:
        CheckpointError: no archive as torch.save writes it, big-endian, a pickle of anything but tensors, or a
            tensor that does not fit its storage.
    """
    where = f"{store.description}: {name}"
    size = store.files().get(name)
    beginning = store.read(name, 0, min(512, size or 0))
    if not beginning.startswith(b"PK\x03\x04"):
        found = what_it_is(beginning) or f"it begins with {beginning[:8]!r}"
        raise CheckpointError(
            f"not a checkpoint that can be read: {found}",
            where=where,
            expected="a zip archive as torch.save writes since version 1.6",
            do="use a safetensors version, or load the file with torch and save it again",
        )
    members = read_directory(store, name)
    prefix = _prefix(members, where)
    small = _read_small(store, name, members, [f"{prefix}/data.pkl", f"{prefix}/byteorder"])
    if small.get(f"{prefix}/byteorder", b"little").strip() != b"little":
        raise CheckpointError("the checkpoint is written for big-endian machines", where=where)
    tensors = state_dict_of(read_pickle(small[f"{prefix}/data.pkl"], where), where)
    entries, storages = {}, {}
    for tensor, view in tensors.items():
        member = members.get(f"{prefix}/data/{view.storage.key}")
        if member is None:
            raise CheckpointError(f"the storage of tensor {tensor} is missing from the archive", where=where)
        entries[tensor] = _entry(tensor, name, view, member, where)
        storages[tensor] = member
    return TorchFile(name, entries, storages)


def located(store: Store, file: TorchFile, names: list[str]) -> dict[str, TensorEntry]:
    """The named tensors' entries with offsets from the beginning of the file.

    Raises:
        CheckpointError: an archive entry's local header disagrees with the directory.
    """
    members = {file.members[name].name: file.members[name] for name in names}
    starts = locate(store, file.file, members.values())
    found = {}
    for name in names:
        entry, member = file.entries[name], file.members[name]
        found[name] = replace(entry, offset=starts[member.name] + entry.offset)
    return found


def _prefix(members: Mapping[str, Member], where: str) -> str:
    found = [name.removesuffix("/data.pkl") for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise CheckpointError(
            f"the archive holds {len(found)} files data.pkl",
            where=where,
            expected="a zip archive as torch.save writes it, with one",
        )
    return found[0]


def _read_small(store: Store, file: str, members: Mapping[str, Member], names: list[str]) -> dict[str, bytes]:
    wanted = [members[name] for name in names if name in members]
    for member in wanted:
        if member.size > PICKLE_LIMIT:
            raise CheckpointError(
                f"{member.name} has {member.size} bytes; at most {PICKLE_LIMIT} are read",
                where=f"{store.description}: {file}",
            )
    starts = locate(store, file, wanted)
    return {member.name: store.read(file, starts[member.name], member.size) for member in wanted}


def _entry(name: str, file: str, view: View, member: Member, where: str) -> TensorEntry:
    """The entry of one view, checked to lie within its storage."""
    width = BITS[view.storage.dtype] // 8
    if view.storage.numel * width != member.size:
        raise CheckpointError(
            f"the storage of tensor {name} has {member.size} bytes instead of {view.storage.numel * width}", where=where
        )
    numel = prod(view.shape)
    span = 1 + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True)) if numel else 0
    if view.offset + span > view.storage.numel:
        raise CheckpointError(f"tensor {name} reaches past the end of its storage", where=where)
    if numel > span:
        raise CheckpointError(
            f"tensor {name} repeats its elements (an expanded view)",
            where=where,
            expected="a tensor with an element of its own at every place",
        )
    contiguous = _is_c_order(view.shape, view.stride)
    whole = view.offset == 0 and span * width == member.size
    return TensorEntry(
        name=name,
        file=file,
        dtype=view.storage.dtype,
        shape=view.shape,
        offset=view.offset * width,
        nbytes=span * width,
        stride=None if contiguous or not numel else view.stride,
        crc32=member.crc32 if whole and member.crc32 else None,
    )


def _is_c_order(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
