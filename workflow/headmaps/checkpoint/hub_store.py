"""A repository on the Hugging Face Hub at one commit, as a `Store`: read by range, or from the local cache."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headmaps.checkpoint.hub_environment import cache_folder, check_repo, endpoint, offline, resolve_revision
from headmaps.checkpoint.hub_errors import explain
from headmaps.checkpoint.hub_progress import Progress, readable
from headmaps.checkpoint.ranges import RangeReader, coalesce
from headmaps.checkpoint.store import TEXT_LIMIT, LocalStore, safe_name
from headmaps.errors import CheckpointError, DownloadError, HeadmapsError

_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_SHOWN_FROM = 1 << 20  # smaller reads (headers, norms) are not worth a line


@dataclass(frozen=True)
class HubFile:
    """What the Hub says of one file: its size in bytes, and sha256 (large files) or git blob sha1 (small ones)."""

    size: int
    sha256: str | None
    blob_id: str | None

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` has exactly the bytes that the Hub's hash names."""
        if path.stat().st_size != self.size:
            return False
        digest = self._digest()
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return bool(digest.hexdigest() == (self.sha256 or self.blob_id))

    def matches_bytes(self, data: bytes) -> bool:
        """Whether `data` is exactly what the Hub's hash names."""
        digest = self._digest()
        digest.update(data)
        return len(data) == self.size and bool(digest.hexdigest() == (self.sha256 or self.blob_id))

    def _digest(self) -> Any:
        if self.sha256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


