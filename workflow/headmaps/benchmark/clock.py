"""How the benchmark measures, and what it says about the machine."""

import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

LONG = 3.0  # seconds: a call that takes longer is not repeated
BUDGET = 1.0  # seconds of repetitions of a shorter one, at least two of them


@dataclass(frozen=True)
class Timing:
    """One measured call.

    Attributes:
        seconds: least wall time of the repetitions: what the code takes when nothing else disturbs it.
        peak: bytes that the call had allocated at most, beside its arguments.
        run: False where the call would have taken longer than the limit; then `seconds` is an estimate.
    """

    seconds: float
    peak: int
    run: bool = True


def measure(call: Callable[[], Any]) -> Timing:
    """Time a call, repeated if it is short, and once more under a memory trace (which slows Python code down)."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    if seconds < LONG:
        repeats, until = 0, time.perf_counter() + BUDGET
        while repeats < 2 or time.perf_counter() < until:
            start = time.perf_counter()
            call()
            seconds = min(seconds, time.perf_counter() - start)
            repeats += 1
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Timing(seconds, peak)


def machine() -> list[str]:
    """What the numbers depend on: processor, versions, and which BLAS kernel really runs."""
    from threadpoolctl import threadpool_info

    lines = [f"processor: {_processor()}, {os.cpu_count()} cores; one thread used"]
    lines.append(f"python {platform.python_version()}, numpy {version('numpy')}")
    for library in threadpool_info():
        if library["user_api"] == "blas":
            kernel = library.get("architecture", "unknown")
            lines.append(f"BLAS: {library['internal_api']} {library['version']}, kernel {kernel}")
    if forced := os.environ.get("OPENBLAS_CORETYPE"):
        lines.append(f"the kernel is forced by OPENBLAS_CORETYPE={forced}: these are not the machine's best numbers")
    return list(dict.fromkeys(lines))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
