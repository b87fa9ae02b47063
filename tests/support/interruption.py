"""Stop a run at a known moment: a step that waits in the middle of its writing, and the signals that then end it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support.project import Project

# Every step loads this by itself (see support/audit.py). The one named in PAUSED_STEP writes its first file as always,
# and waits before it gives the next one its name; what has only one file waits before that.
PAUSE = """
import os, sys, time

step, folder = os.environ.get("PAUSED_STEP", ""), os.environ.get("PAUSE_FOLDER", "")
words = sys.orig_argv
if step and "-m" in words and words[words.index("-m") + 1] == "headmaps.steps." + step:
    renamed = []

    def hook(event, arguments):
        if event == "os.rename" and not os.path.exists(os.path.join(folder, "released")):
            renamed.append(arguments[1])
            if len(renamed) == int(os.environ["PAUSED_AT"]):
                try:  # one process waits, others of the same step go on
                    note = os.open(os.path.join(folder, "paused"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                except FileExistsError:
                    return
                os.write(note, str(os.getpid()).encode())
                os.close(note)
                while not os.path.exists(os.path.join(folder, "released")):
                    time.sleep(0.05)

    sys.addaudithook(hook)
"""


def make_pausable(project: Project) -> None:
    """Let a step of this project wait where a test wants it to."""
    (project.folder / "workflow/sitecustomize.py").write_text(PAUSE)


class PausedRun:
    """A snakemake whose job of one step waits in the middle of its writing, until it is ended or released."""

    def __init__(self, project: Project, step: str, at: int, targets: Sequence[str], **environment: str) -> None:
        self.folder = project.folder / ".snakemake/pause"
        self.folder.mkdir(parents=True, exist_ok=True)
        for note in self.folder.iterdir():
            note.unlink()
        settings = {"PAUSED_STEP": step, "PAUSED_AT": str(at), "PAUSE_FOLDER": str(self.folder)}
        self.output = project.folder / ".snakemake/paused-run.log"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--cores", "2", *targets],
                cwd=project.folder,
                env=project.environment() | settings | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, as a shell makes one
            )
        self._wait_for(self.folder / "paused")

    def _wait_for(self, path: Path, timeout: float = 240) -> None:
        end = time.monotonic() + timeout
        while not path.exists() or not path.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no step waits; the run said\n{self.text()[-4000:]}")
            time.sleep(0.05)

    @property
    def job(self) -> int:
        """Process number of the step that waits."""
        return int((self.folder / "paused").read_text())

    def text(self) -> str:
        """All that the run has printed."""
        return self.output.read_text(errors="replace")

    def release(self) -> None:
        """Let the step go on."""
        (self.folder / "released").touch()

    def wait(self) -> int:
        """The run's exit status."""
        return self.process.wait(timeout=240)


def control_c(run: PausedRun) -> None:
    """What a terminal does: the interrupt goes to the run and all its jobs."""
    os.killpg(run.process.pid, signal.SIGINT)


def kill_the_run(run: PausedRun) -> None:
    """`kill -9` of snakemake alone; its job lives on and finishes some time later, beside the next run's."""
    run.process.kill()
    run.release()


def power_cut(run: PausedRun) -> None:
    """Everything ends at once."""
    os.killpg(run.process.pid, signal.SIGKILL)


def kill_the_job(run: PausedRun) -> None:
    """What a machine without memory does: one job ends."""
    os.kill(run.job, signal.SIGKILL)
