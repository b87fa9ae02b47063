"""What Snakemake plans, read from what a dry run prints: every job with its inputs, outputs and command."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from support.project import Project


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run; `shell` is empty for a target."""

    rule: str
    inputs: frozenset[str]
    outputs: frozenset[str]
    log: str
    shell: str

    @property
    def step(self) -> str:
        """The step's name: what follows `python -m headmaps.steps.`; empty for a target."""
        match = re.search(r"-m headmaps\.steps\.(\w+)", self.shell)
        return match.group(1) if match else ""

    @property
    def spec(self) -> dict[str, Any]:
        """The value of `--spec`."""
        words = shlex.split(self.shell.split(" > ")[0].split(" 2>&1")[0])
        spec: dict[str, Any] = json.loads(words[words.index("--spec") + 1])
        return spec


def planned_jobs(project: Project, *arguments: str) -> list[PlannedJob]:
    """Every job of `snakemake --dry-run`, targets among them."""
    run = project.run(
        "--dry-run", "--printshellcmds", *arguments, "--quiet", "host"
    )  # the default profile is quiet about rules
    blocks = re.findall(r"(?ms)^(?:local)?rule (\S+):\n(.*?)^Shell command: (.*?)$", run.stdout)
    return [_job(name, fields, shell) for name, fields, shell in blocks]


def _job(name: str, fields: str, shell: str) -> PlannedJob:
    values = dict(re.findall(r"(?m)^    (\w+): (.*)$", fields))

    def files(key: str) -> frozenset[str]:
        return frozenset(filter(None, values.get(key, "").split(", ")))

    return PlannedJob(name, files("input"), files("output"), values.get("log", ""), "" if shell == "None" else shell)
