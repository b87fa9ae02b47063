"""`headmaps diff A B`: what differs between two results folders or lock files."""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from headmaps.differences import Comparison, Difference, Kind, compare


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
    found = compare(arguments.a, arguments.b, arguments.tolerance)
    if arguments.json:
        listed = [asdict(difference) | {"delta": difference.delta} for difference in found.differences]
        print(json.dumps({"differences": listed, "same_figures": found.same_figures}, indent=1))
    else:
        print(report(found, arguments.most))
    return int(bool(found.differences))


def report(found: Comparison, most: int) -> str:
    """The largest numbers as a table, then files and figures, then how many there are of each."""
    if not found.differences:
        return f"no differences; {found.same_figures} figures are the same"
    lines = _numbers([one for one in found.differences if one.kind in {"number", "array"}], most)
    for one in found.differences:
        if one.kind not in {"number", "array"}:
            words = {"figure": "figure changed", "file": "bytes differ"}.get(one.kind, str(one.kind))
            lines.append(f"{words}: {one.path}" + (f" ({one.where})" if one.where else ""))
    counts = Counter(one.kind for one in found.differences)
    parts = [f"{counts['number'] + counts['array']} numbers differ"]
    parts.append(f"{counts['figure']} figures changed, {found.same_figures} are the same")
    parts += [f"{counts[kind]} {words}" for kind, words in _OTHERS.items() if counts[kind]]
    return "\n".join([*lines, "; ".join(parts)])


_OTHERS: dict[Kind, str] = {
    "file": "other files differ",
    "only in A": "files only in A",
    "only in B": "files only in B",
}


def _numbers(numbers: list[Difference], most: int) -> list[str]:
    if not numbers:
        return []
    numbers = sorted(numbers, key=lambda one: -abs(float("inf") if one.delta is None else one.delta))
    lines = [f"{'A':>14} {'B':>14} {'B - A':>12}  where"]
    for number in numbers[:most]:
        a, b, delta = (f"{x:.6g}" if x is not None else "empty" for x in (number.a, number.b, number.delta))
        lines.append(f"{a:>14} {b:>14} {delta:>12}  {number.path}, {number.where}")
    if len(numbers) > most:
        lines.append(f"... and {len(numbers) - most} smaller ones (--most)")
    return [*lines, ""]
