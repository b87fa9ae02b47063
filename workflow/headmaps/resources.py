"""Memory and time of every compute step, from the model's dimensions alone. Standard library only.

The rules ask a cluster for what `Needs` says, and `headmaps plan` shows it before anything runs. The formulas count the
arrays that a step holds at its peak; their constants are fitted to measured peaks (docs/performance.md), and a test
holds them to it: never under, at most twice over.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headmaps.geometry import Geometry
    from headmaps.plan import Plan

CLUSTER_RULES: dict[str, str] = {
    "extract_heads": "heads",
    "decompose": "decompose",
    "haar_pool": "haar_pool",
    "draw_baseline": "baseline",
    "turn_qk": "rotary",
    "compose_layer": "composition",
}
"""Rule -> step of all that is submitted to a cluster; every other rule is short, draws, or needs the network."""

MB = 1_000_000
ENGINE_MB = 400
"""The two Snakemake processes that every SLURM job holds: one takes its bundle's steps in turn, one starts the step."""
ENGINE_SECONDS = 5.0
"""Start of a bundled step in its SLURM job: `srun` and a Snakemake start."""
INTERPRETER = 75 * MB
"""Python with numpy, and what is small."""
START_SECONDS = 0.2
"""Start of a step's process."""
SAFETY = 8
"""How many times the estimated seconds are asked for: a cluster kills what takes longer, and its cores vary."""
POOL_DRAWS = 512
"""Draws of the Haar pool held at once (`headmaps.haar.COSTLY_DRAWS`)."""
NUMBERS_PER_SECOND = 3e7
"""Read, transposed, checked, hashed and written by one core, with the checkpoint on a disk."""
TALL_FLOPS = 4e10
"""Sustained by one core in products of d x r matrices."""
SQUARE_FLOPS = 1e10
"""Sustained in singular values and eigenvalues of r x r matrices."""
RANDOM_PER_SECOND = 1e8
POOL_DRAW_SECONDS = 2.1e-7
"""One draw of the pool, over r squared."""


@dataclass(frozen=True)
class Dimensions:
    """What the formulas need of a model; sizes as in `headmaps.geometry`."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_head_v: int
    layers: int
    one_tensor: bool = False
    """Queries, keys and values are stored as one tensor, or made of products."""

    @classmethod
    def of(cls, geometry: "Mapping[str, Any] | Geometry") -> "Dimensions":
        """From geometry.json or a `Geometry`."""
        value = geometry if isinstance(geometry, Mapping) else vars(geometry)
        return cls(
            d_model=int(value["d_model"]),
            n_heads=int(value["n_heads"]),
            n_kv_heads=int(value["n_kv_heads"]),
            d_head=int(value["d_head"]),
            d_head_v=int(value["d_head_v"]),
            layers=len(value["layers"]),
            one_tensor=value["layout"] not in {"separate", "gguf_llama"},
        )

    @property
    def reading(self) -> int:
        """Numbers in W_Q."""
        return self.n_heads * self.d_head * self.d_model

    @property
    def writing(self) -> int:
        """Numbers in W_O."""
        return self.n_heads * self.d_head_v * self.d_model

    @property
    def keys(self) -> int:
        """Numbers in W_K."""
        return self.n_kv_heads * self.d_head * self.d_model

    @property
    def values(self) -> int:
        """Numbers in W_V."""
        return self.n_kv_heads * self.d_head_v * self.d_model

    @property
    def layer(self) -> int:
        """Numbers in all four."""
        return self.reading + self.keys + self.values + self.writing

    @property
    def rank(self) -> int:
        """The larger of the two inner dimensions."""
        return max(self.d_head, self.d_head_v)

    def pair(self, matrix: str) -> int:
        """Numbers in the two arrays behind a matrix."""
        return self.values + self.writing if matrix == "value" else self.reading + self.keys


# --- peak memory in bytes ---------------------------------------------------------------------------------------------


def heads_bytes(n: Dimensions) -> int:
    """The largest stored tensor in float32, and the largest array made of it."""
    stored = n.reading + n.keys + n.values if n.one_tensor else max(n.reading, n.writing)
    return INTERPRETER + int(1.08 * 4 * (max(stored, n.writing) + max(n.reading, n.writing)))


def decompose_bytes(n: Dimensions, matrix: str) -> int:
    """The two arrays as they are mapped, a dozen factors in float64, and the results of all heads, some twice."""
    results = 8 * n.n_heads * n.rank**2
    return INTERPRETER + 4 * n.pair(matrix) + 12 * 8 * n.d_model * n.rank + 3 * results


def baseline_bytes(n: Dimensions, kind: str, draws: int) -> int:
    """All four arrays as they are mapped, a dozen factors, and the r x r matrices of one head's draws."""
    held = {"spectrum": max(draws, POOL_DRAWS), "unpaired": min(draws, n.n_heads - 1)}.get(kind, draws)
    return INTERPRETER + 4 * n.layer + 12 * 8 * n.d_model * n.rank + 6 * 8 * held * n.rank**2


def haar_pool_bytes(n: Dimensions, draws: int) -> int:
    """The r x r matrices of the draws whose angles and eigenvalues are wanted, and what is kept of all draws."""
    return INTERPRETER + 9 * 8 * POOL_DRAWS * n.rank**2 + 4 * 8 * draws * n.rank


def composition_bytes(n: Dimensions) -> int:
    """One layer's writers and all that another layer reads, in float64, and the arrays they are made of."""
    return INTERPRETER + 4 * n.layer * 2 + 8 * (n.writing + n.reading + n.keys + n.values) + 2 * (64 << 20)


