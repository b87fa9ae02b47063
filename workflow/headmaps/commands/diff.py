"""`headmaps diff A B`: what differs between two results folders or lock files."""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from headmaps.differences import Difference, differences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    parser.add_argument("a", type=Path, help="results folder, project folder or lock file")
    parser.add_argument("b", type=Path, help="the same, to compare with")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="numbers this close are equal (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print every difference as JSON")
    parser.add_argument("--most", type=int, default=30, help="numbers to print, largest first (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: equal within the tolerance; 1: not."""
    found = differences(arguments.a, arguments.b, arguments.tolerance)
    if arguments.json:
        print(json.dumps([asdict(difference) | {"delta": difference.delta} for difference in found], indent=1))
        return int(bool(found))
    if not found:
        print("no differences")
        return 0
    _print_numbers([difference for difference in found if difference.kind == "number"], arguments.most)
    for difference in found:
        if difference.kind != "number":
            words = {"figure": "figure changed", "file": "bytes differ"}.get(difference.kind, difference.kind)
            print(f"{words}: {difference.path}")
    print(", ".join(f"{count} x {kind}" for kind, count in Counter(difference.kind for difference in found).items()))
    return 1


def _print_numbers(numbers: list[Difference], most: int) -> None:
    if not numbers:
        return
    numbers = sorted(numbers, key=lambda difference: -abs(difference.delta or float("inf")))
    print(f"{'A':>14} {'B':>14} {'B - A':>12}  where")
    for number in numbers[:most]:
        a, b, delta = (f"{x:.6g}" if x is not None else "empty" for x in (number.a, number.b, number.delta))
        print(f"{a:>14} {b:>14} {delta:>12}  {number.path.removesuffix('/tables/heads.csv')}, {number.where}")
    if len(numbers) > most:
        print(f"... and {len(numbers) - most} smaller ones (--most)")
    print()
