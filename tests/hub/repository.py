"""The contents of the local Hub: repositories, their commits and files, and the faults to be injected."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".h5")


class Content:
    """One file: its bytes in memory or on disk (a sparse file is as good as any), and the hashes the Hub gives."""

    def __init__(self, source: bytes | Path, *, lfs: bool, sha256: str | None = None) -> None:
        """
        Args:
            source: the bytes, or the file that has them.
            lfs: whether the Hub keeps it as a large file (then it is named by sha256 and served by the second host).
            sha256: said to be its hash, without reading it; for huge sparse files that nobody fetches whole.
        """
        self.source, self.lfs, self._given = source, lfs, sha256

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def read(self, start: int, stop: int, block: int = 1 << 20) -> Iterator[bytes]:
        """The bytes from `start` to `stop`, in blocks."""
        if isinstance(self.source, bytes):
            for at in range(start, stop, block):
                yield self.source[at : min(at + block, stop)]
            return
        with open(self.source, "rb") as stream:
            stream.seek(start)
            while start < stop:
                data = stream.read(min(block, stop - start))
                start += len(data)
                yield data

    @cached_property
    def sha256(self) -> str:
        if self._given:
            return self._given
        digest = hashlib.sha256()
        for block in self.read(0, self.size):
            digest.update(block)
        return digest.hexdigest()

    @cached_property
    def blob_id(self) -> str:
        """Git's name of the blob: of the file itself, or of the pointer that stands for a large file."""
        if self.lfs:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
            return hashlib.sha1(b"blob %d\0" % len(pointer) + pointer.encode()).hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % self.size)
        for block in self.read(0, self.size):
            digest.update(block)
        return digest.hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id

    def listed(self, path: str) -> dict[str, object]:
        """As the tree endpoint lists it."""
        entry: dict[str, object] = {"type": "file", "oid": self.blob_id, "size": self.size, "path": path}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return entry


@dataclass
class Repository:
    """One model repository.

    Attributes:
        commits: full commit -> path -> content.
        refs: branch, tag or `refs/pr/N` -> full commit.
        pull_requests: number -> author and title; their commits are `refs/pr/N` in `refs`.
        gated: files only for tokens that accepted; private: nothing at all without a token.
    """

    commits: dict[str, dict[str, Content]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pull_requests: dict[int, tuple[str, str]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, revision: str) -> str | None:
        """The full commit of a revision, if there is one."""
        return revision if revision in self.commits else self.refs.get(revision)

    def add(
        self, files: Mapping[str, bytes | Path | Content], revision: str = "main", commit: str | None = None
    ) -> str:
        """Add a commit, point `revision` to it, and return its full name (by default a hash of the contents)."""
        contents = {
            name: file if isinstance(file, Content) else Content(file, lfs=name.endswith(LFS_SUFFIXES))
            for name, file in sorted(files.items())
        }
        if commit is None:
            digest = hashlib.sha1()
            for name, content in contents.items():
                digest.update(f"{name}\0{content.size}\0{content.etag}\0".encode())
            commit = digest.hexdigest()
        self.commits[commit] = contents
        self.refs[revision] = commit
        return commit

    def add_folder(self, folder: Path, revision: str = "main", commit: str | None = None) -> str:
        """Add every file of a folder as a commit. A file `.commit` there holds the name that the commit shall have."""
        named = folder / ".commit"
        if commit is None and named.exists():
            commit = named.read_text().strip()
        files: dict[str, bytes | Path | Content] = {}
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory, name)
                if path != named:
                    files[path.relative_to(folder).as_posix()] = path
        return self.add(files, revision, commit)


@dataclass
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: `status` (answer with `status`), `reset` (close the connection before answering), `cut` (close it after
            `after` bytes of the body), `flip` (one byte of the body, `after` bytes in), `whole` (ignore Range: 200
            with everything), `shifted` (another Content-Range than asked), `total` (another file size in
            Content-Range), `gzip` (claim a compressed body), `stall` (send nothing for `after` seconds), `slow`
            (`after` milliseconds before every MiB), `extra` (only add `headers`).
        path: pattern of the URL path, without the query.
        method: HEAD, GET, POST or *.
        host: `hub`, `cdn` or *.
        times: how often it happens; -1 for ever.
    """

    kind: str
    path: str = "*"
    method: str = "*"
    host: str = "*"
    times: int = 1
    status: int = 503
    after: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str = "injected fault"

    def strikes(self, method: str, path: str, host: str) -> bool:
        """Whether it happens to this request; counts down if so."""
        fits = fnmatchcase(path, self.path) and fnmatchcase(method, self.method) and fnmatchcase(host, self.host)
        if not fits or self.times == 0:
            return False
        self.times -= 1
        return True


@dataclass
class Request:
    """One request as it came in, and what was answered."""

    host: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0
