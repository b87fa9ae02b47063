"""`headmaps entry`: the config entry of a checkpoint, to paste, and what will be fetched and found in it."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headmaps.checkpoint.catalogue import Catalogue, open_checkpoint, refuse_scaled
from headmaps.checkpoint.hub import HubStore, pull_request, resolve_revision
from headmaps.checkpoint.sources import file_of
from headmaps.checkpoint.store import LocalStore, Store
from headmaps.config import RESERVED_NAMES, read_config
from headmaps.errors import ArchitectureError, ConfigError, DownloadError
from headmaps.geometry import Geometry

_CHOICES = [{"stack": stack} for stack in ("encoder", "decoder", "cross")]
_CHOICES += [{"tower": tower} for tower in ("text", "vision")]
_CONVERTER = "SFconvertbot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    parser.add_argument(
        "checkpoint",
        metavar="hub:REPO[@REVISION] | PATH",
        help="a repository on the Hub at a commit, branch, tag or refs/pr/N; or a folder or .gguf file",
    )
    parser.add_argument("--name", help="the model's name, by default from the repository or folder")
    parser.add_argument("--file", help="of a repository or folder with several checkpoints: the one to read")
    parser.add_argument("--stack", choices=["encoder", "decoder", "cross"], help="of an encoder-decoder")
    parser.add_argument("--tower", choices=["text", "vision"], help="of a multimodal model")


def run(arguments: argparse.Namespace) -> int:
    """Print the entry as YAML that is a whole configuration, with what was found as comments.

    Raises:
        HeadmapsError: the checkpoint cannot be reached, read, or is of no known architecture.
    """
    spec, store, remarks = _opened(arguments.checkpoint, arguments.file)
    catalogue = open_checkpoint(store, file_of(spec, store))
    chosen = {key: getattr(arguments, key) for key in ("stack", "tower") if getattr(arguments, key)}
    name = arguments.name or _name(arguments.checkpoint)
    print(f"# {store.description}")
    for remark in remarks:
        print(f"# {remark}")
    found = list(_readings(catalogue, chosen))
    print("models:")
    for choice, geometry, tensor_bytes in found:
        label = "-".join([name, *choice.values()]) if len(found) > 1 else name
        entry = {"name": label, "layers": _layers(geometry), **spec, **choice}
        if geometry.matrices != ["value", "qk"]:
            entry["matrices"] = geometry.matrices
        read_config({"models": [entry]})  # what is printed is what the workflow accepts
        for line in [_summary(geometry), _amount(spec, store, catalogue, tensor_bytes), *geometry.notes]:
            print(f"  # {line}")
        print(f"  - {_yaml(entry)}")
    if not isinstance(store, LocalStore):
        print(store.report(), file=sys.stderr)
    return 0


def _opened(checkpoint: str, file: str | None) -> tuple[dict[str, Any], LocalStore | HubStore, list[str]]:
    """The source part of the entry, the store behind it, and what to say about the choice."""
    if not checkpoint.startswith("hub:"):
        path = os.path.abspath(os.path.expanduser(checkpoint))
        if not os.path.exists(path) and re.fullmatch(r"[\w.-]+/[\w.-]+(@.+)?", checkpoint):
            raise ConfigError(
                f"there is no folder or file {checkpoint}",
                expected="hub:REPO[@REVISION], or the path of a folder or a .gguf file",
                do=f"for the repository of that name on the Hub: headmaps entry hub:{checkpoint}",
            )
        path = os.path.join(path, file) if file else path
        return {"source": "local", "path": path}, LocalStore(Path(path)), []
    repo, _, revision = checkpoint.removeprefix("hub:").partition("@")
    commit = resolve_revision({"repo": repo, "revision": revision or "main"})
    remarks = [] if commit == revision else [f"{revision or 'main'} is now commit {commit}"]
    if match := re.fullmatch(r"refs/pr/(\d+)", revision):
        remarks.append(_proposal(repo, int(match[1])))
    spec = {"source": "hub", "repo": repo, "revision": commit} | ({"file": file} if file else {})
    return spec, HubStore(repo, commit), remarks


def _proposal(repo: str, number: int) -> str:
    """Who stands behind a pull request: the Hub's own conversions are pull requests, and so is anything else."""
    try:
        author, title = pull_request(repo, number)
    except DownloadError:  # a mirror of the Hub without discussions
        return f"refs/pr/{number} is by somebody of whom the server says nothing"
    if author == _CONVERTER:
        return f"refs/pr/{number} is by {author}, the Hub's converter: {title}"
    return f"refs/pr/{number} is by {author}, not by the repository's owner and not by the Hub's converter: {title}"


