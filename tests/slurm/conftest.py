"""Clusters to submit to, and small projects to submit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import Cluster, cluster, missing
from support.checkpoints import write_llama
from support.configs import SMALL_CONFIG
from support.interruption import PAUSE
from support.project import Project, Run

QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10")
"""The profiles' waits are for real clusters; nothing else of them is changed here."""

WATCH = """
import os, sys, time
if len(sys.orig_argv) > 2 and sys.orig_argv[1] == "-m" and sys.orig_argv[2].startswith("headmaps.steps."):
    step = sys.orig_argv[2].rpartition(".")[2]

    def watch(event, arguments):
        if event in {"socket.connect", "socket.getaddrinfo"}:
            open(os.environ["WATCH_FOLDER"] + "/network-" + step, "w").close()

    sys.addaudithook(watch)
    if step == os.environ.get("HUNGRY_STEP"):
        held = bytearray(int(os.environ["HUNGRY_MB"]) << 20)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(4)  # long enough to be seen by a look a second
        del held
"""


def _cluster(accounting: bool) -> Iterator[Cluster]:
    if reason := missing(accounting):
        if os.environ.get("HEADMAPS_REQUIRE_SLURM") == "1":
            pytest.fail(f"a SLURM cluster is required here (HEADMAPS_REQUIRE_SLURM=1): {reason}")
        pytest.skip(f"no SLURM cluster: {reason}")
    with cluster(accounting) as running:
        yield running


@pytest.fixture(scope="module")
def accounting() -> Iterator[Cluster]:
    """A cluster that records its jobs in a database."""
    yield from _cluster(True)


@pytest.fixture(scope="module")
def no_accounting() -> Iterator[Cluster]:
    """A cluster that forgets its jobs."""
    yield from _cluster(False)


class Submission:
    """A snakemake that submits a project's jobs, started and not waited for."""

    def __init__(self, project: Project, *arguments: str, profile: str = "slurm", **environment: str) -> None:
        self.project, self.pause = project, project.folder / ".snakemake/pause"
        self.pause.mkdir(parents=True, exist_ok=True)
        self.output = self.pause / "output"
        settings = {"PAUSE_FOLDER": str(self.pause), "WATCH_FOLDER": str(self.pause), "PAUSED_AT": "1"} | environment
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--profile", f"profiles/{profile}", *QUICK, *arguments],
                cwd=project.folder, env=project.environment() | settings, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_text(errors="replace")

    def wait_until_paused(self, seconds: float = 120) -> int:
        """Wait until the step named in PAUSED_STEP stands still; returns its process id."""
        note = self.pause / "paused"
        self.wait_for(lambda: note.is_file() and note.read_text() != "", seconds)
        return int(note.read_text())

    def wait_for(self, happened: Callable[[], bool], seconds: float = 120) -> None:
        """Wait for something to happen while the run goes on."""
        end = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, self.text[-5000:]
            assert time.monotonic() < end, self.text[-5000:]
            time.sleep(0.1)

    def release(self) -> None:
        """Let the step that stands still go on, and no other stand still."""
        (self.pause / "released").touch()

    def end(self, sign: signal.Signals) -> None:
        """End snakemake alone, as a user or a reboot of the submitting node would."""
        self.process.send_signal(sign)
        self.process.wait(60)

    def finish(self, check: bool = True, seconds: float = 600) -> Run:
        """Wait for its end."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds:.0f} s\n{self.text[-5000:]}") from None
        assert not check or status == 0, self.text[-6000:]
        return Run(status, self.text, "")


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project with a small model of so many layers; its steps can be watched and made to wait."""

    def make(layers: int, **changes: Any) -> Project:
        made = Project.copy_to(tmp_path / "project")
        write_llama(made.folder / "checkpoints/tiny", num_hidden_layers=layers)
        models = [SMALL_CONFIG["models"][0] | {"layers": layers}]
        made.configure(SMALL_CONFIG | {"models": models} | changes)
        (made.folder / "workflow/sitecustomize.py").write_text(PAUSE + WATCH)
        return made

    return make


@pytest.fixture
def submit() -> Iterator[Callable[..., Submission]]:
    """Starts snakemake with a cluster profile; what is left of it at the end of a test is ended."""
    started: list[Submission] = []

    def start(*arguments: Any, **settings: str) -> Submission:
        started.append(Submission(*arguments, **settings))
        return started[-1]

    yield start
    for one in started:
        one.release()
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
