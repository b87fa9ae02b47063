"""Whole files from the Hub (`fetch: full`), each checked against the Hub's own hash and resumed where it stopped."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from headmaps.checkpoint.hub_environment import offline, resolve_revision
from headmaps.checkpoint.hub_progress import readable
from headmaps.checkpoint.hub_store import HubFile, HubStore
from headmaps.checkpoint.store import Store, safe_name
from headmaps.errors import DownloadError
from headmaps.records import sha256_of_file


def fetch_files_from_hub(spec: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Fetch config.json and the weights of a model's entry, whole, into `directory`.

    A file that is there already with the right bytes is kept. A file on its way is `.NAME.HASH.part`: the hash is the
    one the Hub gives for the whole, so a later run, also one of another process, resumes it by range and a file of
    another commit is never continued. Nothing takes its final name before its hash has been checked.

    Args:
        spec: `repo`, `revision` and, where the repository has several checkpoints, `file`.
        directory: where the files go, under their names in the repository; the commit that a branch or tag meant the
            first time is kept beside it.

    Returns:
        What files.json holds: {"repo", "commit", "files": {name: {"size", "sha256"}}}.

    Raises:
        DownloadError: see `headmaps.checkpoint.hub_errors`; also for a file whose bytes are not those of its hash.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    commit = resolve_revision(spec, memory=directory.parent / ".revision.json")
    store = HubStore(spec["repo"], commit)
    listing = _offline_listing(store) if offline() else store.listing()
    names = wanted_files(store, spec.get("file"))
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


def wanted_files(store: Store, file: str | None = None) -> list[str]:
    """config.json and the weights of a checkpoint, with the index of a sharded one.

    Args:
        file: the one to take where there are several checkpoints.

    Raises:
        CheckpointError: there are no weights in a format that is read here, or a shard of the index is missing.
    """
    from headmaps.checkpoint.catalogue import choose_weights
    from headmaps.checkpoint.formats.safetensors import read_index, shards_of

    _, name, sharded = choose_weights(store, file)
    weights = [name, *shards_of(read_index(store, name))] if sharded else [name]
    return [*(config for config in ("config.json",) if config in store.files()), *weights]


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