def _readings(catalogue: Catalogue, chosen: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Geometry, int]]:
    """The choice, geometry and bytes to read of the model, or of each of its stacks or towers that can be read."""
    try:
        yield (chosen, *_reading(catalogue, chosen))
        return
    except ArchitectureError:
        if chosen:
            raise
        found = []
        for choice in _CHOICES:
            try:
                found.append((choice, *_reading(catalogue, choice)))
            except ArchitectureError:
                continue  # it has no such stack or tower, or one that is not in the table
        if not found:
            raise
    yield from found


def _reading(catalogue: Catalogue, choice: Mapping[str, str]) -> tuple[Geometry, int]:
    from headmaps.architectures import attention_layers, geometry_of, tensors_needed

    layers = attention_layers(catalogue.config, **choice)
    needed = tensors_needed(catalogue.config, list(catalogue.tensors), layers, **choice)
    shared = sorted(set(needed["shared"].values()))
    by_layer = {layer: sorted(set(roles.values())) for layer, roles in needed["layers"].items()}
    names = sorted({*shared, *(name for names in by_layer.values() for name in names)})
    refuse_scaled(names, catalogue)
    described = {name: catalogue.tensors[name].to_json() for name in names}
    source = {
        "config": dict(catalogue.config),
        "layers": {str(layer): {name: described[name] for name in names} for layer, names in by_layer.items()},
        "shared": {name: described[name] for name in shared},
        **choice,
    }
    return geometry_of(source), sum(catalogue.tensors[name].nbytes for name in names)


def _layers(geometry: Geometry) -> int | list[int]:
    """A number, or the list of layers where some have no softmax attention."""
    return geometry.n_layers if geometry.layers == list(range(geometry.n_layers)) else geometry.layers


def _summary(g: Geometry) -> str:
    heads = f"{g.n_heads} heads" + (f" on {g.n_kv_heads} key/value heads" if g.n_kv_heads != g.n_heads else "")
    layers = f"{len(g.layers)} layers" if len(g.layers) == g.n_layers else f"{len(g.layers)} of {g.n_layers} layers"
    part = "".join(f", {value}" for value in (g.stack, g.tower) if value)
    return (
        f"{g.model_type}{part}: {layers}, d_model {g.d_model}, {heads} of d_head {g.d_head}, stored as {g.dtype}, "
        f"position {g.position.scheme}"
    )


def _amount(spec: Mapping[str, Any], store: Store, catalogue: Catalogue, tensor_bytes: int) -> str:
    """What has to be read, against the whole checkpoint."""
    from headmaps.checkpoint.hub_progress import readable

    sizes = store.files()
    weights = sum(sizes.get(file, 0) for file in {entry.file for entry in catalogue.tensors.values()})
    share = f"{readable(tensor_bytes)} of {readable(weights)}"
    if spec["source"] == "local":
        return f"reads {share}"
    return f"fetches {share}; with `fetch: full` everything, checked against the Hub's sha256"


def _name(checkpoint: str) -> str:
    """A name for the model, from the last part of the repository's name or of the path."""
    if checkpoint.startswith("hub:"):
        last = checkpoint.removeprefix("hub:").partition("@")[0].rpartition("/")[2]
    else:
        path = Path(checkpoint).absolute()
        last = path.stem if path.is_file() else path.name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip(".") or "model"
    return f"{name}-model" if name in RESERVED_NAMES else name


def _yaml(entry: Mapping[str, Any]) -> str:
    """One line of YAML; whatever could be taken for a number is quoted."""
    import yaml

    return str(yaml.safe_dump(dict(entry), default_flow_style=True, sort_keys=False, width=10_000)).strip()
