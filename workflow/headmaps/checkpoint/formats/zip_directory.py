"""The directory of a zip archive read by byte ranges, for archives as torch.save writes them.

Only what torch.save writes is accepted: entries stored without compression (so nothing can expand) and without
encryption, that do not overlap, under plain names that are present once. The layout is that of APPNOTE.TXT 6.3.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from headmaps.checkpoint.store import Store, safe_name
from headmaps.errors import CheckpointError

DIRECTORY_LIMIT = 64 << 20
MOST_ENTRIES = 1 << 18

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_ENCRYPTED = 1
_STORED = 0


@dataclass(frozen=True)
class Member:
    """One stored entry.

    Attributes:
        size: in bytes.
        header: where its local header begins.
        limit: where what follows it begins.
        crc32: of its bytes; 0 where the writer did not compute it (torch can be told not to).
    """

    name: str
    size: int
    header: int
    limit: int
    crc32: int


def read_directory(store: Store, name: str) -> dict[str, Member]:
    """The entries of a zip archive by name.

    Raises:
        CheckpointError: no zip archive, cut short, or one that torch.save does not write.
    """
    where = f"{store.description}: {name}"
    size = store.files().get(name, 0)
    start, length, count = _find_directory(store, name, size, where)
    data = store.read(name, start, length)
    found: list[tuple[int, str, int, int]] = []
    at = 0
    for _ in range(count):
        (member, size_of_member, header, crc32), at = _central_entry(data, at, where)
        found.append((header, member, size_of_member, crc32))
    return _in_order(sorted(found), start, where)


def locate(store: Store, name: str, members: Iterable[Member]) -> dict[str, int]:
    """Where the bytes of each member begin in the file, from its local header.

    Raises:
        CheckpointError: a local header disagrees with the directory, or the bytes would run into the next entry.
    """
    where = f"{store.description}: {name}"
    wanted = sorted(members, key=lambda member: member.header)
    starts = {}
    ranges = [(member.header, _LOCAL.size + len(member.name.encode())) for member in wanted]
    for member, data in zip(wanted, store.read_ranges(name, ranges), strict=True):
        signature, _, flags, method, *_, name_length, extra_length = _LOCAL.unpack_from(data)
        encoded = member.name.encode()
        if signature != b"PK\x03\x04" or flags & _ENCRYPTED or method != _STORED or name_length != len(encoded):
            raise _malformed(f"the local header of {member.name} disagrees with the directory", where)
        if bytes(data[_LOCAL.size :]) != encoded:
            raise _malformed(f"the local header of {member.name} has another name", where)
        start = member.header + _LOCAL.size + name_length + extra_length
        if start + member.size > member.limit:
            raise _malformed(f"the local header of {member.name} moves it into what follows", where)
        starts[member.name] = start
    return starts


def _find_directory(store: Store, name: str, size: int, where: str) -> tuple[int, int, int]:
    """Start, length and number of entries of the central directory."""
    tail_length = min(size, _END.size + _LONGEST_COMMENT + _END64_LOCATOR.size + _END64.size)
    tail = store.read(name, size - tail_length, tail_length)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise CheckpointError(
            "not a whole zip archive: it has no directory at its end",
            where=where,
            do="the file is cut short or is not what its name says: fetch it again",
        )
    _, disk, _, _, count, length, start, _ = _END.unpack_from(tail, at)
    end = size - tail_length + at
    locator = at - _END64_LOCATOR.size
    if locator >= 0 and tail.startswith(b"PK\x06\x07", locator):
        _, _, end64, _ = _END64_LOCATOR.unpack_from(tail, locator)
        if end64 + _END64.size > size:
            raise _malformed("its zip64 directory lies outside the file", where)
        signature, _, _, _, disk, _, _, count, length, start = _END64.unpack(store.read(name, end64, _END64.size))
        if signature != b"PK\x06\x06":
            raise _malformed("its zip64 directory is damaged", where)
        end = end64
    if disk or length > DIRECTORY_LIMIT or count > MOST_ENTRIES or start + length > end:
        raise _malformed(f"its directory ({count} entries, {length} bytes at {start}) is impossible", where)
    return start, length, count


def _central_entry(data: bytes, at: int, where: str) -> tuple[tuple[str, int, int, int], int]:
    """Name, size, place of the local header and CRC-32 of one entry, and where the next record begins."""
    if at + _CENTRAL.size > len(data) or not data.startswith(b"PK\x01\x02", at):
        raise _malformed("its directory is damaged", where)
    _, _, _, flags, method, _, _, crc32, packed, size, *lengths, _, _, _, header = _CENTRAL.unpack_from(data, at)
    name_length, extra_length, comment_length = lengths
    at += _CENTRAL.size
    end = at + name_length + extra_length + comment_length
    if end > len(data):
        raise _malformed("its directory is damaged", where)
    try:
        name = safe_name(data[at : at + name_length].decode("utf-8").rstrip("/"), where=where)
    except UnicodeDecodeError:
        raise _malformed("an entry's name is not UTF-8", where) from None
    extra = data[at + name_length : at + name_length + extra_length]
    size, packed, header = _large_fields(extra, [size, packed, header], where)
    if flags & _ENCRYPTED or method != _STORED or packed != size:
        raise _malformed(f"the entry {name} is compressed or encrypted", where)
    return (name, size, header, crc32), end


def _large_fields(extra: bytes, values: list[int], where: str) -> list[int]:
    """Replace the fields that are 0xFFFFFFFF by their 64-bit values from the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            missing = [index for index, value in enumerate(values) if value == 0xFFFFFFFF]
            if len(field) < 8 * len(missing):
                raise _malformed("a zip64 field is cut short", where)
            for index, value in zip(missing, struct.unpack_from(f"<{len(missing)}Q", field), strict=True):
                values[index] = value
            return values
        at += 4 + length
    return values


def _in_order(found: list[tuple[int, str, int, int]], directory: int, where: str) -> dict[str, Member]:
    """The entries by name, each known to end before the next begins."""
    members: dict[str, Member] = {}
    limits = [*(header for header, *_ in found), directory][1:]
    for (header, name, size, crc32), limit in zip(found, limits, strict=True):
        if name in members:
            raise _malformed(f"the entry {name} is present twice", where)
        if header + _LOCAL.size + len(name.encode()) + size > limit:
            raise _malformed(f"the entry {name} overlaps what follows it", where)
        members[name] = Member(name, size, header, limit, crc32)
    return members


def _malformed(fault: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"not a zip archive as torch.save writes it: {fault}",
        where=where,
        expected="entries that are stored, not compressed, one after the other",
        do="save the model again with safetensors, or fetch the file again",
    )
