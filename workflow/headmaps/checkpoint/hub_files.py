"""Whole files from the Hub (`fetch: full`), each checked against the Hub's own hash and resumed where it stopped."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from headmaps.checkpoint.hub_environment import offline, resolve_revision
from headmaps.checkpoint.hub_progress import readable
from headmaps.checkpoint.hub_store import HubFile, HubStore
from headmaps.checkpoint.store import safe_name
from headmaps.errors import CheckpointError, DownloadError
from headmaps.records import sha256_of_file


def fetch_files_from_hub(spec: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Fetch config.json and the weights of a model's entry, whole, into `directory`.

    A file that is there already with the right bytes is kept. A file on its way is `.NAME.HASH.part`: the hash is the
    one the Hub gives for the whole, so a later run, also one of another process, resumes it by range and a file of
    another commit is never continued. Nothing takes its final name before its hash has been checked.

    Args:
        spec: `repo` and `revision`.
        directory: where the files go, under their names in the repository.

    Returns:
        What files.json holds: {"repo", "commit", "files": {name: {"size", "sha256"}}}.

    Raises:
        DownloadError: see `headmaps.checkpoint.hub_errors`; also for a file whose bytes are not those of its hash.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    commit = resolve_revision(spec, memory=directory / ".revision.json")
    store = HubStore(spec["repo"], commit)
    listing = _offline_listing(store) if offline() else store.listing()
    names = wanted_files(store, {name: file.size for name, file in listing.items()})
    files = {}
    missing = [name for name in names if not _is_kept(directory / name, listing[name])]
    total = sum(listing[name].size for name in names)
    done = total - sum(listing[name].size - _part_size(directory, name, listing[name]) for name in missing)
    with store.explained():
        _check_space(directory, total - done)
    with store.showing(f"{store.repo}", total, done) if missing else contextlib.nullcontext():
        for name in missing:
            with store.explained(name):
                _fetch(store, name, listing[name], directory)
    for name in names:
        file = listing[name]
        files[name] = {"size": file.size, "sha256": file.sha256 or sha256_of_file(directory / name)}
    return {"repo": store.repo, "commit": commit, "files": files}


def wanted_files(store: HubStore, sizes: Mapping[str, int]) -> list[str]:
    """config.json and the weights of a repository: safetensors before pickles before GGUF, single or sharded.

    Args:
        store: read for the index of a sharded checkpoint.
        sizes: the repository's files.

    Raises:
        CheckpointError: there are no weights in a format that is read here, or a shard of the index is missing.
    """
    config = [name for name in ("config.json",) if name in sizes]
    for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin")):
        single, index = f"{stem}{suffix}", f"{stem}{suffix}.index.json"
        if single in sizes:
            return [*config, single]
        if index in sizes:
            shards = shards_of(store.text(index), where=f"{store.description}: {index}")
            absent = [shard for shard in shards if shard not in sizes]
            if absent:
                raise CheckpointError(
                    f"{index} names {len(absent)} file(s) that the repository lacks: {', '.join(absent[:5])}",
                    where=store.description,
                    do="the upload is incomplete: choose another revision",
                )
            return [*config, index, *shards]
    gguf = [name for name in sizes if name.endswith(".gguf") and "/" not in name]
    if len(gguf) == 1:
        return [*config, *gguf]
    raise CheckpointError(
        f"{store.repo} has {'several GGUF files' if gguf else 'no weights in a format that is read here'}",
        where=store.description,
        expected="model.safetensors or pytorch_model.bin (single or sharded), or one .gguf file",
        do=f"found: {', '.join(gguf or list(sizes)[:12])}; a single file can be used with `source: local`",
    )


def shards_of(index: bytes, *, where: str) -> list[str]:
    """The distinct files that an index of a sharded checkpoint names, each a plain relative path.

    Raises:
        CheckpointError: the index is not JSON with a `weight_map`, or names a path that leaves its folder.
    """
    try:
        shards = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError("the index of the checkpoint is not JSON with a weight_map", where=where) from None
    return sorted(safe_name(str(shard), where=where) for shard in shards)


def _is_kept(path: Path, file: HubFile) -> bool:
    return path.is_file() and not path.is_symlink() and file.matches(path)


def _part(directory: Path, name: str, file: HubFile) -> Path:
    path = directory / safe_name(name, where=str(directory))
    return path.with_name(f".{path.name}.{(file.sha256 or file.blob_id or '')[:16]}.part")


def _part_size(directory: Path, name: str, file: HubFile) -> int:
    part = _part(directory, name, file)
    return min(part.stat().st_size, file.size) if part.is_file() else 0


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DownloadError(
            f"the files still to be fetched need {readable(needed)}, but the disk has {readable(free)} left",
            where=str(directory),
            do="free some space, or fetch only the attention tensors: remove `fetch: full` from the model's entry",
        )


def _fetch(store: HubStore, name: str, file: HubFile, directory: Path) -> None:
    """Bring one file in, check its hash, and give it its name."""
    path, part = directory / safe_name(name, where=store.description), _part(directory, name, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "ab+") as stream, _alone(stream, part):
        if cached := store.cached(name):
            with open(cached, "rb") as source:
                stream.truncate(0)
                shutil.copyfileobj(source, stream, 1 << 20)
        for attempt in range(2):
            _append(store, name, file, stream)
            stream.flush()
            os.fsync(stream.fileno())
            if file.matches(part):
                os.replace(part, path)
                return
            stream.truncate(0)  # a damaged part must not be resumed by anybody
            if attempt == 0:
                print(f"{name} arrived damaged (its hash is not the Hub's): fetching it once more", flush=True)
    part.unlink(missing_ok=True)
    raise DownloadError(
        f"{name} arrived damaged twice: its bytes are not those of the Hub's hash",
        where=store.description,
        expected=f"sha256 {file.sha256}" if file.sha256 else f"git blob {file.blob_id}",
        do="run again; if it stays so, a proxy or the server alters the file",
    )


def _append(store: HubStore, name: str, file: HubFile, stream: BinaryIO) -> None:
    """Fetch what is missing behind the bytes that `stream`, opened for appending, has."""
    have = stream.seek(0, os.SEEK_END)
    if have > file.size:
        have = stream.truncate(0)
    position = have
    for offset, piece in store.reader.stream(store.url(name), have, file.size, file.size, whole=True):
        if offset != position:  # the server knows no ranges and began again
            stream.truncate(offset)
        stream.write(piece)
        position = offset + len(piece)


@contextlib.contextmanager
def _alone(stream: BinaryIO, part: Path) -> Iterator[None]:
    """Keep a second process from writing the same part. Where the file system has no locks, its hash is the guard."""
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DownloadError(
            "another process is fetching this file", where=str(part), do="wait for it, or end it, and run again"
        ) from None
    except OSError:
        pass
    yield


def _offline_listing(store: HubStore) -> dict[str, HubFile]:
    """The files that the local cache holds, with the hashes that it names its blobs by."""
    listing = {}
    for name, size in store.files().items():
        path = store.cached(name)
        blob = path.resolve().name if path else ""
        if path and re.fullmatch(r"[0-9a-f]{64}", blob):
            listing[name] = HubFile(size, blob, None)
        elif path and re.fullmatch(r"[0-9a-f]{40}", blob):
            listing[name] = HubFile(size, None, blob)
        elif path:  # a cache without links keeps no hashes
            listing[name] = HubFile(size, sha256_of_file(path), None)
    return listing
