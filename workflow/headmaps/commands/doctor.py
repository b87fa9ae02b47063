"""`headmaps doctor`: what will and will not work on this machine, before anything runs."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from headmaps.commands.common import add_config_argument, configured
from headmaps.diagnosis import Check, diagnose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)
    parser.add_argument("--offline", action="store_true", help="do not try the network")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 if something configured cannot work here."""
    checks = diagnose(configured(arguments), Path.cwd(), network=not arguments.offline)
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        _print(checks)
    return int(any(check.state == "fails" for check in checks))


def _print(checks: list[Check]) -> None:
    signs = {"good": "ok  ", "note": "note", "fails": "FAIL"}
    for check in checks:
        print(f"{signs[check.state]}  {check.name:<12} {check.found}")
        if check.do:
            print(f"{'':>19}{check.do}")
