"""Bytes over HTTP, by range: joined into few requests, checked, retried, and counted.

A server can answer a range request wrongly in several quiet ways: with the whole file (a CDN that compresses
ignores `Range`), with fewer bytes than it promised, with another range. Every answer is therefore asked for
uncompressed and must be a 206 whose Content-Range, length and file size are the ones expected.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from headmaps.errors import DownloadError

GAP = 64 << 10
"""Neighbouring ranges with at most this many unwanted bytes between them become one request."""

SPAN = 64 << 20
"""Joined requests stay below this size, so that memory holds little more than the largest tensor."""

RETRIES = 5
LONGEST_WAIT = 600
"""Seconds. A server that asks for a longer pause ends the run with a message instead of a silent wait."""

_PROGRESS = 1 << 20  # an attempt that brought this many bytes is not a failure: the count of retries starts again
_REDIRECTS = {301, 302, 303, 307, 308}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

pause = time.sleep

T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """One request: bytes `start` to `stop` (exclusive), and the indices of the ranges that lie in it."""

    start: int
    stop: int
    members: tuple[int, ...]


def coalesce(ranges: Sequence[tuple[int, int]], gap: int = GAP, limit: int = SPAN) -> list[Span]:
    """Join (offset, length) ranges that lie close together into spans, in file order.

    Args:
        ranges: offset and length in bytes; they may overlap; empty ones belong to no span.
        gap: the most unwanted bytes to read between two ranges for the sake of one request less.
        limit: the most bytes of a joined span (a single longer range stays one span).
    """
    spans: list[Span] = []
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        start, length = ranges[index]
        stop = start + length
        if length == 0:
            continue
        if spans:
            last = spans[-1]
            joined = max(last.stop, stop)
            if start <= last.stop + gap and (stop <= last.stop or joined - last.start <= limit):
                spans[-1] = Span(last.start, joined, (*last.members, index))
                continue
        spans.append(Span(start, stop, (index,)))
    return spans


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL: what has to be the same for a token to be sent along."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


class _Retry(Exception):  # noqa: N818 - a signal to the loop below, never seen outside
    def __init__(self, error: Exception, after: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.after = error, after

    def wait(self, failures: int) -> None:
        """Pause before the next attempt, longer after each failure, or raise the error when there were enough."""
        if failures > RETRIES:
            raise self.error from None
        pause(min(2.0 ** (failures - 1), 16.0) if self.after is None else self.after)


class RangeReader:
    """Reads ranges of files of one server, following its redirects; the token goes to this server alone.

    Attributes:
        transferred: bytes of file content received so far, including any received twice.
        requests: requests made so far, redirects included.
    """

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        commit: str | None = None,
        arrived: Callable[[int], object] = lambda count: None,
    ) -> None:
        """
        Args:
            endpoint: the server, `https://huggingface.co`.
            token: sent to the endpoint's own scheme, host and port, and nowhere else.
            commit: where the server names the commit it serves, it has to be this one.
            arrived: called with the number of bytes of every piece received.
        """
        self.endpoint, self.token, self.commit, self.arrived = endpoint, token, commit, arrived
        self.transferred = 0
        self.requests = 0
        self._locations: dict[str, str] = {}  # where the server last sent us for a file, good for some minutes

    def stream(
        self, url: str, start: int, stop: int, size: int | None = None, *, whole: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) pieces that cover `start` to `stop` of the file at `url`, in order.

        Broken connections, short bodies, 429 and 5xx are retried with growing pauses, from the byte where the last
        attempt ended.

        Args:
            size: the file's size in bytes; an answer that names another one is an error.
            whole: the caller wants the whole file, so that a server without ranges will do; the pieces then start
                again at offset 0.

        Raises:
            DownloadError: the answer is not the one asked for.
            Exception: what huggingface_hub raises for a status or a connection, after the last retry.
        """
        position, mark, failures = start, start, 0
        while position < stop:
            try:
                with self._open(url, position, stop) as response:
                    position = self._checked_start(response, position, stop, size, whole)
                    for piece in response.iter_raw():
                        if position + len(piece) > stop:
                            raise DownloadError("the server sent more bytes than it was asked for", where=_shown(url))
                        self.transferred += len(piece)
                        self.arrived(len(piece))
                        yield position, piece
                        position += len(piece)
                if position < stop:
                    raise _Retry(DownloadError(f"the answer ended {stop - position} bytes early", where=_shown(url)))
            except Exception as error:
                retry = _as_retry(error)
                if retry is None:
                    raise
                self._locations.pop(url, None)
                failures = 1 if position - mark >= _PROGRESS else failures + 1
                mark = position
                retry.wait(failures)

    def read(self, url: str, start: int, stop: int, size: int | None = None) -> bytes:
        """Bytes `start` to `stop` of the file at `url`; as `stream`."""
        return b"".join(piece for _, piece in self.stream(url, start, stop, size))

    @contextmanager
    def _open(self, url: str, start: int, stop: int) -> Iterator[Any]:
        """The response to a GET of a range, redirects followed by hand: only so is it certain where the token goes."""
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        current = self._locations.get(url, url)
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        for _ in range(10):
            home = origin(current) == origin(self.endpoint)
            credentials = {"Authorization": f"Bearer {self.token}"} if home and self.token else {}
            self.requests += 1
            with get_session().stream(
                "GET",
                current,
                headers=headers | credentials,
                follow_redirects=False,
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            ) as response:
                served = response.headers.get("X-Repo-Commit")
                if home and self.commit and served and served != self.commit:
                    raise DownloadError(
                        f"the server answered with commit {served}", where=_shown(url), expected=self.commit
                    )
                if response.status_code not in _REDIRECTS or "Location" not in response.headers:
                    self._check_status(response, home)
                    if current != url:
                        self._locations[url] = current
                    yield response
                    return
                response.read()  # an unread body would close the connection instead of leaving it for the next request
                following = urljoin(current, response.headers["Location"])
                if urlsplit(current).scheme == "https" and urlsplit(following).scheme != "https":
                    raise DownloadError("the server redirects from https to an unencrypted address", where=_shown(url))
                current = following
        raise DownloadError("the server redirects in circles", where=_shown(url))

    def _check_status(self, response: Any, home: bool) -> None:
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        if response.status_code < 400:
            return
        response.read()
        try:
            hf_raise_for_status(response)
        except Exception as error:
            # A storage host refuses a signed address that has expired; the next attempt gets a new one.
            expired = not home and response.status_code not in {416, 429} and response.status_code < 500
            retry = _Retry(error) if expired else _as_retry(error)
            if retry is None:
                raise
            raise retry from None

    def _checked_start(self, response: Any, start: int, stop: int, size: int | None, whole: bool) -> int:
        """The offset of the response's first byte, once its headers are those of the range asked for."""
        where = _shown(str(response.url))
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise DownloadError(f"the server sent {encoding} data although told not to compress", where=where)
        length = response.headers.get("Content-Length")
        if response.status_code == 200:
            if whole and (length is None or int(length) == stop):
                return 0
            raise _Retry(
                DownloadError(
                    "the server ignores range requests: it answered with the whole file",
                    where=where,
                    expected=f"status 206 with bytes {start} to {stop - 1}",
                    do="add `fetch: full` to the model's entry, to fetch whole files instead of the tensors alone",
                )
            )
        found = response.headers.get("Content-Range", "none")
        match = _CONTENT_RANGE.fullmatch(found)
        given = tuple(map(int, match.groups())) if match else ()
        if response.status_code != 206 or given[:2] != (start, stop - 1) or (size is not None and given[2] != size):
            raise DownloadError(
                f"the server answered with status {response.status_code} and Content-Range: {found}",
                where=where,
                expected=f"status 206 and Content-Range: bytes {start}-{stop - 1}/{'*' if size is None else size}",
                do="try again later; if it stays so, the file on the server is not the one its listing names",
            )
        if length is not None and int(length) != stop - start:
            raise DownloadError(f"the server announced {length} bytes for a range of {stop - start} bytes", where=where)
        return start