# --- seconds of one core ----------------------------------------------------------------------------------------------


def heads_seconds(n: Dimensions) -> float:
    """Reading, transposing, hashing and writing."""
    return START_SECONDS + n.layer / NUMBERS_PER_SECOND


def _head_seconds(n: Dimensions) -> float:
    """One decomposition: three products, and r x r factorisations."""
    return 6 * n.d_model * n.rank**2 / TALL_FLOPS + 60 * n.rank**3 / SQUARE_FLOPS


def decompose_seconds(n: Dimensions, times: int = 2) -> float:
    """Every head `times` over: by default the stored weights, and once with rounding noise."""
    noise = 2 * n.d_model * n.rank / RANDOM_PER_SECOND
    return START_SECONDS + n.n_heads * (times * _head_seconds(n) + noise)


def baseline_seconds(n: Dimensions, kind: str, draws: int, matrices: int) -> float:
    """Drawing and decomposing; only `shuffle`, `rows` and `unpaired` touch d x r arrays."""
    square = 60 * n.rank**3 / SQUARE_FLOPS
    tall = _head_seconds(n) - square + 2 * n.d_model * n.rank / RANDOM_PER_SECOND
    touches = kind in {"shuffle", "rows", "unpaired"}
    pool = matrices * haar_pool_seconds(n, POOL_DRAWS) if kind == "spectrum" else 0.0
    drawn = min(draws, n.n_heads - 1) if kind == "unpaired" else draws
    return START_SECONDS + pool + matrices * n.n_heads * (_head_seconds(n) + drawn * (square + touches * tall))


def haar_pool_seconds(n: Dimensions, draws: int) -> float:
    """Two factorisations of each draw; small matrices, bound by memory."""
    return START_SECONDS + draws * POOL_DRAW_SECONDS * n.rank**2


def composition_seconds(n: Dimensions) -> float:
    """The last layer's readers against all earlier writers, decomposed on the way."""
    products = 3 * n.n_heads**2 * 2 * n.rank**2 * n.d_model / TALL_FLOPS
    return START_SECONDS + n.layers * (decompose_seconds(n, 1) + products)


# --- what the rules ask for -------------------------------------------------------------------------------------------


def step_needs(plan: "Plan", step: str, wildcards: Any, n: Dimensions) -> tuple[int, float]:
    """Peak memory in bytes and seconds of one core of a compute step.

    Args:
        plan: the plan of the run.
        step: a value of `CLUSTER_RULES`.
        wildcards: the job's wildcards, as far as the step's rule has them.
        n: the model's dimensions.
    """
    baselines = plan.config.baselines
    if step == "heads":
        return heads_bytes(n), heads_seconds(n)
    if step == "decompose":
        return decompose_bytes(n, wildcards.matrix), decompose_seconds(n)
    if step == "rotary":
        times = max(1, len(plan.config.rope_offsets))
        return decompose_bytes(n, wildcards.matrix), decompose_seconds(n, times)
    if step == "haar_pool":
        return haar_pool_bytes(n, baselines.pool), haar_pool_seconds(n, baselines.pool)
    if step == "baseline":
        matrices = len(plan.matrices(wildcards.model))
        seconds = baseline_seconds(n, wildcards.kind, baselines.draws, matrices)
        return baseline_bytes(n, wildcards.kind, baselines.draws), seconds
    return composition_bytes(n), composition_seconds(n)


class Needs:
    """The `resources:` of the compute rules: functions of a job's wildcards, inputs and attempt.

    They read the job's own `geometry` input. Before it exists they raise FileNotFoundError, which Snakemake shows as
    "to be determined": nothing is guessed.

    Args:
        plan: the plan of the run.
        asked: whether anything asks for them, a cluster or `--resources mem_mb=...`; otherwise there are none, since
            Snakemake would spend a tenth of the planning time of a large run on them.
    """

    def __init__(self, plan: "Plan", asked: bool = True) -> None:
        self.plan, self.asked = plan, asked

    def of(self, step: str) -> dict[str, Callable[..., int]]:
        """The resources of a step's rule."""
        return {"mem_mb": self.memory(step), "runtime": self.minutes(step)} if self.asked else {}

    def memory(self, step: str) -> Callable[..., int]:
        """MB to ask for: the step's peak beside Snakemake's own processes, half as much again each attempt."""

        def mem_mb(wildcards: Any, input: Any, attempt: int) -> int:
            peak, _ = step_needs(self.plan, step, wildcards, dimensions(input.geometry))
            return math.ceil((peak / MB + ENGINE_MB) * (1 + 0.5 * (attempt - 1)))

        return mem_mb

    def minutes(self, step: str) -> Callable[..., int]:
        """Minutes to ask for: `SAFETY` times the estimate, twice as many each attempt."""

        def runtime(wildcards: Any, input: Any, attempt: int) -> int:
            _, seconds = step_needs(self.plan, step, wildcards, dimensions(input.geometry))
            return math.ceil(SAFETY * (seconds + ENGINE_SECONDS) / 60) * int(2 ** (attempt - 1))

        return runtime


def dimensions(path: str) -> Dimensions:
    """The dimensions in a geometry.json; read again when it changes, since one process asks for thousands of jobs.

    Raises:
        FileNotFoundError: it is not there yet.
    """
    return _dimensions(str(path), os.stat(path).st_mtime_ns)


@lru_cache(maxsize=4096)
def _dimensions(path: str, changed: int) -> Dimensions:
    with open(path, encoding="utf-8") as stream:
        return Dimensions.of(json.load(stream))
