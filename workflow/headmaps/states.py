"""Sampled hidden states that a model's entry names (`states`): which files of which layers, and what they go with.

Standard library only: the workflow reads it while it plans.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headmaps.errors import ConfigError

if TYPE_CHECKING:
    from headmaps.plan import Plan

HEAD_ARRAYS = ("W_Q.npy", "W_K.npy", "W_V.npy", "W_O.npy", "extras.npz")


def files_of_layer(folder: str, layer: str) -> list[str]:
    """The two files of a layer, or none.

    Args:
        folder: of the states. layer: its number as it stands in file names.

    Raises:
        ConfigError: only one of the two is there.
    """
    files = [f"{folder}/{side}-{layer}.npy" for side in ("input", "output")]
    there = [file for file in files if os.path.isfile(file)]
    if len(there) == 1:
        missing = next(file for file in files if file not in there)
        what = f"sampled states of layer {layer} are incomplete: there is no {missing}"
        raise ConfigError(what, where="states", expected="input-LL.npy and output-LL.npy")
    return there


def check_states(plan: "Plan") -> None:
    """Refuse a folder of states that holds none.

    Raises:
        ConfigError: there is no such folder, or it has no file of any of the model's layers.
    """
    for model, entry in plan.models.items():
        if entry.states is None:
            continue
        found = [files_of_layer(entry.states, layer) for layer in plan.layers(model)]
        if not any(found):
            what = f"model {model!r} names a folder of sampled states that has none of its layers: {entry.states}"
            expected = f"files such as {entry.states}/input-{plan.layers(model)[0]}.npy, each (samples, d_model)"
            raise ConfigError(what, where="states", expected=expected)


class StatesOf:
    """The states a job reads, as functions of its rule's wildcards.

    A job gets the states of all the layers it draws or none: every list is empty unless each of them has states.

    Args:
        layers: the layers drawn; all of the model by default.
        wanted: whether the job draws states at all.
    """

    def __init__(self, plan: "Plan", layers: Sequence[int] | None = None, *, wanted: bool = True) -> None:
        self.plan, self.layers, self.wanted = plan, layers, wanted

    def _names(self, model: str) -> list[str]:
        """The layers as they stand in file names, if the job gets their states."""
        entry = self.plan.models[model]
        if not self.wanted or entry.states is None:
            return []
        names = dict(zip(entry.layer_numbers, self.plan.layers(model), strict=True))
        drawn = [names[layer] for layer in (entry.layer_numbers if self.layers is None else self.layers)]
        return drawn if all(files_of_layer(entry.states, layer) for layer in drawn) else []

    def files(self, wildcards: Any) -> list[str]:
        """Input and output states of each layer in turn."""
        folder = self.plan.models[wildcards.model].states or ""
        return [file for layer in self._names(wildcards.model) for file in files_of_layer(folder, layer)]

    def folders(self, wildcards: Any) -> list[str]:
        """The layers' folders of head matrices, on whose singular vectors the states are projected."""
        return [self.plan.path(wildcards.model, "heads", f"layer-{name}") for name in self._names(wildcards.model)]

    def records(self, wildcards: Any) -> list[str]:
        """The records of those."""
        return [f"{folder}.json" for folder in self.folders(wildcards)]

    def arrays(self, wildcards: Any) -> list[str]:
        """The matrices in those."""
        return [f"{folder}/{name}" for folder in self.folders(wildcards) for name in HEAD_ARRAYS]
