"""Which of a checkpoint's tensors are needed: exactly one for each, chosen by an anchored name, or an error."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headmaps.architectures.entry import value_of
from headmaps.architectures.model import Model, understood
from headmaps.architectures.table import model_of
from headmaps.errors import ArchitectureError, CheckpointError

VISION = re.compile(r"(^|\.)(vision|visual|image|audio|speech)[^.]*\.")
"""In a prefix: not the text tower."""
PACKED = re.compile(
    r"\.(qweight|qzeros|scales|g_idx|weight_packed|weight_scale|weight_scale_inv|weight_blocks|absmax|quant_state\..*|"
    r"weight_quantizer\..*|[^.]*_(blocks|scales))$"
)
"""Tensors of checkpoints whose weights are codes to be multiplied by scales."""
OLD_NAMES = {".weight": (".weight", ".gamma"), ".bias": (".bias", ".beta")}
"""Norms of TensorFlow-born checkpoints say gamma and beta."""


@dataclass(frozen=True)
class Wanted:
    """One tensor of a block: its role, the names it may have, and whether it must, may or must not be there."""

    role: str
    names: tuple[str, ...]
    presence: str


@understood()
def attention_layers(config: Mapping[str, Any], stack: str | None = None, tower: str | None = None) -> list[int]:
    """The layers with softmax attention, ascending.

    Raises:
        ArchitectureError: as `model_of`.
    """
    model = model_of(config, stack, tower)
    return model.entry.attention_layers(model)


def chosen_layers(
    config: Mapping[str, Any], layers: int | Sequence[int], stack: str | None = None, tower: str | None = None
) -> list[int]:
    """The layers to read, from what the configuration says of them.

    Args:
        layers: the number of the model's layers, all of which are read, or a list of those wanted.

    Raises:
        ArchitectureError: the number is not the model's, or not all its layers have softmax attention; as `model_of`.
    """
    if not isinstance(layers, int):
        return [int(layer) for layer in layers]
    have = attention_layers(config, stack, tower)
    if have == list(range(layers)):
        return have
    right = f"layers: {len(have)}" if have == list(range(len(have))) else f"layers: {have}"
    what = f"the configuration says `layers: {layers}`; the model has {len(have)} layers with softmax attention"
    raise ArchitectureError(what, where="models", expected=right, do=f"write `{right}`, or a list of the layers wanted")


@understood()
def tensors_needed(
    config: Mapping[str, Any],
    names: Iterable[str],
    layers: Sequence[int],
    stack: str | None = None,
    tower: str | None = None,
) -> dict[str, Any]:
    """The tensors of the given layers' attention, biases and norms.

    Args:
        config: config.json as a dict, or what a GGUF file's metadata gives.
        names: every tensor of the checkpoint.
        layers: numbers of layers.

    Returns:
        {"layers": {layer: {role: tensor name}}, "shared": {role: tensor name}}; roles are q, k, v, qkv, o (and q_a ...
        of MLA), `{role}_bias`, norm_weight, norm_bias, post_norm_weight, post_norm_bias, and names of extras.

    Raises:
        ArchitectureError: a layer that does not exist or has no softmax attention, more than one candidate, or a bias
            that the architecture does not have.
        CheckpointError: a tensor is missing, or the weights are stored in a way that is not read here.
    """
    found = frozenset(names)
    model = replace(model_of(config, stack, tower), names=found)
    _check_layers(model, layers)
    _refuse_other_formats(model, found)
    wanted = _wanted(model)
    prefix = _prefix(model, found, layers, wanted)
    chosen = {layer: _in_block(model, found, prefix, layer, wanted) for layer in layers}
    shared = {}
    for role, name in value_of(model.entry.shared, model).items():
        shared[role] = _only(found, [f"{prefix}{name}"], model)
    return {"layers": chosen, "shared": shared}


def _check_layers(model: Model, layers: Sequence[int]) -> None:
    attention = model.entry.attention_layers(model)
    for layer in layers:
        if layer not in attention:
            where = "is not there" if not 0 <= layer < model.n_layers else "has no softmax attention"
            every = attention == list(range(model.n_layers))
            right = model.n_layers if every else attention
            raise ArchitectureError(
                f"layer {layer} {where}: this {model.model_type} model has {model.n_layers} layers",
                where="config: layers",
                expected=f"layers: {right}",
                do=f"write `layers: {right}` in the model's entry",
            )


def _refuse_other_formats(model: Model, names: frozenset[str]) -> None:
    """Codes in the place of weights, and adapters; what the config says of it is refused when it is read."""
    attention = tuple(f".{path}." for path in value_of(model.entry.modules, model).values())
    packed = sorted(name for name in names if PACKED.search(name) and any(path in name for path in attention))
    if packed:
        raise CheckpointError(
            f"the attention weights of this checkpoint are quantised: it has {packed[0]}, which is not read here",
            where=packed[0],
            expected="plain numbers (F64, F32, F16, BF16, FP8 without scales) or GGUF",
            do="use the unquantised checkpoint, or a GGUF conversion of it",
        )
    if adapter := sorted(name for name in names if ".lora_" in name):
        raise CheckpointError(
            "this checkpoint is an adapter (LoRA): it holds changes to the weights, not the weights they end as",
            where=adapter[0],
            do="merge the adapter into its base model and give the merged checkpoint",
        )


def _wanted(model: Model) -> list[Wanted]:
    """What a block must, may and must not contain."""
    entry = model.entry
    biases = value_of(entry.biases, model)
    wanted = []
    for role, path in value_of(entry.modules, model).items():
        wanted.append(Wanted(role, (f"{path}.weight",), "must"))
        presence = "may" if entry.biases_as_stored else "must" if role in biases else "must not"
        wanted.append(Wanted(f"{role}_bias", (f"{path}.bias",), presence))
    norm = value_of(entry.norm, model)
    places = {"norm": norm.place in ("pre", "sandwich"), "post_norm": norm.place in ("output", "sandwich")}
    modules = {"norm": value_of(entry.norm_module, model), "post_norm": entry.post_norm_module}
    for role, path in modules.items():
        for end, there in ((".weight", norm.weight), (".bias", norm.bias)):
            if path is not None and places[role] and there:
                wanted.append(Wanted(role + end.replace(".", "_"), tuple(path + old for old in OLD_NAMES[end]), "must"))
    for role, name in value_of(entry.extras, model).items():
        wanted.append(Wanted(role, (name,), "must"))
    return wanted


def _prefix(model: Model, names: frozenset[str], layers: Sequence[int], wanted: list[Wanted]) -> str:
    """What stands before the block's path, the same for all tensors."""
    block = re.compile(r"(?:^|(?<=\.))" + re.escape(model.entry.block).replace(re.escape("{i}"), r"(\d+)"))
    inside = {name for item in wanted if item.presence == "must" for name in item.names}
    candidates: dict[str, str] = {}
    for name in sorted(names):
        for match in block.finditer(name):
            if name[match.end() :] in inside and int(match.group(1)) in layers:
                candidates.setdefault(name[: match.start()], name)
    if model.tower is not None:
        vision = model.tower == "vision"
        candidates = {prefix: name for prefix, name in candidates.items() if bool(VISION.search(prefix)) == vision}
    if not candidates:
        first = model.entry.block.format(i=layers[0]) + wanted[0].names[0] if layers else model.entry.block
        raise CheckpointError(
            f"the checkpoint has no tensor of {model.model_type} attention: none is called {first}, with or without a "
            "prefix",
            expected=f"{first} after nothing, `model.`, `transformer.` or the like",
            do="check that model_type in config.json says what the weights are",
        )
    if len(candidates) > 1:
        raise ArchitectureError(
            f"{len(candidates)} sets of tensors could be this {model.model_type} model's attention",
            where="\n".join(candidates.values()),
            expected="exactly one tensor for each name",
            do="choose with `tower` or `stack` in the model's entry, or give a checkpoint that holds one model",
        )
    return next(iter(candidates))


