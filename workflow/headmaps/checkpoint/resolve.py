"""From a model's entry to its source record: which bytes of which files are needed, and nothing about their values."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headmaps.checkpoint.catalogue import Catalogue, refuse_scaled
from headmaps.checkpoint.store import TensorEntry
from headmaps.errors import CheckpointError

TensorsNeeded = Callable[..., Mapping[str, Any]]
"""`headmaps.architectures.tensors_needed`."""

_DESCRIBED = ("source", "repo", "revision", "package", "version", "sha256", "file", "folder", "path", "stack", "tower")


def source_record(spec: Mapping[str, Any], catalogue: Catalogue, tensors_needed: TensorsNeeded) -> dict[str, Any]:
    """What source.json holds.

    For a local checkpoint, whose files can change under the same name, each tensor's sha256 is recorded too: this
    reads the tensors once, and makes a changed checkpoint a changed source.

    Args:
        spec: the source part of the model's entry, with `layers` and, where set, `stack` and `tower`.
        tensors_needed: chooses the tensors by the architecture: (config, names, layers, stack, tower) ->
            {"layers": {layer: {role: name}}, "shared": {role: name}}.

    Raises:
        CheckpointError: a needed tensor is quantised or not readable.
        ArchitectureError: from `tensors_needed`.
    """
    layers = [int(layer) for layer in spec["layers"]]
    chosen = tensors_needed(catalogue.config, list(catalogue.tensors), layers, spec.get("stack"), spec.get("tower"))
    by_layer = {int(layer): _names(roles) for layer, roles in chosen["layers"].items()}
    shared = _names(chosen.get("shared", {}))
    if sorted(by_layer) != sorted(layers):
        raise CheckpointError(f"layers {layers} were asked for, {sorted(by_layer)} were found")
    wanted = sorted({*shared, *(name for names in by_layer.values() for name in names)})
    refuse_scaled(wanted, catalogue)
    entries = catalogue.locate(wanted)
    described = {name: entry.to_json() for name, entry in entries.items()}
    if spec["source"] == "local":
        for name, digest in tensor_hashes(catalogue, entries.values()):
            described[name]["sha256"] = digest
    return {
        **{key: spec[key] for key in _DESCRIBED if key in spec},
        **catalogue.store.provenance,
        "format": catalogue.format,
        "config": dict(catalogue.config),
        "layers": {str(layer): {name: described[name] for name in names} for layer, names in by_layer.items()},
        "shared": {name: described[name] for name in shared},
        "notes": [],
    }


def tensor_hashes(catalogue: Catalogue, entries: Iterable[TensorEntry]) -> Iterable[tuple[str, str]]:
    """Each tensor's name and the sha256 of its stored bytes; holds one tensor at a time."""
    for entry in entries:
        data = catalogue.store.read(entry.file, entry.offset, entry.nbytes)
        yield entry.name, hashlib.sha256(data).hexdigest()


def _names(roles: Mapping[str, Any]) -> list[str]:
    """The distinct tensors of a map of roles, sorted."""
    return sorted(set(roles.values()))
