"""The table put together, and the choice of an entry for a config."""

from collections.abc import Mapping
from typing import Any

from headmaps.architectures.encoders import ENCODER_DECODERS, ENCODERS
from headmaps.architectures.entry import Architecture
from headmaps.architectures.gguf_style import GGUF_STYLE
from headmaps.architectures.gpt_style import GPT_STYLE
from headmaps.architectures.llama_style import LLAMA_STYLE
from headmaps.architectures.model import Model
from headmaps.errors import ArchitectureError

SINGLE: dict[str, Architecture] = GPT_STYLE | LLAMA_STYLE | ENCODERS | GGUF_STYLE
"""model_type -> entry."""
STACKED: dict[str, dict[str, Architecture]] = ENCODER_DECODERS
"""model_type -> stack -> entry."""
TOWERS = {"text": "text_config", "vision": "vision_config"}
"""Where a multimodal config keeps the config of a tower."""
TOWER_TYPES = {"clip": {"text": "clip_text_model", "vision": "clip_vision_model"}, "gemma3": {"text": "gemma3_text"}}
"""What the parts of a multimodal config are where they do not say it themselves."""


def known_model_types() -> list[str]:
    """Every model_type that can be read, sorted; multimodal ones are read by tower."""
    return sorted({*SINGLE, *STACKED, *TOWER_TYPES})


def model_of(config: Mapping[str, Any], stack: str | None = None, tower: str | None = None) -> Model:
    """The config read through its entry.

    Args:
        config: config.json as a dict, or what a GGUF file's metadata gives.
        stack: of an encoder-decoder: encoder, decoder or cross.
        tower: of a multimodal model: text or vision.

    Raises:
        ArchitectureError: a model_type that is not in the table; a stack or tower that is missing, or one too many.
    """
    config, tower = _tower_of(config, tower)
    model_type = config["model_type"]
    if model_type in STACKED:
        stacks = STACKED[model_type]
        if stack not in stacks:
            said = "no stack was chosen" if stack is None else f"it has no stack {stack!r}"
            raise ArchitectureError(
                f"{model_type} is an encoder-decoder, and {said}",
                where="config: stack",
                expected="one of " + ", ".join(stacks),
                do="add to the model's entry, for example, `stack: encoder`",
            )
        return Model(config, stacks[stack], model_type, stack, tower)
    if model_type not in SINGLE:
        raise _unknown(model_type)
    if stack is not None:
        raise ArchitectureError(
            f"{model_type} has one stack of layers, but stack: {stack} was asked for",
            where="config: stack",
            do="remove `stack` from the model's entry",
        )
    return Model(config, SINGLE[model_type], model_type, None, tower)


def _tower_of(config: Mapping[str, Any], tower: str | None) -> tuple[Mapping[str, Any], str | None]:
    """The config of the chosen tower, and its name; a config without towers as it is."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ArchitectureError(
            "the checkpoint's config names no model_type",
            where="config.json: model_type",
            expected="one of " + ", ".join(known_model_types()),
        )
    parts: dict[str, dict[str, Any]] = {}
    for name, key in TOWERS.items():
        if isinstance(config.get(key), Mapping):
            kind = config[key].get("model_type") or TOWER_TYPES.get(model_type, {}).get(name)
            parts[name] = {**config[key], "model_type": kind}
    if model_type in SINGLE or model_type in STACKED or not parts:
        if tower is not None:
            raise ArchitectureError(
                f"{model_type} is not a multimodal model, but tower: {tower} was asked for",
                where="config: tower",
                do="remove `tower` from the model's entry",
            )
        return config, None
    readable = [name for name, part in parts.items() if part["model_type"] in SINGLE]
    if not readable:
        raise _unknown(model_type)
    if tower is None and len(readable) == 1:
        tower = readable[0]
    if tower not in readable:
        said = "no tower was chosen" if tower is None else f"its {tower} tower is not one that can be read here"
        raise ArchitectureError(
            f"{model_type} is a multimodal model, and {said}",
            where="config: tower",
            expected="one of " + ", ".join(readable),
            do=f"add to the model's entry, for example, `tower: {readable[0]}`",
        )
    return parts[tower], tower


def _unknown(model_type: str) -> ArchitectureError:
    what = f"the model type {model_type!r} is not in the table of architectures"
    if model_type.startswith("gguf:"):
        what = (
            f"the GGUF architecture {model_type.removeprefix('gguf:')!r} is not in the table: its layout is not known"
        )
    return ArchitectureError(
        what,
        where="config.json: model_type",
        expected="one of " + ", ".join(known_model_types()),
        do="add one entry to workflow/headmaps/architectures/ (copy the nearest family) and a tiny model of it to "
        "tests/oracle/make_fixtures.py",
    )