def _in_block(model: Model, names: frozenset[str], prefix: str, layer: int, wanted: list[Wanted]) -> dict[str, str]:
    start = prefix + model.entry.block.format(i=layer)
    chosen = {}
    for item in wanted:
        candidates = [start + name for name in item.names]
        there = [name for name in candidates if name in names]
        if item.presence == "must not" and there:
            raise ArchitectureError(
                f"the checkpoint has {there[0]}, but a {model.model_type} model with this config has no such bias",
                where=there[0],
                do="check the bias keys of config.json (attention_bias, use_bias, qkv_bias ...)",
            )
        if item.presence == "must" or (item.presence == "may" and there):
            chosen[item.role] = _only(names, candidates, model)
    return chosen


def _only(names: frozenset[str], candidates: list[str], model: Model) -> str:
    there = [name for name in candidates if name in names]
    if not there:
        raise CheckpointError(
            f"the checkpoint lacks the tensor {candidates[0]}, which a {model.model_type} model must have",
            where=candidates[0],
            do="fetch the checkpoint again; if it is complete, check that config.json belongs to it",
        )
    if len(there) > 1:
        raise ArchitectureError(
            f"the checkpoint has one tensor of a {model.model_type} model under {len(there)} names",
            where="\n".join(there),
            expected="exactly one",
        )
    return there[0]
