"""`headmaps lock`: write the content hashes of a finished run."""

import argparse
from pathlib import Path

from headmaps.commands.common import add_config_argument, configured
from headmaps.errors import ResultError
from headmaps.lockfile import lock_of
from headmaps.records import write_json
from headmaps.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)
    parser.add_argument("--output", type=Path, default=Path("results.lock.json"), help="default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Write the lock; refused while something is missing, altered or stale: a lock of that would certify a mistake."""
    plan = configured(arguments)
    wrong = [finding for finding in verify(plan) if finding.state != "unknown"]
    if wrong:
        what = f"the results are not what their inputs give: {wrong[0].path} is {wrong[0].state} ({wrong[0].cause})"
        raise ResultError(what, where=f"{len(wrong)} findings", do="see `headmaps verify`, then run snakemake")
    write_json(arguments.output, lock_of(plan))
    print(f"wrote {arguments.output}; `headmaps verify --lock {arguments.output}` compares with it")
    return 0
