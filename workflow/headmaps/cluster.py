"""What a SLURM cluster can and cannot do for this workflow, asked before anything is submitted. Standard library only.

Three things keep Snakemake waiting for ever without a word. Two are refused here: a cluster whose finished jobs nobody
can ask about, and a bundle of jobs that wants more of a node than any node has. The third, a job cancelled from
outside, is put right: sacct calls it `CANCELLED by 1000`, and the executor knows `CANCELLED` only.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headmaps.errors import ConfigError

TIMEOUT = 20
POLLS = 3
"""The executor asks squeue only if finished jobs stay visible for so many of its first waits; else it asks sacct."""


LAST_WORDS = (
    "trap '"
    'if [ $? != 0 ] && [ -n "${{SLURM_JOB_ID-}}" ]; then '
    'log="${{BASH_EXECUTION_STRING##*> }}"; log="${{log%% *}}"; '
    'echo "Last lines of $log:" >&2; tail -n 30 "$log" >&2; fi'
    "' EXIT; "
)
"""Precedes every step's shell command: where it fails in a SLURM job, the end of its own log goes into the job's log.

Of a failed bundle Snakemake shows the job's log, and of the steps' logs none after the first that does not exist. The
log is the file that the command's output goes to. Braces are doubled for `shell.prefix`, which formats its text.
"""


@dataclass(frozen=True)
class Node:
    """The nodes of one kind in a partition."""

    partition: str
    cpus: int
    memory_mb: int
    is_default: bool


def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str] | None":
    """Run a command, None if it is not there or does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def nodes() -> list[Node]:
    """The nodes of every partition.

    Raises:
        ConfigError: the controller does not answer.
    """
    asked = run(["sinfo", "--noheader", "--exact", "--format=%P|%c|%m"])
    if asked is None or asked.returncode:
        said = asked.stderr.strip() if asked else "no answer"
        raise ConfigError(f"SLURM's controller does not answer: {said}", do="ask the cluster's administrators")
    found = []
    for line in asked.stdout.splitlines():
        partition, cpus, memory = line.strip().split("|")
        # a number may be followed by a plus sign: nodes of the partition differ
        most_cpus, most_memory = (int(re.sub(r"\D.*", "", text)) for text in (cpus, memory))
        found.append(Node(partition.rstrip("*"), most_cpus, most_memory, is_default=partition.endswith("*")))
    return found


def largest(all_nodes: Sequence[Node], partition: str | None) -> tuple[int, int, str]:
    """Most CPUs and most memory (MB) of a node where jobs will run, and how to call that place.

    Args:
        all_nodes: `nodes()`.
        partition: where jobs are sent; None: the cluster's default.
    """
    if partition:
        here = [node for node in all_nodes if node.partition in partition.split(",")]
        place = f"partition {partition}"
    else:
        here = [node for node in all_nodes if node.is_default]
        place = f"the default partition {here[0].partition}" if here else "this cluster"
    here = here or list(all_nodes)
    return max(node.cpus for node in here), max(node.memory_mb for node in here), place


def accounting_answers() -> tuple[bool, str]:
    """Whether sacct can tell what became of a job, and what it said if not."""
    asked = run(["sacct", "--noheader", "--parsable2", "--format=JobID", "--starttime=now-1minutes"])
    if asked is not None and asked.returncode == 0:
        return True, ""
    if asked is None:
        return False, "sacct is not here or does not answer"
    return False, (asked.stderr.strip().splitlines() or ["sacct fails"])[-1]


def min_job_age() -> int:
    """Seconds for which squeue still shows a finished job (MinJobAge); 0 if that cannot be found out."""
    asked = run(["scontrol", "show", "config"])
    match = re.search(r"MinJobAge\s*=\s*(\d+)", asked.stdout if asked else "")
    return int(match.group(1)) if match else 0


def status_problem(status_command: str | None, first_wait: int) -> ConfigError | None:
    """Why the state of finished jobs could never be found out; None if it can.

    Args:
        status_command: `sacct` or `squeue`, as the executor is set; None means sacct.
        first_wait: seconds before the executor's first status check.
    """
    age = min_job_age()
    if status_command == "squeue" and age >= POLLS * first_wait:
        return None
    answers, said = accounting_answers()
    if answers:
        return None
    what = f"this cluster keeps no account of finished jobs ({said})"
    if status_command == "squeue":
        what += f", and shows them for {age} s only"
        wait = max(1, age // POLLS)
        return ConfigError(what, do=f"add --slurm-init-seconds-before-status-checks {wait}")
    return ConfigError(
        what,
        where="the executor asks sacct and would wait for ever",
        do="use `snakemake --profile profiles/slurm-noacct`, which asks squeue",
    )


def size_problem(cores: int | None, partition: str | None, all_nodes: Sequence[Node]) -> ConfigError | None:
    """Why a bundle of jobs would never start; None if it fits a node.

    Args:
        cores: the most CPUs that a bundle asks for (`cores:` of the profile); None: as many as it has members.
        partition: where jobs are sent; None: the default.
        all_nodes: `nodes()`.
    """
    cpus, _, place = largest(all_nodes, partition)
    if cores is not None and cores <= cpus:
        return None
    asks = f"a bundle of jobs asks for {cores} CPUs" if cores else "bundles of jobs ask for a CPU for each member"
    what = f"{asks}, but the largest node of {place} has {cpus}: it would wait for ever"
    return ConfigError(what, where="cores", expected=f"at most {cpus}", do=f"add --cores {cpus}, or fewer")


def check_cluster(workflow: Any) -> None:
    """Refuse to start a run that SLURM would keep waiting; a run without SLURM passes unasked.

    Raises:
        SystemExit: with a message that says what to change.
    """
    if workflow.executor_plugin.name != "slurm":
        return
    settings, resources = workflow.executor_settings, workflow.resource_settings
    defaults = resources.default_resources
    named = defaults.get("slurm_partition") if defaults is not None else None
    partition = str(named.raw).strip("'\"") if named is not None and named.raw else None  # as written, perhaps quoted
    try:
        problem = size_problem(resources.cores, partition, nodes()) or status_problem(
            settings.status_command, settings.init_seconds_before_status_checks
        )
    except ConfigError as error:
        problem = error
    if problem is not None:
        raise SystemExit(f"SLURM: {problem}")
    recognise_cancelled()


def recognise_cancelled() -> None:
    """Give the executor the states that it knows: the first word of what sacct says."""
    plugin: Any = import_module("snakemake_executor_plugin_slurm")

    asked = plugin.query_job_status
    if getattr(asked, "plain", False):
        return

    async def query_job_status(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await asked(command, logger)
        return states and {job: state.partition(" ")[0] for job, state in states.items()}, seconds

    query_job_status.plain = True  # type: ignore[attr-defined]
    plugin.query_job_status = query_job_status
