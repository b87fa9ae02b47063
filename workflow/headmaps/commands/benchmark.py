"""`headmaps benchmark`: kernel, random draws and the whole workflow, each against its alternatives, in one run."""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headmaps.benchmark import draws, kernel, whole
from headmaps.benchmark.clock import Timing, machine, measure
from headmaps.records import write_json

Shape = tuple[int, int]
PARTS = ("kernel", "draws", "workflow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments."""
    parser.add_argument(
        "--shapes",
        type=_shape,
        nargs="+",
        metavar="D_MODEL,D_HEAD",
        default=list(kernel.SHAPES),
        help="shapes of a head's factors (default: %(default)s)",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        help="what to measure: a head's kernel, random draws, the whole workflow with its memory (default: all)",
    )
    parser.add_argument(
        "--model",
        type=_model,
        metavar="LAYERS,HEADS,D_MODEL",
        default=whole.Shape(4, 32, 2048),
        help="shape of the random checkpoint of the whole workflow (default: 4,32,2048; falcon-rw-1b has 24 layers)",
    )
    parser.add_argument("--cores", type=int, default=2, help="cores of the whole workflow (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=20.0, help="skip what would take longer, in seconds")
    parser.add_argument("--json", type=Path, help="also write the numbers here")


def _shape(text: str) -> Shape:
    try:
        d, r = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape like 2048,64") from None
    if not 1 <= r <= d:
        raise argparse.ArgumentTypeError(f"{text!r}: d_head must lie between 1 and d_model")
    return d, r


def _model(text: str) -> whole.Shape:
    try:
        layers, heads, d = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape like 24,32,2048") from None
    if min(layers, heads, d) < 1 or d % heads:
        raise argparse.ArgumentTypeError(f"{text!r}: d_model must be a multiple of the heads")
    return whole.Shape(layers, heads, d)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from threadpoolctl import threadpool_limits

    kernel.methods()  # loads every BLAS there is, so that all of them are held to one thread
    numbers: dict[str, Any] = {"machine": machine()}
    for line in numbers["machine"]:
        print(line, flush=True)
    shapes = sorted(arguments.shapes)
    with threadpool_limits(1):
        if "kernel" in arguments.parts:
            rows = list(time_kernels(shapes, arguments.limit))
            print_kernels(shapes, rows)
            numbers["kernels"] = [
                {"method": name, "shape": list(shape), **vars(timing)} for name, shape, timing in rows
            ]
        if "draws" in arguments.parts:
            pools = list(time_draws([shape for shape in draws.SHAPES if shape in shapes]))
            print_draws(pools)
            numbers["draws"] = [
                {"what": name, "shape": list(shape), "literal": vars(slow), "pooled": vars(fast)}
                for name, shape, slow, fast in pools
            ]
    if "workflow" in arguments.parts:
        with tempfile.TemporaryDirectory(prefix="headmaps-benchmark-") as folder:
            costs = whole.compare(Path(folder), arguments.model, arguments.cores)
        print_whole(arguments.model, arguments.cores, costs)
        numbers["workflow"] = {name: vars(cost) for name, cost in costs.items()}
    if arguments.json:
        write_json(arguments.json, numbers)
    return 0


def time_kernels(shapes: list[Shape], limit: float) -> Iterator[tuple[str, Shape, Timing]]:
    """Time every method at every shape; what would take longer than `limit` seconds is estimated instead.

    The dense methods form d x d matrices: their time at the next shape is foreseen from the last one.
    """
    methods = kernel.methods()
    last: dict[str, tuple[Shape, float]] = {}
    for d, r in shapes:
        rng = np.random.default_rng(0)
        A, B = rng.standard_normal((d, r)), rng.standard_normal((r, d))
        for name, method in methods.items():
            exponent = kernel.EXPONENTS.get(name)
            if exponent is not None and name in last:
                (d_before, r_before), seconds = last[name]
                # svds takes a number of products of d x d with vectors that grows with the number of pairs wanted
                width = r / r_before if exponent == 2.0 else 1.0
                expected = seconds * (d / d_before) ** exponent * width
                if expected > limit:
                    yield name, (d, r), Timing(expected, 0, run=False)
                    continue
            timing = measure(lambda method=method, A=A, B=B: method(A, B))  # type: ignore[misc]
            last[name] = ((d, r), timing.seconds)
            yield name, (d, r), timing


def time_draws(shapes: list[Shape]) -> Iterator[tuple[str, Shape, Timing, Timing]]:
    """Time literal and pooled draws: (what, shape, literal, pooled), seconds for one draw."""
    for shape in shapes:
        for name, calls in draws.COMPARISONS.items():
            slow, fast = (measure(lambda call=call, shape=shape: call(*shape)) for call in calls)  # type: ignore[misc]
            yield name, shape, _one(slow), _one(fast)


def _one(timing: Timing) -> Timing:
    return Timing(timing.seconds / draws.DRAWS, timing.peak)


def print_kernels(shapes: list[Shape], rows: list[tuple[str, Shape, Timing]]) -> None:
    """ms per head, and in brackets the ratio to the three products and the peak memory."""
    floor = {shape: timing.seconds for name, shape, timing in rows if name == next(iter(kernel.methods()))}
    found = {(name, shape): timing for name, shape, timing in rows}
    print("\nms per head (times the three products; MB allocated at most), by (d_model, d_head)\n")
    print("| method | " + " | ".join(f"({d}, {r})" for d, r in shapes) + " |")
    print("|---|" + "---|" * len(shapes))
    for name in dict.fromkeys(row[0] for row in rows):
        cells = [_cell(found[name, shape], floor[shape]) for shape in shapes]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\n~: longer than --limit, so not run; foreseen from the shape before")


def _cell(timing: Timing, floor: float) -> str:
    ratio = timing.seconds / floor
    times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    if not timing.run:
        return f"~{timing.seconds * 1e3:.0f} (~{times})"
    return f"{timing.seconds * 1e3:.3g} ({times}; {timing.peak / 1e6:.2g})"


def print_draws(rows: list[tuple[str, Shape, Timing, Timing]]) -> None:
    """ms per draw, literal against pooled."""
    if not rows:
        return
    print("\nms per random draw of the Haar null\n")
    print("| draw | (d_model, d_head) | factors drawn and decomposed | from the pool's recipe | times faster |")
    print("|---|---|---|---|---|")
    for name, (d, r), slow, fast in rows:
        ratio = slow.seconds / fast.seconds
        print(f"| {name} | ({d}, {r}) | {slow.seconds * 1e3:.3g} | {fast.seconds * 1e3:.3g} | {ratio:.1f} |")


def print_whole(shape: whole.Shape, cores: int, costs: dict[str, whole.Cost]) -> None:
    """Seconds and memory of the whole workflow, and in brackets the ratio to the bare process."""
    bare = costs["one bare process"]
    print(
        f"\nwhole run: {shape.layers} layers, {shape.heads} heads, d_model {shape.d_model}; two nulls, all published "
        f"figures of one layer and head; {cores} cores, the bare process one\n"
    )
    print("| run | wall, s | processor, s | largest process, MB |")
    print("|---|---|---|---|")
    for name, cost in costs.items():
        wall, cpu = cost.seconds / bare.seconds, cost.cpu / bare.cpu
        print(f"| {name} | {cost.seconds:.1f} ({wall:.2f}) | {cost.cpu:.1f} ({cpu:.2f}) | {cost.peak / 1e6:.0f} |")
