"""A Hub on loopback: enough of the Hugging Face Hub's protocol to drive the real huggingface_hub client, and to fail.

In a test:      with LocalHub() as hub: hub.repository("a/b").add({"config.json": b"{}"}); ... hub.endpoint ...
From a shell:   python tests/hub/server.py FOLDER --port 8787      then HF_ENDPOINT=http://127.0.0.1:8787

FOLDER holds one folder a repository, `owner/name`; further revisions are `owner/name@revision`. Large files are
served, after a redirect, by a second host (another port under another name), as the Hub's storage is.
"""

import argparse
import hmac
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs as a script too

from hub.repository import Content, Fault, Repository, Request

_ID = r"(?P<repo>[^/]+(?:/[^/]+)?)"
_RESOLVE = re.compile(rf"/{_ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_API = re.compile(
    r"/api/models/(?P<repo>[^/]+(?:/(?!revision/|tree/|refs$|paths-info/|auth-check$|discussions/)[^/]+)?)"
    r"(?:/(?P<what>revision|tree|refs|paths-info|auth-check|discussions)(?:/(?P<revision>[^/]+))?(?:/(?P<path>.+))?)?"
)
_INVALID_TOKEN = "Invalid credentials in Authorization header"


@dataclass
class _RefusedError(Exception):
    """An answer other than 200."""

    status: int
    code: str = ""
    text: str = ""


