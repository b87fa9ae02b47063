"""What a user sees of a download: a bar on a terminal, a line now and then in a log."""

import io
import os
import pty
import select
import sys
import termios

import pytest

from headmaps.checkpoint import hub_progress
from headmaps.checkpoint.hub import HubStore
from headmaps.checkpoint.hub_progress import Progress, readable
from hub.server import LocalHub


def test_a_log_gets_a_line_every_half_minute_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(hub_progress.time, "monotonic", lambda: clock[0])
    with Progress("model", total=100_000_000, done=40_000_000) as progress:
        for _ in range(60):
            clock[0] += 1
            progress.advance(1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "model: 70.0 MB of 100.0 MB, 1.0 MB/s, 30 s left",
        "model: 100.0 MB of 100.0 MB, 1.0 MB/s, 0 s left",
        "model: 60.0 MB received in 60.0 s (1.0 MB/s)",
    ]


def test_a_terminal_gets_a_bar_with_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("someone/model", total=4_000_000) as progress:
            for _ in range(4):
                progress.advance(1_000_000)
                progress._bar.refresh()
        stream.flush()
        data = b""
        while select.select([controller], [], [], 0.2)[0]:
            data += os.read(controller, 1 << 16)
    shown = data.decode()
    os.close(controller)
    assert "someone/model" in shown
    assert "2.00M/4.00M" in shown
    assert "B/s" in shown
    assert "<" in shown  # elapsed<left


def test_one_download_at_a_time_draws_on_a_shared_terminal() -> None:
    first = hub_progress._take_turn()
    assert first is not None
    assert hub_progress._take_turn() is None
    first.close()
    second = hub_progress._take_turn()
    assert second is not None
    second.close()


def test_the_log_gets_its_lines_beside_a_bar_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """stderr is a log, and the bar is drawn on the controlling terminal; here that is a file."""
    drawn, clock = io.StringIO(), [0.0]
    monkeypatch.setenv("HEADMAPS_PROGRESS", "tty")
    monkeypatch.setattr(hub_progress, "open", lambda *_, **__: drawn, raising=False)
    monkeypatch.setattr(drawn, "close", lambda: None)
    monkeypatch.setattr(hub_progress.time, "monotonic", lambda: clock[0])
    other = hub_progress._take_turn()
    assert other is not None
    with Progress("someone/model layer 3", total=100_000_000) as progress:
        progress.advance(10_000_000)
        assert drawn.getvalue() == ""  # another download has the bar
        other.close()
        clock[0] = 31
        progress.advance(20_000_000)
    assert "someone/model layer 3:  30%|" in drawn.getvalue()
    assert capsys.readouterr().err.splitlines() == [
        "someone/model layer 3: 30.0 MB of 100.0 MB, 967.7 kB/s, 72 s left",
        "someone/model layer 3: 30.0 MB received in 31.0 s (967.7 kB/s)",
    ]


def test_nothing_is_said_when_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADMAPS_PROGRESS", "off")
    with Progress("model", total=10) as progress:
        progress.advance(10)
    assert capsys.readouterr().err == ""


def test_an_interrupted_download_claims_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress("model", total=10):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_the_bytes_that_crossed_the_network_are_reported(
    hub: LocalHub, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = HubStore("someone/model", model)
    store.read("model.safetensors", 0, 2_000_000)
    assert "someone/model model.safetensors: 2.0 MB received" in capsys.readouterr().err
    assert store.report() == f"someone/model@{model}: 2.0 MB received in 2 requests"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (14_300_000, "14.3 MB"), (141_100_000_000, "141.1 GB"), (5e12, "5.0 TB")],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert readable(count) == text


def test_the_bar_is_not_drawn_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Progress("model", total=10) as progress:
        progress.advance(10)
    assert "\r" not in log.getvalue()
