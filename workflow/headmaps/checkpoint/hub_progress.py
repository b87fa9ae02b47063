"""How far a download is: a bar with bytes, rate and time left on a terminal, a line now and then in a log."""

import os
import socket
import sys
import time
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, TextIO

SECONDS_BETWEEN_LINES = 30.0


class Progress(AbstractContextManager["Progress"]):
    """Shows the bytes that arrive, on stderr.

    Args:
        label: what is being fetched.
        total: bytes expected.
        done: bytes that are there already, from an earlier run.

    With HEADMAPS_PROGRESS=tty the bar goes to the controlling terminal although stderr is a log, which gets its lines
    all the same; of several downloads that share a terminal one at a time has the bar. With HEADMAPS_PROGRESS=off
    nothing is shown.
    """

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self.label, self.total, self.done = label, total, done
        self._received = 0
        self._started = self._last_line = time.monotonic()
        self._own: TextIO | None = None
        self._turn: socket.socket | None = None
        self._bar: Any = None
        wish = os.environ.get("HEADMAPS_PROGRESS")
        self._quiet, self._elsewhere = wish == "off", wish == "tty"
        self._begin_bar()

    def _begin_bar(self) -> None:
        """Draw, if there is a terminal and nobody else draws on it."""
        terminal = None if self._quiet else self._terminal()
        if terminal is None:
            return
        from tqdm import tqdm  # type: ignore[import-untyped]

        shown = {"desc": self.label, "total": self.total, "initial": self.done}
        self._bar = tqdm(**shown, unit="B", unit_scale=True, file=terminal, leave=False, miniters=1)

    def _terminal(self) -> TextIO | None:
        if sys.stderr.isatty():
            return sys.stderr
        if self._elsewhere:
            self._turn = self._turn or _take_turn()
            with suppress(OSError):
                self._own = open("/dev/tty", "w", encoding="utf-8") if self._turn else None  # noqa: SIM115
            self._elsewhere = self._turn is None  # ask again only while another one draws
        return self._own

    def advance(self, count: int) -> None:
        """`count` more bytes have arrived."""
        self._received += count
        self.done += count
        if self._bar is None and self._elsewhere:
            self._begin_bar()
        elif self._bar is not None:
            self._bar.update(count)
        if sys.stderr.isatty():
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES and not self._quiet:
            self._last_line = now
            rate = self._received / (now - self._started)
            left = max(self.total - self.done, 0) / rate
            print(
                f"{self.label}: {readable(self.done)} of {readable(self.total)}, {readable(rate)}/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        for open_ in (self._own, self._turn):
            if open_ is not None:
                open_.close()
        if not self._quiet and kind is None:
            seconds = max(time.monotonic() - self._started, 1e-3)
            rate = readable(self._received / seconds)
            line = f"{self.label}: {readable(self._received)} received in {seconds:.1f} s ({rate}/s)"
            print(line, file=sys.stderr, flush=True)


def _take_turn() -> socket.socket | None:
    """The right to draw on this session's terminal, given back when the socket is closed or the process ends.

    None while another process has it. The name lives in Linux's abstract namespace and needs no file; where there is
    none, everybody may draw.
    """
    turn = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if not sys.platform.startswith("linux"):
        return turn
    try:
        turn.bind(f"\0headmaps-bar-{os.getuid()}-{os.getsid(0)}")
    except OSError:
        turn.close()
        return None
    return turn


def readable(count: float) -> str:
    """A number of bytes for people: 14.3 MB (powers of 1000, as disks and the Hub count)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