class HubStore:
    """The files of one repository at one commit (see `headmaps.checkpoint.store.Store`).

    Files that the local Hugging Face cache holds for this commit are read from there.

    Attributes:
        repo, commit: what is read.
        transferred: bytes of file content received from the network so far.
        requests: requests for file content made so far.
    """

    def __init__(self, repo: str, commit: str, *, check_cache: bool = False, label: str = "") -> None:
        """
        Args:
            repo: owner/name.
            commit: the full commit, see `resolve_revision`.
            check_cache: compare a file of the local cache with its hash before its first use. huggingface_hub does
                not: a file damaged on its way is trusted for ever.
            label: what is read, for the progress shown; by default the file's name.
        """
        self.repo, self.commit = check_repo(repo), commit
        self.description = f"{repo}@{commit}"
        self.provenance: Mapping[str, Any] = {"commit": commit}
        self.endpoint = endpoint()
        self._check_cache, self._label = check_cache, label
        self._checked: set[str] = set()
        self._listing: dict[str, HubFile] | None = None
        self._progress: Progress | None = None
        self._reader: RangeReader | None = None
        snapshot = cache_folder(self.repo) / "snapshots" / commit
        self._cache = LocalStore(snapshot) if snapshot.is_dir() else None

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], *, check_cache: bool = False) -> "HubStore":
        """Open the repository of a model's entry, or of a source record, whose `commit` is used as it is."""
        return cls(spec["repo"], spec.get("commit") or resolve_revision(spec), check_cache=check_cache)

    @property
    def transferred(self) -> int:
        return self._reader.transferred if self._reader else 0

    @property
    def requests(self) -> int:
        return self._reader.requests if self._reader else 0

    def files(self) -> dict[str, int]:
        """Every file's name and size in bytes: the Hub's listing, or offline what the cache holds.

        Raises:
            DownloadError: see `headmaps.checkpoint.hub_errors`.
        """
        if offline():
            if self._cache is None:
                raise self._offline("")
            return dict(self._cache.files())
        return {name: file.size for name, file in self.listing().items()}

    def listing(self) -> dict[str, HubFile]:
        """Every file with its size and hash, as the Hub lists them (asked once)."""
        if self._listing is None:
            from huggingface_hub import HfApi
            from huggingface_hub.hf_api import RepoFile

            with self.explained():
                entries = HfApi(endpoint=self.endpoint).list_repo_tree(self.repo, recursive=True, revision=self.commit)
                self._listing = {entry.path: self._described(entry) for entry in entries if isinstance(entry, RepoFile)}
        return self._listing

    def _described(self, entry: Any) -> HubFile:
        file = HubFile(
            entry.lfs.size if entry.lfs else entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id
        )
        if not _HASH.fullmatch(file.sha256 or file.blob_id or ""):  # it becomes part of a file name
            raise DownloadError(f"the Hub gives no hash for {entry.path}", where=self.description)
        return file

    def cached(self, name: str) -> Path | None:
        """The file in the local Hugging Face cache, if it is there for this very commit.

        Raises:
            CheckpointError: it is there but its bytes are not those of its hash (with `check_cache`).
        """
        if self._cache is None:
            return None
        path = self._cache.path / safe_name(name, where=self.description)
        if not path.is_file():
            return None
        if self._check_cache and name not in self._checked:
            self._check_cached(name, path)
            self._checked.add(name)
        return path

    def _check_cached(self, name: str, path: Path) -> None:
        expected = path.resolve().name  # the cache names its blobs by their hash: sha256, or git's sha1 for small files
        known = self._listing.get(name) if self._listing else None
        if known is None and path.is_symlink() and _HASH.fullmatch(expected):
            size = path.stat().st_size
            known = HubFile(size, expected, None) if len(expected) == 64 else HubFile(size, None, expected)
        if known is not None and not known.matches(path):
            raise CheckpointError(
                f"the local Hugging Face cache holds a damaged copy of {name}: its bytes are not those of its hash",
                where=str(path),
                do=f"delete {path.resolve()} and run again, or check the whole cache: hf cache verify {self.repo}",
            )

    def read(self, name: str, offset: int, length: int) -> bytes:
        """See `Store.read`."""
        (data,) = self.read_ranges(name, [(offset, length)])
        return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """See `Store.read_ranges`. Ranges with at most 64 KiB between them are fetched by one request."""
        if self._cache is not None and self.cached(name) is not None:
            yield from self._cache.read_ranges(name, ranges)
            return
        if offline():
            raise self._offline(name)
        if self._listing is not None and name not in self._listing:
            raise self._missing(name)
        size = self._listing[name].size if self._listing else None
        for offset, length in ranges:
            if offset < 0 or length < 0 or (size is not None and offset + length > size):
                raise CheckpointError(
                    f"{name} ends at byte {size}, but bytes {offset} to {offset + length} were wanted",
                    where=self.description,
                )
        spans = coalesce(ranges)
        total = sum(span.stop - span.start for span in spans)
        with self.showing(f"{self.repo} {self._label or name}", total):
            yield from self._fetched(name, ranges, size)

    def _fetched(self, name: str, ranges: Sequence[tuple[int, int]], size: int | None) -> Iterator[bytes]:
        """Fetch span by span, in file order; hand out in the order asked for."""
        ready = {index: b"" for index, (_, length) in enumerate(ranges) if length == 0}
        following = 0
        for span in coalesce(ranges):
            with self.explained(name):
                data = self.reader.read(self.url(name), span.start, span.stop, size)
            for index in span.members:
                offset, length = ranges[index]
                begin = offset - span.start
                ready[index] = data if length == len(data) else data[begin : begin + length]
            del data
            while following in ready:
                yield ready.pop(following)
                following += 1
        while following in ready:  # nothing but empty ranges
            yield ready.pop(following)
            following += 1

    def text(self, name: str) -> bytes:
        """See `Store.text`."""
        if self._cache is not None and self.cached(name) is not None:
            return self._cache.text(name)
        if offline():
            raise self._offline(name)
        known = self.listing().get(name)
        if known is None:
            raise self._missing(name)
        if known.size > TEXT_LIMIT:
            raise CheckpointError(
                f"{name} has {known.size} bytes; a file of this kind is small",
                where=self.description,
                expected="at most 64 MiB",
            )
        with self.explained(name):
            data = bytearray(known.size)
            for offset, piece in self.reader.stream(self.url(name), 0, known.size, known.size, whole=True):
                data[offset : offset + len(piece)] = piece
        if not known.matches_bytes(bytes(data)):
            raise DownloadError(
                f"{name} arrived damaged: its bytes are not those of the Hub's hash",
                where=self.description,
                do="run again",
            )
        return bytes(data)

    def url(self, name: str) -> str:
        """The address of a file at this commit."""
        return f"{self.endpoint}/{self.repo}/resolve/{self.commit}/{quote(safe_name(name, where=self.description))}"

    @property
    def reader(self) -> RangeReader:
        """The connection to the Hub, made when it is first needed."""
        if self._reader is None:
            from huggingface_hub import get_token

            self._reader = RangeReader(self.endpoint, get_token(), self.commit, self._arrived)
        return self._reader

    def report(self) -> str:
        """What has crossed the network, for the log."""
        return f"{self.description}: {readable(self.transferred)} received in {self.requests} requests"

    def _arrived(self, count: int) -> None:
        if self._progress is not None:
            self._progress.advance(count)

    @contextmanager
    def showing(self, label: str, total: int, done: int = 0) -> Iterator[None]:
        """Show the bytes that arrive inside as one download, if it is large enough to wait for."""
        if total < _SHOWN_FROM:
            yield
            return
        with Progress(label, total, done) as progress:
            self._progress = progress
            try:
                yield
            finally:
                self._progress = None

    @contextmanager
    def explained(self, name: str = "") -> Iterator[None]:
        """Turn whatever goes wrong inside into a message that says what to do."""
        try:
            yield
        except HeadmapsError:
            raise
        except Exception as error:
            files = self._listing or {}
            raise explain(
                error, endpoint=self.endpoint, repo=self.repo, revision=self.commit, name=name, files=files
            ) from None

    def _missing(self, name: str) -> CheckpointError:
        some = ", ".join(list(self.listing())[:12]) or "nothing"
        return CheckpointError(f"the file {name} is missing", where=self.description, expected=f"found there: {some}")

    def _offline(self, name: str) -> CheckpointError:
        from huggingface_hub.errors import OfflineModeIsEnabled

        error = explain(OfflineModeIsEnabled(), endpoint=self.endpoint, repo=self.repo, revision=self.commit, name=name)
        assert isinstance(error, CheckpointError)
        return error
