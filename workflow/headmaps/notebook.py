"""A checkpoint in a notebook or a script: its heads' matrices without the workflow, one layer at a time.

>>> model = headmaps.open_checkpoint("my-checkpoint")        # or "hub:owner/repo@revision"
>>> A, B = model.factors(layer=2, head=0, matrix="value")
>>> headmaps.decompose(A, B).sigma
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.architectures import attention_layers, geometry_of, is_transposed, tensors_needed
from headmaps.checkpoint.catalogue import open_checkpoint as open_catalogue
from headmaps.checkpoint.layers import fetch_layer
from headmaps.checkpoint.resolve import source_record
from headmaps.checkpoint.sources import file_of
from headmaps.checkpoint.store import LocalStore, Store
from headmaps.errors import CheckpointError
from headmaps.geometry import Geometry
from headmaps.heads import LayerHeads, layer_heads
from headmaps.layer_factors import LayerFactors
from headmaps.steps.heads import tensors_of_layer

Float = NDArray[np.float64]


@dataclass
class Checkpoint:
    """An opened checkpoint; tensors are read when a layer is asked for, and only that layer's.

    Attributes:
        geometry: its dimensions, positions, norms and biases.
        source: what a workflow's source.json would say: config, and every tensor needed with its file and offset.
        store: where the bytes come from.
    """

    geometry: Geometry
    source: dict[str, Any]
    store: Store = field(repr=False)
    _last: tuple[int, LayerHeads] | None = field(default=None, repr=False)

    def heads(self, layer: int) -> LayerHeads:
        """W_Q, W_K, W_V, W_O and the biases and norms of one layer, as stored; the last layer asked for is kept.

        Raises:
            CheckpointError: there is no such layer, or its bytes are missing or damaged.
            NumericError: a weight is NaN or infinite.
        """
        if layer not in self.geometry.layers:
            what = f"this checkpoint was opened without a layer {layer}"
            raise CheckpointError(what, where=self.store.description, expected=f"one of {self.geometry.layers}")
        if self._last is None or self._last[0] != layer:
            self._last = None  # before the next is read, so that two are never held
            self._last = layer, self._read(layer)
        return self._last[1]

    def factors(self, layer: int, head: int, matrix: str = "value", layer_norm: str = "raw") -> tuple[Float, Float]:
        """The factors of one head's matrix `A @ B`, float64.

        Args:
            layer, head: counted from 0; a query head's own key/value head is found.
            matrix: `value` (W_V[g], W_O[h]) or `qk` (W_Q[h], W_K[g]^T); with latent attention `qk_nope`, `qk_rope`.
            layer_norm: treatment of the norms, as in the config.

        Returns:
            A (d_model, r), B (r, d_model).

        Raises:
            CheckpointError: there is no such layer or head.
            ConfigError: there is no such treatment.
            ArchitectureError: the model has no such matrix.
        """
        if not 0 <= head < self.geometry.n_heads:
            what = f"layer {layer} has no head {head}"
            raise CheckpointError(what, where=self.store.description, expected=f"0 to {self.geometry.n_heads - 1}")
        found = LayerFactors(self.heads(layer), self.geometry, matrix, layer_norm)
        return found.A(found.input_index(head)), found.B(found.output_index(head))

    def _read(self, layer: int) -> LayerHeads:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "layer.safetensors")
            fetch_layer(self.source, layer, self.store, file)
            return layer_heads(tensors_of_layer(file, self.source, layer), self.geometry, is_transposed(self.source))


def open_checkpoint(
    place: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    stack: str | None = None,
    tower: str | None = None,
) -> Checkpoint:
    """Open a checkpoint: its config and the headers of its files are read, no weights.

    Args:
        place: a folder with config.json and weights, a .gguf file, or "hub:OWNER/REPO" with an optional "@REVISION".
        layers: which layers; all that have softmax attention by default.
        stack: encoder, decoder or cross, of an encoder-decoder.
        tower: text or vision, of a multimodal model.

    Raises:
        CheckpointError: it cannot be reached or read.
        ArchitectureError: its architecture is not known, or its tensors do not fit it.
    """
    spec, store = _opened(os.fspath(place))
    catalogue = open_catalogue(store, file_of(spec, store))
    choice = {key: value for key, value in (("stack", stack), ("tower", tower)) if value is not None}
    chosen = attention_layers(catalogue.config, stack, tower) if layers is None else list(layers)
    source = source_record({**spec, **choice, "layers": chosen}, catalogue, tensors_needed)
    return Checkpoint(geometry_of(source), source, store)


def _opened(place: str) -> tuple[dict[str, Any], Store]:
    """The source part of a config entry, and the store behind it."""
    if place.startswith("hub:"):
        from headmaps.checkpoint.hub import HubStore, resolve_revision

        repo, _, revision = place.removeprefix("hub:").partition("@")
        commit = resolve_revision({"repo": repo, "revision": revision or "main"})
        return {"source": "hub", "repo": repo, "revision": commit}, HubStore(repo, commit)
    path = Path(place).expanduser().absolute()
    # not "local": the workflow would hash every tensor first, to notice a changed checkpoint from one run to the next
    return {"source": "notebook", "path": str(path)}, LocalStore(path)
