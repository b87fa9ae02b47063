"""The whole workflow on a checkpoint of random weights, against one bare process that does the same steps."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headmaps.errors import HeadmapsError

PROJECT = Path(__file__).resolve().parents[3]
_PARTS = ("Snakefile", "workflow", "profiles/default", "envs", "config")
_COMMAND = re.compile(
    r"^\s*(?:Shell command: )?python -m headmaps\.steps\.(\w+) (.*?)(?: > \S+ 2>&1| 2>&1 \| tee .*)$", re.MULTILINE
)
Steps = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Cost:
    """What a program and all that it started took: wall and processor seconds, and the largest process in bytes."""

    seconds: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Shape:
    """Of a decoder like falcon-rw-1b: layers, heads, d_model."""

    layers: int
    heads: int
    d_model: int


def make_checkpoint(folder: Path, shape: Shape) -> None:
    """Random float16 weights in the form of falcon-rw (query, key and value in one tensor, by head; ALiBi)."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    rng, d = np.random.default_rng(0), shape.d_model
    sizes = {
        "input_layernorm.weight": (d,),
        "input_layernorm.bias": (d,),
        "self_attention.query_key_value.weight": (3 * d, d),
        "self_attention.query_key_value.bias": (3 * d,),
        "self_attention.dense.weight": (d, d),
        "self_attention.dense.bias": (d,),
    }
    names = [f"model-{layer:05d}.safetensors" for layer in range(shape.layers)]
    weight_map: dict[str, str] = {}
    for layer, name in enumerate(names):
        tensors = {
            f"transformer.h.{layer}.{tensor}": (rng.standard_normal(size, np.float32) * 0.5 / d**0.5).astype(np.float16)
            for tensor, size in sizes.items()
        }
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "model_type": "falcon",
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "new_decoder_architecture": False,
        "parallel_attn": False,
        "hidden_size": d,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "layer_norm_epsilon": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))


def make_project(folder: Path, checkpoint: Path, shape: Shape) -> None:
    """A copy of the workflow, configured for the article's figures of one layer and head of this checkpoint."""
    for part in _PARTS:
        source, target = PROJECT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    middle = shape.layers // 2
    config = {
        "models": [{"name": "random", "layers": shape.layers, "source": "local", "path": str(checkpoint)}],
        "layer_norm": ["raw"],
        "baselines": {"kinds": ["gaussian", "spectrum"], "draws": 64, "pool": 4096, "seed": 0},
        "figures": {"formats": ["svg", "png"], "layers": [middle], "heads": [[middle, 0]], "histogram": "weighted"},
    }
    (folder / "config/config.yaml").write_text(json.dumps(config))  # JSON is YAML


def run(command: list[str], folder: Path) -> tuple[Cost, str]:
    """Run a program to its end: what it took, and what it printed.

    Raises:
        HeadmapsError: it failed.
    """
    environment = os.environ | {"PYTHONPATH": "workflow", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    environment |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(started.pid, 0)  # of this program and of what it waited for, and of nothing else
        seconds = time.perf_counter() - start
        started.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read()
    if started.returncode:
        raise HeadmapsError(f"a program of the benchmark failed: {shlex.join(command)}", where=printed[-2000:])
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024), printed


def steps_of(printed: str) -> Steps:
    """Every step that a run printed with `--printshellcmds`, in the order they were started: name and arguments."""
    return [(name, shlex.split(rest)) for name, rest in _COMMAND.findall(printed)]


def compare(folder: Path, shape: Shape, cores: int) -> dict[str, Cost]:
    """Run the workflow, run it again with nothing to do, and run its steps in one bare process.

    Args:
        folder: an empty folder for the checkpoint (2 bytes a weight) and the results (some 4 times that).
        shape: of the checkpoint.
        cores: for the workflow; the bare process has one thread.
    """
    make_checkpoint(folder / "checkpoint", shape)
    make_project(folder / "project", folder / "checkpoint", shape)
    project = folder / "project"
    snakemake = [sys.executable, "-m", "snakemake", "--cores", str(cores)]
    whole, printed = run([*snakemake, "--printshellcmds", "--quiet", "host"], project)
    again, _ = run(snakemake, project)
    steps = steps_of(printed)
    if not steps:
        raise HeadmapsError("the workflow's commands are not in what it printed", where=printed[-2000:])
    shutil.rmtree(project / "results")
    file = folder / "steps.json"
    file.write_text(json.dumps(steps))
    bare, _ = run([sys.executable, "-m", "headmaps.benchmark.bare", str(file)], project)
    return {"the workflow": whole, "the workflow again, nothing to do": again, "one bare process": bare}
