"""A copy of the project in a folder of its own, and how the tests run the workflow there."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "workflow", "config", "envs", "profiles")


@dataclass(frozen=True)
class Project:
    """A project folder with its own results."""

    folder: Path

    @classmethod
    def copy_to(cls, folder: Path) -> "Project":
        """Copy what a user would clone; nothing of this checkout's results or caches."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        return cls(folder)

    def duplicate(self, folder: Path) -> "Project":
        """A second project with the same files, dates and run history."""
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=shutil.copy2)
        return Project(folder)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write config/config.yaml."""
        (self.folder / "config/config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))

    def config(self) -> dict[str, Any]:
        """Read config/config.yaml."""
        loaded: dict[str, Any] = yaml.safe_load((self.folder / "config/config.yaml").read_text())
        return loaded

    def run(self, *arguments: str, check: bool = True, timeout: float = 600, **environment: str) -> "Run":
        """Run snakemake with two cores in this project."""
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
        return self._call(command, check, timeout, environment)

    def headmaps(self, *arguments: str, check: bool = True, **environment: str) -> "Run":
        """Run the headmaps command in this project."""
        return self._call([sys.executable, "-m", "headmaps.cli", *arguments], check, 300, environment)

    def _call(self, command: Sequence[str], check: bool, timeout: float, environment: Mapping[str, str]) -> "Run":
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment() | dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        run = Run(done.returncode, done.stdout, done.stderr)
        if check and done.returncode:
            failed = "\n".join(f"{log}:\n{text}" for log, text in run.failures().items())
            raise AssertionError(f"{' '.join(command)} exited {done.returncode}\n{failed}\n{run.text[-4000:]}")
        return run

    def environment(self) -> dict[str, str]:
        """The environment of a run: nothing of this one's Hub or thread settings."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SNAKEMAKE", "OMP_", "OPENBLAS_NUM"))}
        return keep | {"PYTHONPATH": str(self.folder / "workflow")}

    def planned(self, *arguments: str) -> Counter[str]:
        """Which rules a dry run lists, and how often each; target rules are left out."""
        run = self.run("--dry-run", *arguments)
        return run.jobs()

    def results(self) -> dict[str, bytes]:
        """Every result file's bytes; what says when and where a result was made is left out."""
        root = self.folder / "results"
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
            and not path.name.endswith((".made.json", "provenance.json", "ro-crate-metadata.json"))
            and "kept" not in path.parts
        }


TARGET_RULES = {"all", "checkpoints", "heads", "decompositions", "baselines", "tables", "figures", "atlas", "verify"}


@dataclass(frozen=True)
class Run:
    """What a command printed and how it ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """All it printed."""
        return self.stdout + self.stderr

    def failures(self) -> "dict[str, str]":
        """The log of every failed job as it is shown to the user, by the path of the log."""
        found = re.findall(r"(?ms)^Logfile (\S+?):\n=+\n(.*?)^=+$", self.text)
        return dict(found)

    def jobs(self) -> Counter[str]:
        """The table of jobs that snakemake prints."""
        table = re.search(r"(?ms)^job +count\n-+ +-+\n(.*?)^total", self.text)
        rows = re.findall(r"(?m)^(\S+) +(\d+)$", table.group(1)) if table else []
        targets = TARGET_RULES | {name for name, _ in rows if re.fullmatch(r"figure\d|heatmaps|profiles|nulls", name)}
        return Counter({name: int(count) for name, count in rows if name not in targets})


def read_json(path: Path) -> Any:
    """A JSON file's value."""
    return json.loads(path.read_text())
