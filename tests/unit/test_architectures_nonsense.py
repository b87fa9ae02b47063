"""Whatever a config.json says, it ends soon, with a reading or with the typed error: it comes from anywhere."""

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headmaps.architectures import attention_layers, geometry_of, tensors_needed
from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import ArchitectureError, HeadmapsError

FIXTURES = Path(__file__).parents[1] / "oracle" / "fixtures"
FAMILIES = ["deepseek_v3", "falcon-40b", "gemma3_text", "gpt_neo", "llama-yarn", "mpt", "phi3-longrope", "qwen3_next"]
NONSENSE: list[Any] = [None, "x", -1, 0, [], {"a": 1}, True, 10**18, [[1]], 1e300]


def places(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key, also inside sections."""
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def replaced(config: Mapping[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = section = copy.deepcopy(dict(config))
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = value
    return changed


@pytest.mark.parametrize("family", FAMILIES)
def test_nonsense_in_any_place_is_read_or_refused(family: str) -> None:
    catalogue = open_checkpoint(LocalStore(FIXTURES / family))
    names = list(catalogue.tensors)
    described = {name: entry.to_json() for name, entry in catalogue.tensors.items()}
    refused = 0
    for place in places(catalogue.config):
        for value in NONSENSE:
            config = replaced(catalogue.config, place, value)
            try:
                layers = attention_layers(config)
                chosen = tensors_needed(config, names, layers)
                source = {
                    "config": config,
                    "layers": {
                        str(k): {n: described[n] for n in roles.values()} for k, roles in chosen["layers"].items()
                    },
                    "shared": {},
                }
                json.dumps(geometry_of(source).to_json())
            except HeadmapsError:
                refused += 1
    assert refused > 20


def test_the_message_names_the_file_and_the_place() -> None:
    config = json.loads((FIXTURES / "llama-yarn" / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = "large"
    catalogue = open_checkpoint(LocalStore(FIXTURES / "llama-yarn"))
    chosen = tensors_needed(config, list(catalogue.tensors), [0])
    layers = {"0": {name: catalogue.tensors[name].to_json() for name in chosen["layers"][0].values()}}
    with pytest.raises(
        ArchitectureError, match=r"config does not make sense \(ValueError: (.|\n)*config\.json, as read in"
    ):
        geometry_of({"config": config, "layers": layers, "shared": {}})


def test_a_dimension_that_would_fill_the_memory_is_refused() -> None:
    config = json.loads((FIXTURES / "llama" / "config.json").read_text())
    with pytest.raises(ArchitectureError, match="gives 10000000000 as its number of layers"):
        attention_layers(config | {"num_hidden_layers": 10**10})
