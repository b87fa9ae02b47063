"""From a source record to the normal form of one layer, holding about one tensor at a time."""

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headmaps.checkpoint.dtypes import in_c_order
from headmaps.checkpoint.normal_form import Described, writing
from headmaps.checkpoint.store import LocalStore, Store, TensorEntry
from headmaps.errors import CheckpointError, DownloadError, ResultError
from headmaps.records import read_json, sha256_of_file, write_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT = "kept"
"""Folder beside the layer files with a second name (a hard link) of each that came over the network."""


def entries_of(source: Mapping[str, Any], layer: int) -> dict[str, TensorEntry]:
    """The tensors of one layer, and those that all layers share.

    Raises:
        CheckpointError: the source record does not have this layer.
    """
    return {name: TensorEntry.from_json(name, value) for name, value in described_tensors(source, layer).items()}


def described_tensors(source: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """What source.json says of the tensors of one layer and of those that all layers share.

    Raises:
        CheckpointError: the source record does not have this layer.
    """
    layers = source["layers"]
    if str(layer) not in layers:
        raise CheckpointError(f"source.json has no layer {layer}", expected=f"one of {', '.join(layers)}")
    return {**source["shared"], **layers[str(layer)]}


def fetch_layer(
    source: Mapping[str, Any], layer: int, store: Store, output: Path, earlier: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write one layer's tensors to `output` in the normal form.

    A byte that was altered on its way is noticed where anything says what it should be: the sha256 in the source
    record (local checkpoints), the CRC-32 that a torch archive has of each storage, or the sha256 of an earlier fetch.

    Args:
        earlier: tensor -> sha256 of its stored bytes when they were fetched before, see `hashes_kept`.

    Returns:
        facts for the record: for each tensor the file it came from, its stored type, and the sha256 of its bytes
        as stored there (before any dequantising).

    Raises:
        CheckpointError: bytes are missing, or are not those of the source record, of the archive, or of `earlier`.
    """
    entries = entries_of(source, layer)
    quantised = source["format"] == "gguf"
    described = [Described(name, _normal_dtype(entry, quantised), entry.shape) for name, entry in entries.items()]
    recorded = {name: value.get("sha256") for name, value in described_tensors(source, layer).items()}
    tensors: dict[str, Any] = {}
    for left in output.parent.glob(f".{output.name}.*.part"):  # by a run that was killed: one job writes a layer
        left.unlink(missing_ok=True)
    with writing(output, described) as write:
        for file in sorted({entry.file for entry in entries.values()}):
            here = sorted((e for e in entries.values() if e.file == file), key=lambda e: (e.offset, e.name))
            ranges = [(entry.offset, entry.nbytes) for entry in here]
            for entry, read in zip(here, store.read_ranges(file, ranges), strict=True):
                data = _checked(read, entry, store, recorded[entry.name], (earlier or {}).get(entry.name))
                write(entry.name, _normal(data, entry, quantised))
                digest = hashlib.sha256(data).hexdigest()
                tensors[entry.name] = {"file": file, "dtype": entry.dtype, "sha256": digest}
    return {"tensors": dict(sorted(tensors.items()))}


def _checked(data: bytes, entry: TensorEntry, store: Store, recorded: str | None, earlier: str | None) -> bytes:
    """The tensor's bytes, once nothing contradicts them; read a second time before that is held against them."""
    fault = _fault(data, entry, recorded, earlier)
    if fault is None:
        return data
    (again,) = store.read_ranges(entry.file, [(entry.offset, entry.nbytes)])
    if _fault(again, entry, recorded, earlier) is None:
        print(f"{entry.name} arrived damaged ({fault}): fetched once more", file=sys.stderr, flush=True)
        return again
    where = f"{store.description}: {entry.file}"
    if fault is _CRC:
        raise CheckpointError(
            f"the bytes of {entry.name} are damaged: {fault}",
            where=where,
            expected=f"CRC-32 {entry.crc32:08x}",
            do="fetch the file again; if it stays so, it was damaged before it was published",
        )
    if recorded is not None:
        raise CheckpointError(
            f"the bytes of {entry.name} are no longer those that source.json describes",
            where=where,
            expected="a checkpoint that does not change while it is read",
            do="run snakemake again; if it stays so, delete source.json",
        )
    if isinstance(store, LocalStore):  # a whole file, whose hash is the Hub's: the earlier bytes were wrong
        print(f"{entry.name}: {fault}; those of the whole file are taken", file=sys.stderr, flush=True)
        return again
    raise DownloadError(
        f"the bytes of {entry.name} are damaged, or were: {fault}",
        where=where,
        expected=f"sha256 {earlier}",
        do="add `fetch: full` to the model's entry: whole files are checked against the Hub's own hash",
    )


_CRC = "its archive has another CRC-32 for them"


def _fault(data: bytes, entry: TensorEntry, recorded: str | None, earlier: str | None) -> str | None:
    """What contradicts the bytes, if anything does."""
    if entry.crc32 is not None and zlib.crc32(data) != entry.crc32:
        return _CRC
    known = recorded or earlier
    if known is not None and hashlib.sha256(data).hexdigest() != known:
        return "they are not those of the source record" if recorded else "an earlier fetch gave others"
    return None


def _normal_dtype(entry: TensorEntry, quantised: bool) -> str:
    return "F32" if quantised and entry.dtype != "F64" else entry.dtype


def _normal(data: bytes, entry: TensorEntry, quantised: bool) -> "bytes | NDArray[Any]":
    if quantised:
        from headmaps.checkpoint.formats.gguf import dequantise

        return dequantise(data, entry.dtype, entry.shape)
    if entry.stride is not None:
        return in_c_order(data, entry.dtype, entry.shape, entry.stride)
    return data


# --- bytes that are kept ----------------------------------------------------------------------------------------------


def identity_of(source: Mapping[str, Any], layer: int) -> str | None:
    """A name for the content of a layer file, known before it is fetched; None where the source does not pin it.

    A commit of a repository pins its bytes; with it, the places and types of the tensors pin the layer's.
    """
    if not source.get("commit"):
        return None
    pinned = [source.get("repo"), source["commit"], source["format"], described_tensors(source, layer)]
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()[:32]


def take_kept(output: Path, identity: str) -> dict[str, Any] | None:
    """Give a kept layer file its name again.

    Snakemake deletes a job's outputs before it runs the job; the second name keeps the bytes, and they are used if
    their sha256 still holds.

    Returns:
        the facts of `fetch_layer`, or None where nothing is kept for this content.
    """
    kept, note = _kept_paths(output, identity)
    if not kept.is_file() or not note.is_file():
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, ResultError):  # a damaged note: nothing is kept
        known = read_json(note)
        if sha256_of_file(kept) == known["sha256"]:
            temporary = kept.with_suffix(".link")
            temporary.unlink(missing_ok=True)
            os.link(kept, temporary)
            os.replace(temporary, output)
            return dict(known["facts"])
    return None


def keep(output: Path, identity: str, facts: Mapping[str, Any]) -> None:
    """Give a finished layer file its second name, and forget what was kept of other contents of this layer.

    Where the file system has no hard links no bytes are kept, rather than a copy of them; their hashes always are.
    """
    kept, note = _kept_paths(output, identity)
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob(f"{output.stem}.*"):
        old.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(output, kept)
    write_json(note, {"sha256": sha256_of_file(output), "facts": dict(facts)})


def hashes_kept(output: Path, identity: str) -> dict[str, str]:
    """Tensor -> sha256 of its stored bytes as they were fetched before; empty where they never were.

    Snakemake deletes the record of a layer before it makes it again; this note outlives it.
    """
    _, note = _kept_paths(output, identity)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, ResultError):  # as if it were not there
        return {name: str(tensor["sha256"]) for name, tensor in read_json(note)["facts"]["tensors"].items()}
    return {}


def _kept_paths(output: Path, identity: str) -> tuple[Path, Path]:
    stem = output.parent / KEPT / f"{output.stem}.{identity}"
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")
