"""What a step uses is what its rule declares: code, inputs and outputs.

A step runs again when a declared input changes, and only then. So an import or a file that a rule does not declare
would be a change that nobody sees, and a declared one that is never used would be a run for nothing. Here a
configuration with every rule is planned and run, and every step's process is watched from inside (support/audit.py).

Fetching is exempt: it declares no code, so that no edit downloads a checkpoint again, and keeps files of its own.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import yaml

from headmaps.config import read_config
from headmaps.plan import Plan
from headmaps.products import Product, products
from support.audit import Watched, watch, watched
from support.checkpoints import LLAMA, llama_tensors, write_llama
from support.configs import SMALL_CONFIG
from support.dry_run import PlannedJob, planned_jobs
from support.project import ROOT, Project
from support.published_numbers import write_published
from support.wheels import only_index, wheel_entry, write_wheel

LAYERS = 2
FETCHING = {"fetch_files", "resolve", "fetch_layer"}
FIXTURES = ROOT / "tests/oracle/fixtures"

FIRST = {
    "name": "tiny-step1", "layers": LAYERS, "source": "local", "path": "checkpoints/first",
    "states": "states", "published": "first",
}  # fmt: skip
SECOND = {"name": "tiny-step2", "layers": LAYERS, "source": "local", "path": "checkpoints/second"}
# every optional rule, every baseline, every kind of comparison
EVERYTHING: dict[str, Any] = SMALL_CONFIG | {
    "models": [FIRST, SECOND],
    "layer_norm": ["raw", "gain"],
    "baselines": {
        "kinds": ["gaussian", "spectrum", "shuffle", "rows", "internal", "unpaired"],
        "draws": 3, "pool": 4096, "seed": 0,
    },
    "figures": SMALL_CONFIG["figures"] | {"formats": ["svg"]},
    "rope_offsets": [0, 3],
    "composition": True,
    "comparisons": [
        {"name": kind, "models": ["tiny-step1", "tiny-step2"], "kind": kind} for kind in ("models", "training", "pair")
    ],
}  # fmt: skip


def local(name: str, **changes: Any) -> dict[str, Any]:
    """The entry of a local model of one layer."""
    return {"name": name, "layers": [0], "source": "local", "path": f"checkpoints/{name}"} | changes


# the other ways in: formats, types and layouts that read with other code
SOURCES: dict[str, Any] = SMALL_CONFIG | {
    "models": [
        local("quantised", path="checkpoints/quantised.gguf"),
        local("bfloat16-fused", path=str(FIXTURES / "falcon-7b")),
        local("latent", path=str(FIXTURES / "deepseek_v2"), matrices=["value", "qk_nope", "qk_rope"]),
        local("encoder", path=str(FIXTURES / "bert")),
    ],
    "baselines": SMALL_CONFIG["baselines"] | {"kinds": ["gaussian"]},
    "rope_offsets": [0, 3],
}


class Llama:
    """The small Llama's heads, as `write_published` wants them."""

    layers = LAYERS

    def heads(self, layer: int) -> Iterator[tuple[np.ndarray, ...]]:
        """(W_Q, W_K, W_V, W_O) of each head, and biases of zero."""
        tensors, r = llama_tensors(LLAMA | {"num_hidden_layers": LAYERS}), LLAMA["head_dim"]
        q, k, v, o = (
            tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"].astype(np.float64) for part in "qkvo"
        )
        share = LLAMA["num_attention_heads"] // LLAMA["num_key_value_heads"]
        for head in range(LLAMA["num_attention_heads"]):
            mine, group = slice(head * r, head * r + r), slice(head // share * r, head // share * r + r)
            zeros = np.zeros(r)
            yield q[mine].T, k[group].T, v[group].T, o[:, mine].T, zeros, zeros, zeros, np.zeros(len(o))


def write_gguf(path: Path) -> None:
    """A Llama of one layer in Q8_0, by the reference implementation's writer."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 1), (writer.add_embedding_length, 64), (writer.add_context_length, 128),
        (writer.add_head_count, 4), (writer.add_head_count_kv, 2), (writer.add_rope_dimension_count, 16),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_feed_forward_length, 64),
    ):  # fmt: skip
        add(value)
    random = np.random.default_rng(0)
    for name, shape in {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}.items():
        values = random.normal(size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"blk.0.{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True)
class Planned:
    """A project and the plans of its two configurations; `environment` is what they run in."""

    project: Project
    jobs: dict[str, list[PlannedJob]]
    environment: dict[str, str]

    def every(self) -> list[PlannedJob]:
        """The jobs of both, without targets."""
        return [job for jobs in self.jobs.values() for job in jobs if job.step]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Checkpoints, states and published numbers, and the plan of each configuration."""
    project = Project.copy_to(tmp_path_factory.mktemp("declared") / "project")
    folder = project.folder
    for seed, name in enumerate(("first", "second")):
        write_llama(folder / "checkpoints" / name, seed, num_hidden_layers=LAYERS)
    write_gguf(folder / "checkpoints/quantised.gguf")
    write_published(folder / "workflow/reference/first", Llama(), layer=1, head=2)  # type: ignore[arg-type]
    (folder / "states").mkdir()
    for layer in range(LAYERS):
        for side in ("input", "output"):
            states = np.random.default_rng(layer).standard_normal((20, LLAMA["hidden_size"]))
            np.save(folder / f"states/{side}-{layer:02d}.npy", states)
    files = {f"tiny_model/{path.name}": path.read_bytes() for path in (folder / "checkpoints/first").iterdir()}
    wheel = {"name": "wheel", "layers": LAYERS} | wheel_entry(
        write_wheel(folder / "index", "tiny-model", "1.0", files), folder="tiny_model"
    )
    (folder / "everything.yaml").write_text(yaml.safe_dump(EVERYTHING))
    (folder / "sources.yaml").write_text(yaml.safe_dump(SOURCES | {"models": [*SOURCES["models"], wheel]}))
    jobs = {
        "everything": planned_jobs(project, "--configfile", "everything.yaml"),
        "sources": planned_jobs(project, *targets_of_sources(), "--configfile", "sources.yaml"),
    }
    return Planned(project, jobs, only_index(folder / "index"))


def targets_of_sources() -> list[str]:
    """Up to the tables, and the positions of two models."""
    rotary = ("quantised/raw/tables/rotary-qk.csv", "latent/raw/tables/rotary-qk_rope.csv")
    return ["tables", *(f"results/{file}" for file in rotary)]


def rule_kind(job: PlannedJob) -> str:
    """What declares code of its own: a step, and of the figure step each figure, with and without states."""
    if job.step != "figure":
        return job.step
    return job.spec["figure"] + ("_states" if any("/states/" in f"/{file}" for file in job.inputs) else "")


# --- the plan and the products ----------------------------------------------------------------------------------------


def the_products(planned: Planned, config: str) -> dict[str, Product]:
    """Record -> product, as `headmaps verify` knows them."""
    with pytest.MonkeyPatch.context() as here:
        here.chdir(planned.project.folder)
        plan = Plan.of(read_config(yaml.safe_load(Path(f"{config}.yaml").read_text())))
        return {product.record: product for product in products(plan)}


def test_the_configuration_has_every_rule(planned: Planned) -> None:
    steps = {path.stem for path in (ROOT / "workflow/headmaps/steps").glob("*.py")}
    no_rule_of_its_own = {"__init__", "command"}
    asked_for_by_name = {"verdict", "verify"}  # the targets `published` and `verify` say something and write nothing
    assert {job.step for job in planned.every()} == steps - no_rule_of_its_own - asked_for_by_name


def test_every_job_is_a_product_that_verify_knows(planned: Planned) -> None:
    """Same rule, files, spec and small inputs, said by the rules to Snakemake and by products.py to `headmaps`."""
    known = the_products(planned, "everything")
    jobs = [job for job in planned.jobs["everything"] if job.step]
    assert {file for job in jobs for file in job.outputs} == {
        file for product in known.values() for file in (product.record, *product.files)
    }
    for job in jobs:
        (product,) = [known[file] for file in job.outputs if file in known]
        assert (product.rule, {product.record, *product.files}) == (job.rule, set(job.outputs))
        assert product.spec == job.spec, product.record
        small = {file for file in job.inputs if re.match(r"results/.*\.json$", file)}
        if job.step == "heads":  # only looks up names in it; what they stand for is in the other two records
            small -= {f"results/{product.model}/checkpoint/source.json"}
        assert {file for file in product.inputs if re.match(r"results/.*\.json$", file)} == small, product.record


def test_products_come_after_what_they_are_made_from(planned: Planned) -> None:
    for config in planned.jobs:
        seen: set[str] = set()
        for product in the_products(planned, config).values():
            made_here = {file for file in product.inputs if file.startswith("results/")}
            assert made_here <= seen, product.record
            seen |= {product.record, *product.files}


# --- the steps, watched -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes(planned: Planned) -> list[tuple[PlannedJob, Watched]]:
    """Both configurations run, and every job with its process."""
    watch(planned.project)
    run = planned.project.run("--configfile", "everything.yaml", timeout=1500)
    assert "Nothing to be done" not in run.text
    targets = targets_of_sources()
    planned.project.run(*targets, "--configfile", "sources.yaml", timeout=1500, **planned.environment)
    by_command = {command_of(job): job for job in planned.every()}
    pairs = [(by_command.pop(process.argv), process) for process in watched(planned.project)]
    assert by_command == {}, "every planned job has run"
    return pairs


def command_of(job: PlannedJob) -> tuple[str, ...]:
    """A planned job's words from the module's name on."""
    command = re.split(r" (?:2>&1 \||> )", job.shell)[0]
    return tuple(shlex.split(command)[2:])


@pytest.mark.slow
def test_a_step_imports_what_its_rule_declares_and_no_more(processes: list[tuple[PlannedJob, Watched]]) -> None:
    used: dict[str, set[str]] = {}
    declared: dict[str, set[str]] = {}
    for job, process in processes:
        if job.step in FETCHING:
            continue
        code = {file for file in job.inputs if file.startswith("workflow/headmaps/") and file.endswith(".py")}
        modules = {file for file in process.modules if file.startswith("workflow/headmaps/")}
        kind = rule_kind(job)
        assert modules <= code, f"{kind} imports {sorted(modules - code)}, which its rule does not declare"
        used.setdefault(kind, set()).update(modules)
        declared.setdefault(kind, set()).update(code)
    never = {kind: sorted(declared[kind] - used[kind]) for kind in used if declared[kind] - used[kind]}
    assert never == {}, "declared, but never imported"


@pytest.mark.slow
def test_fetching_declares_no_code(processes: list[tuple[PlannedJob, Watched]]) -> None:
    for job, _ in processes:
        if job.step in FETCHING:
            assert not any(file.startswith(("workflow/", "envs/")) for file in job.inputs)


def final_name(path: str) -> str:
    """The file that a temporary one beside it becomes."""
    return re.sub(r"/\.([^/]+)\.[^/.]+\.part$", r"/\1", path)


def own_files(job: PlannedJob, opened: set[str]) -> set[str]:
    """What a job may open: its inputs and outputs, and the sidecars (what made them), on which no rule depends."""
    if job.step == "describe":  # it tells what the sidecars and the version control say, and no number comes of it
        return {*job.inputs, *job.outputs, *(f for f in opened if f.endswith(".made.json") or f.startswith(".git/"))}
    sidecars = {re.sub(r"\.json$", ".made.json", file) for file in job.outputs if file.endswith(".json")}
    return {*job.inputs, *job.outputs, *sidecars}


@pytest.mark.slow
def test_a_step_opens_its_inputs_and_outputs_and_nothing_else(processes: list[tuple[PlannedJob, Watched]]) -> None:
    for job, process in processes:
        opened = {final_name(file) for file in process.reads | process.writes}
        opened = {file for file in opened if not file.startswith("workflow/") or file in job.inputs}
        if job.step in FETCHING:
            model = job.spec.get("path") or ""
            folder = re.match(r"results/[^/]+/checkpoint/", min(job.outputs)).group(0)  # type: ignore[union-attr]
            opened = {file for file in opened if not file.startswith((folder, "index/", model or "index/"))}
            opened -= {"wheel"}  # pip looks for a folder of the distribution's name where it runs; there is none
        own = own_files(job, opened)
        assert opened <= own, f"{job.rule}: {sorted(opened - own)}"


@pytest.mark.slow
def test_a_step_writes_only_its_outputs(processes: list[tuple[PlannedJob, Watched]]) -> None:
    for job, process in processes:
        if job.step not in FETCHING:
            written = {final_name(file) for file in process.writes}
            assert written <= own_files(job, written) - job.inputs, f"{job.rule}: {sorted(written)}"


@pytest.mark.slow
def test_no_result_depends_on_what_else_lies_in_a_folder(processes: list[tuple[PlannedJob, Watched]]) -> None:
    for job, process in processes:
        if job.step not in FETCHING:
            listed = {folder for folder in process.lists if not folder.startswith("workflow")}
            assert listed == set(), f"{job.rule} lists {sorted(listed)}"


@pytest.mark.slow
def test_a_watcher_sees_an_undeclared_file(planned: Planned, tmp_path: Path) -> None:
    """The tests above can fail: a step made to read a stray file and to import a stray module is caught."""
    project = planned.project.duplicate(tmp_path / "project")
    (project.folder / "audit.jsonl").unlink(missing_ok=True)
    shutil.rmtree(project.folder / "results", ignore_errors=True)
    watch(project)
    (project.folder / "stray.txt").write_text("1")
    (project.folder / "workflow/headmaps/stray.py").write_text("VALUE = open('stray.txt').read()\n")
    step = project.folder / "workflow/headmaps/steps/geometry.py"
    step.write_text(step.read_text().replace("def main(", "import headmaps.stray\n\n\ndef main(", 1))
    project.run("results/tiny-step1/heads/geometry.json", "--configfile", "everything.yaml")
    (process,) = [each for each in watched(project) if each.argv[0] == "headmaps.steps.geometry"]
    assert "workflow/headmaps/stray.py" in process.modules
    assert "stray.txt" in process.reads
