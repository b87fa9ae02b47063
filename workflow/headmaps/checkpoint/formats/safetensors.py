"""The safetensors format: a length, a JSON header, and the tensors' bytes without a gap.

The header is parsed here, over `Store.read`, so that one code reads a local file and a range of a remote one, and
BF16 and FP8 need no further package. Everything that the format forbids is refused (the rules are those of the
reference implementation, https://github.com/huggingface/safetensors, `safetensors/src/tensor.rs`).
"""

import json
from collections.abc import Mapping
from typing import Any

from headmaps.checkpoint.dtypes import BITS, size_in_bytes
from headmaps.checkpoint.store import LocalStore, Store, TensorEntry, safe_name
from headmaps.errors import CheckpointError

HEADER_LIMIT = 100_000_000
"""The longest header the reference implementation accepts, in bytes."""


def read_header(store: Store, name: str) -> dict[str, TensorEntry]:
    """Every tensor of one file, from its header alone.

    Raises:
        CheckpointError: the file is cut short, is no safetensors file, or its header breaks the format's rules.
    """
    size = store.files().get(name)
    where = f"{store.description}: {name}"
    if size is None:
        store.read(name, 0, 0)  # raises with the list of files that are there
        raise CheckpointError(f"the file {name} is missing", where=store.description)
    if size < 8:
        raise _malformed(f"it has {size} bytes, too few for a header", where)
    length = int.from_bytes(store.read(name, 0, 8), "little")
    if length > HEADER_LIMIT or length > size - 8:
        raise _not_safetensors(store, name, length, size)
    header = _parse(store.read(name, 8, length), where)
    entries = _entries(header, name, start=8 + length, where=where)
    _check_layout(entries, start=8 + length, size=size, where=where)
    return {entry.name: entry for entry in entries}


def read_index(store: Store, index: str) -> dict[str, str]:
    """The `weight_map` of an index file: tensor name to file name, every file known to be there.

    Raises:
        CheckpointError: it is not JSON, has no such map, or names a file that is missing or outside the folder.
    """
    where = f"{store.description}: {index}"
    try:
        value = json.loads(store.text(index), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} is not valid JSON ({error})", where=where, do="fetch it again") from None
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f'{index} has no "weight_map" of tensor names to file names', where=where)
    files = store.files()
    if isinstance(store, LocalStore):
        store.refuse_outside(weight_map.values())
    for tensor, file in weight_map.items():
        if safe_name(file, where=where) not in files:
            raise CheckpointError(
                f"the shard {file} is missing; the index says that it holds {tensor}",
                where=store.description,
                expected=f"all {len(set(weight_map.values()))} files that {index} names",
                do="fetch the missing file, or the whole checkpoint again",
            )
    return weight_map


def shards_of(weight_map: Mapping[str, str]) -> list[str]:
    """The files of a weight map, each once, sorted."""
    return sorted(set(weight_map.values()))


def join_shards(
    store: Store, index: str, weight_map: Mapping[str, str], shards: Mapping[str, Mapping[str, TensorEntry]]
) -> dict[str, TensorEntry]:
    """The tensors of all shards under the index's authority.

    Raises:
        CheckpointError: a tensor of the index is not in its shard, or a tensor is in two shards.
    """
    entries: dict[str, TensorEntry] = {}
    for shard, tensors in shards.items():
        for tensor, entry in tensors.items():
            if tensor in entries:
                raise CheckpointError(
                    f"the tensor {tensor} is present twice, in {entries[tensor].file} and in {shard}",
                    where=store.description,
                    expected="every tensor in one file",
                )
            entries[tensor] = entry
    for tensor, shard in weight_map.items():
        if tensor not in entries or entries[tensor].file != shard:
            found = f"; it is in {entries[tensor].file}" if tensor in entries else ""
            raise CheckpointError(
                f"{index} says that {tensor} is in {shard}, but it is not{found}",
                where=store.description,
                do="the index and the shards are of different versions: fetch the whole checkpoint again",
            )
    return entries


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"its header is not valid JSON ({error})", where) from None
    if not isinstance(header, dict):
        raise _malformed("its header is not a JSON object", where)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in value if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} is present twice")
    return value


def _entries(header: dict[str, Any], file: str, *, start: int, where: str) -> list[TensorEntry]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _malformed("its __metadata__ is not a map of text to text", where)
    entries = []
    for name, value in header.items():
        if not _is_text(name):
            raise _malformed(f"the tensor name {name!r} is not valid Unicode", where)
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise _malformed(f"the entry of tensor {name} does not consist of dtype, shape and data_offsets", where)
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in BITS:
            raise _malformed(f"tensor {name} has the unknown type {dtype!r}", where)
        if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise _malformed(f"tensor {name} has shape {shape!r} at {offsets!r}", where)
        nbytes = offsets[1] - offsets[0]
        if size_in_bytes(dtype, shape) != nbytes:
            raise _malformed(f"tensor {name}, {dtype} of shape {shape}, does not have {nbytes} bytes", where)
        entries.append(TensorEntry(name, file, dtype, tuple(shape), start + offsets[0], nbytes))
    return entries


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as a JSON escape
        return False
    return True


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_layout(entries: list[TensorEntry], *, start: int, size: int, where: str) -> None:
    end, before = start, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != end:
            fault = "overlap" if entry.offset < end else "have a gap between them"
            raise _malformed(f"{before} and tensor {entry.name} {fault}", where)
        end, before = entry.offset + entry.nbytes, f"tensor {entry.name}"
    if end != size:
        fault = f"its tensors end at byte {end}, but the file has {size} bytes"
        raise CheckpointError(
            f"not a whole safetensors file: {fault}",
            where=where,
            expected="exactly as many bytes as the header says",
            do="the file is cut short, or something was appended: fetch it again",
        )


def _malformed(fault: str, where: str) -> CheckpointError:
    return CheckpointError(f"not a valid safetensors file: {fault}", where=where, do="fetch the file again")


def _not_safetensors(store: Store, name: str, length: int, size: int) -> CheckpointError:
    from headmaps.checkpoint.formats.recognise import SAFETENSORS, what_it_is

    found = what_it_is(store.read(name, 0, min(size, 512)))
    if found == SAFETENSORS:
        found = ""
    fault = found or f"it claims a header of {length} bytes; the file has {size}, and no header exceeds {HEADER_LIMIT}"
    return _malformed(fault, f"{store.description}: {name}")
