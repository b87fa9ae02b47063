"""`headmaps plan`: bytes to fetch, disk, memory, jobs and time of the configuration, before anything runs."""

import argparse
import json
import sys
from dataclasses import asdict

from headmaps.checkpoint.hub_progress import readable
from headmaps.commands.common import add_config_argument, configured
from headmaps.estimate import Estimate, cores_here, estimates, megabytes
from headmaps.resources import ENGINE_MB, MB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)
    parser.add_argument("--offline", action="store_true", help="use only what is resolved or local")
    parser.add_argument("--cores", type=int, default=cores_here(), help="cores of this machine (default: %(default)s)")
    parser.add_argument("--mbit", type=float, default=100.0, help="speed of the connection (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate; exit status 1 if nothing is known of one of the models."""
    plan = configured(arguments)
    found, unknown = estimates(plan, network=not arguments.offline)
    if arguments.json:
        numbers = {model: asdict(one) for model, one in found.items()}
        print(json.dumps({"models": numbers, "unknown": unknown}, indent=1))
    elif found:
        _show(found, arguments.cores, arguments.mbit)
    for message in dict.fromkeys(unknown.values()):
        print(message, file=sys.stderr)
    return int(bool(unknown))


def _show(found: dict[str, Estimate], cores: int, mbit: float) -> None:
    """The table for people: a line for each model, revisions together, and what the largest steps need."""
    rows: dict[str, list[Estimate]] = {}
    for model, one in found.items():
        rows.setdefault(model.partition("@")[0], []).append(one)
    total = sum(found.values(), Estimate())
    lines = [_line(name + (f" ({len(ones)} revisions)" if len(ones) > 1 else ""), ones) for name, ones in rows.items()]
    if len(lines) > 1:
        lines.append(_line("all", list(found.values())))
    header = ("model", "fetch", "disk kept", "largest step", "jobs", "SLURM jobs", "core hours")
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print("\nstep           number  memory     seconds each")
    for step, (number, peak, seconds) in total.by_step.items():
        print(f"{step:<13} {number:>7}  {megabytes(peak):<9}  {seconds:.2g}")
    seconds = total.fetch * 8 / (mbit * 1e6)
    print(f"\nfetching at {mbit:g} Mbit/s: {_duration(seconds)}")
    print(f"computing and drawing on {cores} cores here: {_duration(total.hours(cores) * 3600)}")
    print(
        f"on a cluster (profiles/slurm): {total.submissions} jobs of 1 CPU and up to "
        f"{megabytes(total.memory + ENGINE_MB * MB)}, {total.cluster_core_hours():.2g} core hours; "
        f"drawing here: {_duration(total.here_seconds)} of one core"
    )


def _line(name: str, ones: list[Estimate]) -> tuple[str, ...]:
    one = sum(ones, Estimate())
    hours = f"{(one.core_seconds + one.here_seconds) / 3600:.2g}"
    sizes = (readable(one.fetch), readable(one.disk), megabytes(one.memory))
    return (name, *sizes, str(one.jobs), str(one.submissions), hours)


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
