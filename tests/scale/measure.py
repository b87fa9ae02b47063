"""Measurements of memory, time and planning at scale: `python tests/scale/measure.py --help`.

Everything is measured in processes of their own, as the workflow starts them: one thread, peak memory as the kernel
counted it (resident pages, those of mapped files included).
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).parents[1]))

from scale.synthetic import LLAMA_70B, LLAMA_405B, Shape, write_checkpoint

ROOT = Path(__file__).parents[2]
WIDTHS = (512, 1024, 2048, 4096, 8192, 16384)
LAYERS = (4, 8, 16, 32, 64, 128)
MB = 1_000_000


@dataclass(frozen=True)
class Measured:
    """One process: wall seconds, seconds of processor time, peak resident bytes."""

    seconds: float
    cpu_seconds: float
    peak: int


def run_step(step: str, spec: dict[str, Any], *flags: object) -> Measured:
    """Run one step as its rule does.

    Raises:
        RuntimeError: it failed; the message has what it printed.
    """
    command = [sys.executable, "-m", f"headmaps.steps.{step}", "--spec", json.dumps(spec), *map(str, flags)]
    return run(command, ROOT)


def run(command: Sequence[str], folder: Path, **environment: str) -> Measured:
    """Run a command and wait for it.

    Raises:
        RuntimeError: it failed; the message has what it printed.
    """
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    settings = os.environ | threads | {"PYTHONPATH": str(folder / "workflow"), "PYTHONHASHSEED": "0"} | environment
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=settings, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for: Popen must not do it again
        seconds = time.perf_counter() - start
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)}\n{output.read().decode(errors='replace')[-3000:]}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


class Model:
    """A synthetic model in a folder of its own, stepped through layer by layer as the workflow would."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape, self.results = shape, folder / "results"
        checkpoint = write_checkpoint(folder / "checkpoint", shape)
        self.spec = {"source": "local", "path": str(checkpoint)}
        self.source = self.results / "checkpoint/source.json"
        self.geometry = self.results / "heads/geometry.json"

    def resolve(self) -> None:
        """source.json and geometry.json."""
        run_step("resolve", self.spec | {"layers": self.shape.layers}, "--source", self.source)
        run_step("geometry", {"matrices": ["value", "qk"]}, "--source", self.source, "--output", self.geometry)

    def fetch_layer(self, layer: int = 0) -> Measured:
        """The layer's tensors in the normal form."""
        file = self._checkpoint(layer)
        record = file.with_suffix(".json")
        flags = ("--source", self.source, "--layer", layer, "--output", file, "--record", record)
        return run_step("fetch_layer", self.spec, *flags)

    def heads(self, layer: int = 0) -> Measured:
        """W_Q, W_K, W_V, W_O of a layer."""
        folder = self._heads(layer)
        flags = ("--geometry", self.geometry, "--source", self.source, "--checkpoint", self._checkpoint(layer))
        flags += ("--layer", layer, "--directory", folder, "--record", folder.with_suffix(".json"))
        return run_step("heads", {}, *flags)

    def decompose(self, matrix: str, layer: int = 0, layer_norm: str = "raw") -> Measured:
        """One matrix of a layer."""
        output = self.results / layer_norm / f"decomposition/{matrix}/layer-{layer:02d}.npz"
        return run_step("decompose", {"matrix": matrix, "layer_norm": layer_norm}, *self._layer_flags(layer, output))

    def baseline(self, kind: str, draws: int, layer: int = 0) -> Measured:
        """One kind of literal baseline of a layer, both matrices."""
        output = self.results / f"raw/baselines/{kind}/layer-{layer:02d}.npz"
        spec = {"kind": kind, "draws": draws, "seed": 0, "model": "synthetic", "layer_norm": "raw"}
        spec |= {"matrices": ["value", "qk"]}
        return run_step("baseline", spec, *self._layer_flags(layer, output))

    def haar_pool(self, draws: int = 4096) -> Measured:
        """The pool of random frames."""
        output = self.results / "baselines/haar.npz"
        flags = ("--geometry", self.geometry, "--output", output, "--record", output.with_suffix(".json"))
        return run_step("haar_pool", {"draws": draws, "seed": 0}, *flags)

    def _checkpoint(self, layer: int) -> Path:
        return self.results / f"checkpoint/layer-{layer:02d}.safetensors"

    def _heads(self, layer: int) -> Path:
        return self.results / f"heads/layer-{layer:02d}"

    def _layer_flags(self, layer: int, output: Path) -> tuple[object, ...]:
        flags: tuple[object, ...] = ("--geometry", self.geometry, "--heads", self._heads(layer), "--layer", layer)
        return (*flags, "--output", output, "--record", output.with_suffix(".json"))


@contextlib.contextmanager
def model(shape: Shape) -> Iterator[Model]:
    """A model whose folder goes away at the end; a 405B-shaped one of two layers needs 5 GB meanwhile."""
    with tempfile.TemporaryDirectory(prefix="headmaps-scale-") as folder:
        made = Model(Path(folder), shape)
        made.resolve()
        yield made


def compute_steps(shape: Shape, baselines: Sequence[str] = (), draws: int = 8) -> dict[str, Measured]:
    """Every compute step of one layer of a shape, in the order the workflow runs them."""
    with model(shape) as made:
        found = {"fetch_layer": made.fetch_layer(), "heads": made.heads()}
        found |= {f"decompose {matrix}": made.decompose(matrix) for matrix in ("value", "qk")}
        found["haar_pool"] = made.haar_pool()
        found |= {f"baseline {kind}": made.baseline(kind, draws) for kind in baselines}
    return found


def main() -> None:
    """Measure what is asked for and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "width", "layers", "dag"])
    parser.add_argument("--output", type=Path, help="write the numbers here instead of printing them")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="d_model of `width`")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="numbers of layers of `layers`")
    parser.add_argument("--revisions", type=int, default=154, help="revisions of `dag`")
    given = parser.parse_args()
    found = {"memory": memory, "width": width, "layers": layers, "dag": dag}[given.what](given)
    text = json.dumps(found, indent=1)
    if given.output:
        given.output.write_text(text + "\n")
    else:
        print(text)


def _numbers(steps: dict[str, Measured]) -> dict[str, dict[str, float]]:
    return {name: asdict(one) for name, one in steps.items()}


def memory(_: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of every compute step at the shapes of Llama-3.1-70B and 405B, against the matrices of one layer."""
    shapes = (LLAMA_70B, LLAMA_405B)
    return {str(shape): {"matrices": shape.matrix_bytes} | _numbers(compute_steps(shape)) for shape in shapes}


def width(given: argparse.Namespace) -> dict[str, Any]:
    """One layer of 16 heads of 64 at growing d_model."""
    return {str(d): _numbers(compute_steps(Shape(d, 16, 16, 64, layers=1))) for d in given.widths}


def layers(given: argparse.Namespace) -> dict[str, Any]:
    """The whole workflow, figures included, on small models of growing depth."""
    from scale.workflow import run_depth

    return {str(number): asdict(run_depth(number)) for number in given.layers}


def dag(given: argparse.Namespace) -> dict[str, Any]:
    """`snakemake -n` over a sweep of revisions of 36 layers, before and after it has run."""
    from scale.workflow import plan_sweep

    return plan_sweep(given.revisions)


if __name__ == "__main__":
    main()
