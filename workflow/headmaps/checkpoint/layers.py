"""From a source record to the normal form of one layer, holding about one tensor at a time."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headmaps.checkpoint.dtypes import in_c_order
from headmaps.checkpoint.normal_form import Described, writing
from headmaps.checkpoint.store import Store, TensorEntry
from headmaps.errors import CheckpointError, ResultError
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


def fetch_layer(source: Mapping[str, Any], layer: int, store: Store, output: Path) -> dict[str, Any]:
    """Write one layer's tensors to `output` in the normal form.

    Returns:
        facts for the record: for each tensor the file it came from, its stored type, and the sha256 of its bytes
        as stored there (before any dequantising).

    Raises:
        CheckpointError: bytes are missing, or are no longer those that source.json describes.
    """
    entries = entries_of(source, layer)
    quantised = source["format"] == "gguf"
    described = [Described(name, _normal_dtype(entry, quantised), entry.shape) for name, entry in entries.items()]
    expected = {name: value.get("sha256") for name, value in described_tensors(source, layer).items()}
    tensors: dict[str, Any] = {}
    with writing(output, described) as write:
        for file in sorted({entry.file for entry in entries.values()}):
            here = sorted((e for e in entries.values() if e.file == file), key=lambda e: (e.offset, e.name))
            ranges = [(entry.offset, entry.nbytes) for entry in here]
            for entry, data in zip(here, store.read_ranges(file, ranges), strict=True):
                digest = hashlib.sha256(data).hexdigest()
                if expected[entry.name] not in {None, digest}:
                    raise _changed(entry, store)
                write(entry.name, _normal(data, entry, quantised))
                tensors[entry.name] = {"file": file, "dtype": entry.dtype, "sha256": digest}
    return {"tensors": dict(sorted(tensors.items()))}


def _normal_dtype(entry: TensorEntry, quantised: bool) -> str:
    return "F32" if quantised and entry.dtype != "F64" else entry.dtype


def _normal(data: bytes, entry: TensorEntry, quantised: bool) -> "bytes | NDArray[Any]":
    if quantised:
        from headmaps.checkpoint.formats.gguf import dequantise

        return dequantise(data, entry.dtype, entry.shape)
    if entry.stride is not None:
        return in_c_order(data, entry.dtype, entry.shape, entry.stride)
    return data


def _changed(entry: TensorEntry, store: Store) -> CheckpointError:
    return CheckpointError(
        f"the bytes of {entry.name} are no longer those that source.json describes",
        where=f"{store.description}: {entry.file}",
        expected="a checkpoint that does not change while it is read",
        do="run snakemake again; if it stays so, delete source.json",
    )


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

    Where the file system has no hard links nothing is kept, rather than a copy.
    """
    kept, note = _kept_paths(output, identity)
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob(f"{output.stem}.*"):
        old.unlink(missing_ok=True)
    try:
        os.link(output, kept)
    except OSError:
        return
    write_json(note, {"sha256": sha256_of_file(output), "facts": dict(facts)})


def _kept_paths(output: Path, identity: str) -> tuple[Path, Path]:
    stem = output.parent / KEPT / f"{output.stem}.{identity}"
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")