def _requested_pause(headers: Mapping[str, str], where: str) -> float | None:
    """Seconds that a server asks to wait: Retry-After, or the Hub's own `RateLimit: "api";r=0;t=55`."""
    value = headers.get("Retry-After", "").strip()
    limit = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("RateLimit", ""))
    if value.isdigit():
        seconds = float(value)
    elif limit:
        seconds = float(limit.group(1)) + 1  # the server rounds down
    else:
        return None
    if seconds > LONGEST_WAIT:
        raise DownloadError(
            f"the server asks to wait {seconds:.0f} seconds before the next request",
            where=where,
            do="run again then (what has been fetched is kept); with HF_TOKEN set the limits are higher",
        )
    return seconds


def _as_retry(error: Exception) -> _Retry | None:
    """How to go on after an error that may pass: a broken connection, a busy server. None for one that will not."""
    if isinstance(error, _Retry):
        return error
    library = http_library()
    if isinstance(error, library.TransportError) and not isinstance(error, library.UnsupportedProtocol):
        return _Retry(error)
    response = getattr(error, "response", None)
    if response is not None and (response.status_code in {408, 429} or response.status_code >= 500):
        return _Retry(error, _requested_pause(response.headers, _shown(str(response.url))))
    return None


def patiently(ask: Callable[[], T]) -> T:
    """The answer to `ask`, asked again with growing pauses while the server is busy or the connection breaks.

    Raises:
        Exception: what `ask` raised last.
    """
    failures = 0
    while True:
        try:
            return ask()
        except Exception as error:
            retry = _as_retry(error)
            if retry is None:
                raise
            failures += 1
            retry.wait(failures)


def http_library() -> Any:
    """The HTTP library under huggingface_hub (httpx, or httpx2 in newer versions), for the names of its errors."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    return import_module(type(get_session()).__module__.partition(".")[0])


def _shown(url: str) -> str:
    """A URL without its query: signed addresses carry credentials there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
