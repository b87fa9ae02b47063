"""`headmaps verify`: recompute every hash; what is stale, altered, missing or unknown, and why."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from headmaps.commands.common import add_config_argument, configured
from headmaps.findings import SHOWN, report, wrong
from headmaps.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)
    parser.add_argument("--lock", type=Path, help="also compare with this lock file, as `headmaps lock` wrote it")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, each with what to run")
    parser.add_argument("--all", action="store_true", help=f"print every finding, not the first {SHOWN} of each kind")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: everything is as recorded (unknown files do not count); 1: something is not."""
    plan = configured(arguments)
    findings = verify(plan)
    if arguments.lock:
        from headmaps.lockfile import compare_with_lock

        findings += compare_with_lock(plan, arguments.lock)
    if arguments.json:
        print(json.dumps([asdict(finding) | {"run": finding.run} for finding in findings], indent=1))
    else:
        print(report(findings, everything=arguments.all))
    return int(bool(wrong(findings)))