@dataclass
class LocalHub:
    """The server. Use it as a context manager, or `start` and `stop` it.

    Attributes:
        repositories: by name.
        renamed: old name -> new name, answered with a redirect that stays on the Hub.
        tokens: token -> names of the gated repositories whose conditions its owner accepted.
        faults: what goes wrong, first match first.
        log: every request.
        redirect: whether large files come from the second host.
        page: entries per page of a listing.
        at_once: how many bodies of large files are being sent; most_at_once: the most there ever were.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, set[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    log: list[Request] = field(default_factory=list)
    redirect: bool = True
    page: int = 1000
    at_once: int = 0
    most_at_once: int = 0
    endpoint: str = ""
    storage: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self._servers: list[ThreadingHTTPServer] = []
        self.signature = b"only known here"

    def repository(self, name: str) -> Repository:
        """The repository of that name, made if it does not exist."""
        return self.repositories.setdefault(name, Repository())

    def start(self, port: int = 0) -> "LocalHub":
        """Listen; `endpoint` is then the address of the Hub, `storage` that of the second host."""
        for host, wanted in (("hub", port), ("cdn", 0)):
            handler = type("Handler", (_Handler,), {"hub": self, "host": host})
            server = _Server(("127.0.0.1", wanted), handler)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self._servers.append(server)
        self.endpoint = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.storage = f"http://localhost:{self._servers[1].server_port}"
        return self

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()

    def __enter__(self) -> "LocalHub":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fault(self, kind: str, **details: Any) -> Fault:
        """Let something go wrong; see `Fault`."""
        fault = Fault(kind, **details)
        self.faults.append(fault)
        return fault

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Counts the bodies under way."""
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1

    def strike(self, method: str, path: str, host: str) -> Fault | None:
        with self.lock:
            return next((fault for fault in self.faults if fault.strikes(method, path, host)), None)

    def sent(self, suffix: str = "") -> int:
        """Body bytes of files sent so far, of those whose path ends in `suffix`."""
        files = (r for r in self.log if not r.path.startswith("/api/") and r.status in {200, 206})
        return sum(request.sent for request in files if request.path.endswith(suffix))

    def sign(self, name: str) -> str:
        return hmac.new(self.signature, name.encode(), "sha256").hexdigest()[:32]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests, not a reason for a traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: LocalHub
    host: str

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen = Request(self.host, self.command, unquote(parts.path), parts.query, dict(self.headers))
        with self.hub.lock:
            self.hub.log.append(self.seen)
        self.fault = self.hub.strike(self.command, self.seen.path, self.host)
        if self.fault and self.fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
            self.connection.close()
            return
        if self.fault and self.fault.kind == "stall":
            time.sleep(self.fault.after)
        if self.fault and self.fault.kind == "status":
            self._json(self.fault.status, {"error": self.fault.text}, self.fault.headers)
            return
        try:
            if self.host == "cdn":
                self._storage(parts.path, parts.query)
            else:
                self._hub(parts.path, parts.query)
        except _RefusedError as refusal:
            headers = {"X-Error-Message": refusal.text} if refusal.text else {}
            headers |= {"X-Error-Code": refusal.code} if refusal.code else {}
            self._json(refusal.status, {"error": refusal.text or refusal.code}, headers)

    # --- the Hub --------------------------------------------------------------------------------------------------

    def _hub(self, path: str, query: str) -> None:
        if path == "/_counts":
            self._json(200, {"requests": len(self.hub.log), "bytes": self.hub.sent()})
        elif match := _API.fullmatch(path):
            self._api(query, **match.groupdict())
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(**match.groupdict())
        else:
            raise _RefusedError(404)

    def _open(self, name: str) -> Repository:
        if name in self.hub.renamed:
            new = self.seen.path.replace(name, self.hub.renamed[name], 1)
            self._send(307, b"", {"Location": quote(new) + (f"?{self.seen.query}" if self.seen.query else "")})
            raise ConnectionAbortedError
        repository, token = self.hub.repositories.get(name), self._token()
        if token is not None and token not in self.hub.tokens:
            raise _RefusedError(401, "", _INVALID_TOKEN)
        if repository is None or (repository.private and token is None):
            raise _RefusedError(404 if token else 401, "RepoNotFound", "Repository not found")
        return repository

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _files(self, repository: Repository, revision: str) -> tuple[str, dict[str, Content]]:
        commit = repository.commit(unquote(revision))
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        return commit, repository.commits[commit]

    def _api(self, query: str, repo: str, what: str | None, revision: str | None, path: str | None) -> None:
        name = unquote(repo)
        try:
            repository = self._open(name)
        except ConnectionAbortedError:
            return
        if what == "refs":
            self._json(200, self._refs(repository))
            return
        if what == "auth-check":
            self._check_gate(repository, name)
            self._json(200, {})
            return
        if what == "discussions":
            self._json(200, self._discussion(repository, name, int(revision or 0)))
            return
        commit, files = self._files(repository, revision or "main")
        if what == "tree":
            self._tree(name, files, parse_qs(query), commit, unquote(path or ""))
        elif what == "paths-info":
            wanted = {unquote(value) for value in parse_qs(self.body.decode()).get("paths", [])}
            self._json(200, [file.listed(path) for path, file in files.items() if path in wanted])
        else:
            blobs = "blobs" in parse_qs(query)
            siblings = [self._sibling(path, file, blobs) for path, file in files.items()]
            gated = "auto" if repository.gated else False
            self._json(
                200, {"id": name, "sha": commit, "private": repository.private, "gated": gated, "siblings": siblings}
            )

    @staticmethod
    def _sibling(path: str, file: Content, blobs: bool) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": path}
        if blobs:
            entry |= {"size": file.size, "blobId": file.blob_id}
            if file.lfs:
                entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
        return entry

    @staticmethod
    def _discussion(repository: Repository, name: str, number: int) -> dict[str, object]:
        if number not in repository.pull_requests:
            raise _RefusedError(404, "", "Discussion not found")
        author, title = repository.pull_requests[number]
        return {
            "num": number, "title": title, "author": {"name": author}, "status": "open", "isPullRequest": True,
            "createdAt": "2023-06-21T15:35:31.000Z", "repo": {"name": name, "type": "model"}, "events": [],
            "changes": {"base": "refs/heads/main"}, "filesWithConflicts": [],
        }  # fmt: skip

    @staticmethod
    def _refs(repository: Repository) -> dict[str, list[dict[str, str]]]:
        refs: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": [], "pullRequests": []}
        for name, commit in repository.refs.items():
            if name.startswith("refs/pr/"):
                refs["pullRequests"].append({"name": name, "ref": name, "targetCommit": commit})
            else:
                refs["branches"].append({"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit})
        return refs

    def _tree(self, name: str, files: dict[str, Content], query: dict[str, list[str]], commit: str, under: str) -> None:
        listed = [file.listed(path) for path, file in files.items() if not under or path.startswith(f"{under}/")]
        start = int(query.get("cursor", ["0"])[0])
        stop = start + self.hub.page
        headers = {}
        if stop < len(listed):
            following = f"{self.hub.endpoint}/api/models/{name}/tree/{commit}?recursive=true&cursor={stop}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._json(200, listed[start:stop], headers)

    def _check_gate(self, repository: Repository, name: str) -> None:
        token = self._token()
        if repository.gated and (token is None or name not in self.hub.tokens.get(token, set())):
            text = f"Access to model {name} is restricted. You must have access to it and be authenticated."
            raise _RefusedError(401 if token is None else 403, "GatedRepo", text)

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        name, path = unquote(repo), unquote(path)
        try:
            repository = self._open(name)
        except ConnectionAbortedError:
            return
        self._check_gate(repository, name)
        commit, files = self._files(repository, revision)
        if path not in files:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        file = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
            if self.hub.redirect:
                target = f"/{name}/{commit}/{path}"
                headers["Location"] = f"{self.hub.storage}{quote(target)}?X-Amz-Signature={self.hub.sign(target)}"
                self._send(302, b"", headers)
                return
        self._file(file, headers)

    # --- the storage host -----------------------------------------------------------------------------------------

    def _storage(self, path: str, query: str) -> None:
        if "Authorization" in self.headers:
            raise _RefusedError(400, "", "Only one auth mechanism allowed")  # as real storage answers
        target = unquote(path)
        if parse_qs(query).get("X-Amz-Signature") != [self.hub.sign(target)]:
            raise _RefusedError(403, "", "Request has expired")
        for name, repository in self.hub.repositories.items():
            for commit, files in repository.commits.items():
                prefix = f"/{name}/{commit}/"
                if target.startswith(prefix):
                    with self.hub.sending():
                        self._file(files[target.removeprefix(prefix)], {"ETag": '"storage"'})
                    return
        raise _RefusedError(404)

    # --- answers --------------------------------------------------------------------------------------------------

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self._send(status, body, {"Content-Type": "application/json"} | (headers or {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        if self.fault and self.fault.kind == "extra":
            headers = headers | self.fault.headers
        self.seen.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _file(self, file: Content, headers: dict[str, str]) -> None:
        kind = self.fault.kind if self.fault else ""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop, status = 0, file.size, 200
        if match and kind != "whole":
            start, stop = int(match[1]), min(int(match[2]) + 1 if match[2] else file.size, file.size)
            if start >= file.size:
                self._send(416, b"", {"Content-Range": f"bytes */{file.size}"})
                return
            shift, more = int(kind == "shifted"), int(kind == "total")
            headers = headers | {"Content-Range": f"bytes {start + shift}-{stop - 1 + shift}/{file.size + more}"}
            status = 206
        if kind == "gzip":
            headers = headers | {"Content-Encoding": "gzip"}
        self._head(status, stop - start, headers | {"Accept-Ranges": "bytes"})
        if self.command != "HEAD":
            self._body(file, start, stop)

    def _body(self, file: Content, start: int, stop: int) -> None:
        kind, after = (self.fault.kind, self.fault.after) if self.fault else ("", 0)
        end = min(stop, start + after) if kind == "cut" else stop
        at = start
        for block in file.read(start, end):
            data = block
            if kind == "flip" and at <= start + after < at + len(block):
                changed = bytearray(block)
                changed[start + after - at] ^= 1
                data = bytes(changed)
            if kind == "slow":
                time.sleep(after / 1000)
            self.wfile.write(data)
            self.seen.sent += len(data)
            at += len(block)
        if end < stop:
            self.close_connection = True


def main() -> None:
    """Serve a folder until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8787)
    parser.add_argument(
        "--fault", action="append", default=[], type=json.loads, help='e.g. {"kind": "cut", "after": 9}'
    )
    parser.add_argument("--token", action="append", default=[], help="a valid token (accepts every gated repository)")
    parser.add_argument("--gated", action="append", default=[], help="a repository that is gated")
    arguments = parser.parse_args()
    hub = LocalHub(faults=[Fault(**fault) for fault in arguments.fault])
    for folder in sorted(arguments.folder.glob("*/*")):
        name, _, revision = folder.relative_to(arguments.folder).as_posix().partition("@")
        hub.repository(name).add_folder(folder, unquote(revision) or "main")
        hub.repository(name).gated = name in arguments.gated
    hub.tokens = {token: set(hub.repositories) for token in arguments.token}
    hub.start(arguments.port)
    print(f"HF_ENDPOINT={hub.endpoint}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        hub.stop()


if __name__ == "__main__":
    main()
