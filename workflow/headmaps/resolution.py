"""A model's source record from its entry: the checkpoint's headers, and the architecture's choice of tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headmaps.architectures import chosen_layers, tensors_needed
from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.resolve import source_record
from headmaps.checkpoint.sources import file_of, store_of
from headmaps.checkpoint.store import Store
from headmaps.records import unplaced


def resolved(spec: Mapping[str, Any], checkpoint: Path) -> tuple[dict[str, Any], Store]:
    """What source.json holds, and where its bytes are.

    Args:
        spec: the source part of the entry, with `layers` and, where set, `stack` and `tower`.
        checkpoint: the model's checkpoint folder, in which whole files lie.

    Raises:
        CheckpointError, ArchitectureError: the checkpoint has not what its layers need.
    """
    store = store_of(spec, checkpoint)
    catalogue = open_checkpoint(store, file_of(spec, store))
    layers = chosen_layers(catalogue.config, spec["layers"], spec.get("stack"), spec.get("tower"))
    return source_record({**unplaced(spec), "layers": layers}, catalogue, tensors_needed), store
