"""What a checkpoint holds: its configuration and where each tensor lies, whatever its format."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headmaps.checkpoint.formats import gguf, safetensors, torch_zip
from headmaps.checkpoint.store import LocalStore, Store, TensorEntry
from headmaps.errors import CheckpointError

_USUAL = (("safetensors", "model.safetensors"), ("torch", "pytorch_model.bin"))
_PICKLES = (".bin", ".pt", ".pth")
_OTHER_LAYOUTS = ("consolidated", "adapter")  # Meta's and Mistral's own files; differences to a base model
_SCALES = ("_scale", "_scale_inv", "_scales", "_blocks", "_shape", "_packed")


@dataclass(frozen=True)
class Catalogue:
    """A checkpoint, listed from its headers; no tensor has been read.

    Attributes:
        format: safetensors, torch or gguf.
        config: config.json, or what a GGUF file's metadata says, with `model_type` "gguf:llama" or the like.
        tensors: name -> entry. In the torch format an entry's offset counts from the beginning of its storage; use
            `locate` before reading.
        store: where the bytes come from.
    """

    format: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    store: Store
    _torch_files: Mapping[str, torch_zip.TorchFile] = field(default_factory=dict)
    _unlisted: frozenset[str] = frozenset()  # in a shard, but not in the index

    def locate(self, names: Iterable[str]) -> dict[str, TensorEntry]:
        """The named tensors' entries, with offsets from the beginning of their files.

        Raises:
            CheckpointError: a name is not in the checkpoint or not in its index, or a torch archive contradicts itself.
        """
        wanted = sorted(set(names))
        for name in wanted:
            if name not in self.tensors:
                raise CheckpointError(f"the tensor {name} is missing", where=self.store.description)
            if name in self._unlisted:
                raise CheckpointError(
                    f"the index does not name the tensor {name}, which is in {self.tensors[name].file}",
                    where=self.store.description,
                    do="the index and the shards are of different versions: fetch the whole checkpoint again",
                )
        if self.format != "torch":
            return {name: self.tensors[name] for name in wanted}
        found: dict[str, TensorEntry] = {}
        for file, header in self._torch_files.items():
            here = [name for name in wanted if self.tensors[name].file == file]
            found |= torch_zip.located(self.store, header, here)
        return {name: found[name] for name in wanted}


def open_checkpoint(store: Store, file: str | None = None) -> Catalogue:
    """List a checkpoint: safetensors before torch's own format before GGUF, single before sharded.

    Args:
        store: the folder, single file or repository.
        file: the one file to read, where the store has several checkpoints.

    Raises:
        CheckpointError: no weights in a format that is read here, several to choose from, a missing shard or
            config.json, a malformed file, an adapter alone, or a quantised checkpoint that is not read here.
    """
    format_, name, sharded = choose_weights(store, file)
    if format_ == "gguf":
        metadata, tensors = gguf.read_header(store, name)
        return Catalogue("gguf", gguf.config_of(metadata, f"{store.description}: {name}"), tensors, store)
    config = read_config(store)
    refuse_quantised(config, store.description)
    weight_map = safetensors.read_index(store, name) if sharded else {}
    shards = safetensors.shards_of(weight_map) or [name]
    torch_files = {shard: torch_zip.read_header(store, shard) for shard in shards} if format_ == "torch" else {}
    headers: dict[str, Mapping[str, TensorEntry]] = {shard: file.entries for shard, file in torch_files.items()} or {
        shard: safetensors.read_header(store, shard) for shard in shards
    }
    tensors = safetensors.join_shards(store, name, weight_map, headers) if sharded else dict(headers[name])
    unlisted = tensors.keys() - weight_map.keys() if sharded else set()
    return Catalogue(format_, config, tensors, store, torch_files, frozenset(unlisted))


def read_config(store: Store) -> dict[str, Any]:
    """config.json. Infinity and NaN, which JSON does not know but Python writes, become text.

    Raises:
        CheckpointError: it is missing, not JSON, or not an object.
    """
    where = f"{store.description}: config.json"
    try:
        config = json.loads(store.text("config.json"), parse_constant=str)
        json.dumps(config, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"config.json is not valid JSON ({error})", where=where, do="fetch it again") from None
    if not isinstance(config, dict):
        raise CheckpointError("config.json is not a JSON object", where=where)
    return config


def refuse_quantised(config: Mapping[str, Any], where: str) -> None:
    """Refuse a checkpoint whose config says that its weights are quantised.

    MXFP4 passes: its published models quantise the experts only, and `refuse_scaled` looks at the tensors themselves.

    Raises:
        CheckpointError: naming the method.
    """
    for part in (config, *(config.get(key) for key in ("text_config", "vision_config"))):
        if not isinstance(part, Mapping):
            continue
        quantisation = part.get("quantization_config") or part.get("compression_config")
        if not quantisation:
            continue
        method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else None
        if method != "mxfp4":
            raise CheckpointError(
                f"the checkpoint is quantised ({method or 'by an unnamed method'}), which is not read here",
                where=f"{where}: config.json: quantization_config",
                expected="weights stored as F32, F16, BF16 or FP8 without scales, or a GGUF file",
                do="use the original checkpoint that this one was quantised from, or a GGUF version of it",
            )


def refuse_scaled(names: Iterable[str], catalogue: Catalogue) -> None:
    """Refuse tensors that mean something only together with scales, or that are no floating-point numbers.

    Args:
        names: the tensors that will be read.

    Raises:
        CheckpointError: naming the tensor.
    """
    if catalogue.format == "gguf":
        return
    from headmaps.checkpoint.dtypes import WEIGHTS

    for name in names:
        scale = next((name + ending for ending in _SCALES if name + ending in catalogue.tensors), None)
        dtype = catalogue.tensors[name].dtype
        if scale or dtype not in WEIGHTS:
            fault = f"is quantised: its scales are in {scale}" if scale else f"is stored as {dtype}"
            raise CheckpointError(
                f"the tensor {name} {fault}, which is not read here",
                where=f"{catalogue.store.description}: {catalogue.tensors[name].file}",
                expected=f"weights stored as {', '.join(WEIGHTS)}, without scales",
                do="use the original checkpoint that this one was quantised from",
            )


def choose_weights(store: Store, file: str | None) -> tuple[str, str, bool]:
    """Format, file name, and whether that file is an index of shards.

    Raises:
        CheckpointError: no weights in a format that is read here, or several checkpoints to choose from.
    """
    files = store.files()
    if file is not None:
        return _chosen(store, file)
    if isinstance(store, LocalStore):
        store.refuse_outside(name + ending for _, name in _USUAL for ending in ("", ".index.json"))
    for format_, stem in _USUAL:
        if stem in files:
            return format_, stem, False
        if f"{stem}.index.json" in files:
            return format_, f"{stem}.index.json", True
        if format_ == "safetensors" and (other := _other_safetensors(store)):
            return format_, other, False
    found = [name for name in files if name.endswith(".gguf") and "/" not in name]
    if len(found) == 1:
        return "gguf", found[0], False
    if len(found) > 1:
        raise CheckpointError(
            f"there are {len(found)} GGUF files to choose from",
            where=store.description,
            expected="one checkpoint",
            do=f"name one of them: on the Hub as `file:` of the model's entry, on this machine as its `path`; "
            f"found: {', '.join(found[:8])}",
        )
    raise _nothing(store)


def _chosen(store: Store, file: str) -> tuple[str, str, bool]:
    if file not in store.files():
        near = [name for name in store.files() if name.endswith((".safetensors", ".gguf", *_PICKLES))][:8]
        raise CheckpointError(
            f"the file {file} is missing",
            where=store.description,
            expected=f"one of {', '.join(near)}" if near else "",
        )
    for format_, endings in (("gguf", (".gguf",)), ("safetensors", (".safetensors",)), ("torch", _PICKLES)):
        if file.endswith(endings):
            return format_, file, False
        if format_ != "gguf" and file.endswith(tuple(f"{ending}.index.json" for ending in endings)):
            return format_, file, True
    raise CheckpointError(
        f"{file} is not a checkpoint that is read here",
        where=store.description,
        expected="a .safetensors, .gguf or .bin file",
    )


def _other_safetensors(store: Store) -> str | None:
    """A safetensors file under another name than the usual one, if it is the only one."""
    names = [name for name in store.files() if name.endswith(".safetensors") and "/" not in name]
    names = [name for name in names if not name.startswith(_OTHER_LAYOUTS)]
    if len(names) > 1:
        raise CheckpointError(
            f"there are {len(names)} safetensors files and no model.safetensors.index.json",
            where=store.description,
            expected="model.safetensors, or the index of a sharded checkpoint",
            do="fetch the index file too: it says which tensor is in which file",
        )
    return names[0] if names else None


def _nothing(store: Store) -> CheckpointError:
    files = list(store.files())
    if "adapter_config.json" in files:
        return CheckpointError(
            "this is an adapter alone, not a model",
            where=store.description,
            expected="a checkpoint with the weights themselves",
            do="merge the adapter into its base model and save that, or analyse the base model",
        )
    return CheckpointError(
        "there are no weights in a format that is read here",
        where=store.description,
        expected="model.safetensors or pytorch_model.bin (single or sharded) with config.json, or one .gguf file",
        do=f"found: {', '.join(files[:12]) or 'nothing'}",
    )
