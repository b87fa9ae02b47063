"""`headmaps verify`: recompute every hash; what is stale, altered, missing or unknown, and why."""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from headmaps.commands.common import add_config_argument, configured
from headmaps.verification import Finding, verify

_SHOWN = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)
    parser.add_argument("--lock", type=Path, help="also compare with this lock file, as `headmaps lock` wrote it")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--all", action="store_true", help=f"print every finding, not the first {_SHOWN} of each kind")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: everything is as recorded (unknown files do not count); 1: something is not."""
    plan = configured(arguments)
    findings = verify(plan)
    if arguments.lock:
        from headmaps.lockfile import compare_with_lock

        findings += compare_with_lock(plan, arguments.lock)
    wrong = [finding for finding in findings if finding.state != "unknown"]
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return int(bool(wrong))
    _print(findings, everything=arguments.all)
    if not wrong:
        print("verified: every result is what its recorded inputs, code and configuration give")
        return 0
    print(_advice(wrong))
    return 1


def _print(findings: list[Finding], *, everything: bool) -> None:
    for state in ("missing", "altered", "stale", "unknown"):
        found = [finding for finding in findings if finding.state == state]
        if not found:
            continue
        print(f"{state} ({len(found)})")
        for finding in found if everything else found[:_SHOWN]:
            print(f"  {finding.path}\n    cause: {finding.cause}; {finding.detail}")
        if not everything and len(found) > _SHOWN:
            print(f"  ... and {len(found) - _SHOWN} more; --all prints them")
        print()


def _advice(wrong: list[Finding]) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in Counter(finding.state for finding in wrong).items())
    needs_force = [finding for finding in wrong if finding.state != "missing"]
    if not needs_force:
        return f"not verified: {counts}\nrun:  snakemake --cores all"
    rules = list(dict.fromkeys(finding.rule for finding in needs_force if finding.rule))
    return f"not verified: {counts}\nrun:  snakemake --cores all --forcerun {' '.join(rules)}"
