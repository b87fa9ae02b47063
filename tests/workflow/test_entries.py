"""How a run is started: the two entries, the named targets, other configurations, and what reading the plan costs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.checkpoints import write_llama
from support.configs import SMALL_CONFIG
from support.dry_run import PlannedJob, planned_jobs
from support.project import ROOT, Project

FIRST: dict[str, Any] = {"name": "first", "layers": 3, "source": "local", "path": "checkpoints/first"}
SECOND: dict[str, Any] = {"name": "second", "layers": [1, 2], "source": "local", "path": "checkpoints/second"}
TWO_MODELS = SMALL_CONFIG | {
    "models": [FIRST, SECOND],
    "layer_norm": ["raw", "gain"],
    "comparisons": [{"name": "both", "models": ["first", "second"]}],
}


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two models of different layers, in which nothing has run. Do not change it."""
    project = Project.copy_to(tmp_path_factory.mktemp("entries") / "project")
    for model in (FIRST, SECOND):
        write_llama(project.folder / model["path"])
    project.configure(TWO_MODELS)
    return project


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file but Snakemake's own."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".snakemake" not in path.parts
    }


# --- entries ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(idle: Project) -> list[PlannedJob]:
    """The plan of a plain `snakemake`."""
    return planned_jobs(idle)


def test_both_entries_plan_the_same_jobs(idle: Project, planned: list[PlannedJob]) -> None:
    """The catalogue of workflows starts at workflow/Snakefile; a plain include there would plan nothing and exit 0."""
    from_catalogue = planned_jobs(idle, "--snakefile", "workflow/Snakefile")
    assert len(planned) > 50
    assert set(from_catalogue) == set(planned)


def test_reading_the_plan_writes_nothing(idle: Project, tmp_path: Path) -> None:
    project = idle.duplicate(tmp_path / "project")
    before = files_in(project.folder)
    project.run("--dry-run", PYTHONDONTWRITEBYTECODE="1")
    assert files_in(project.folder) == before


def test_reading_the_plan_imports_no_numerics() -> None:
    """The Snakefile is parsed twice for every job of a cluster; its imports cost that often."""
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]
    imports = [line for file in files for line in re.findall(r"(?m)^(?:from|import) headmaps.*$", file.read_text())]
    assert imports
    heavy = "[m for m in ('numpy', 'scipy', 'pandas', 'matplotlib', 'pyarrow') if m in sys.modules]"
    program = "\n".join(["import sys", *imports, f"print({heavy})"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_linter_is_content(idle: Project) -> None:
    """The default configuration, and one of this file with comparisons and treatments."""
    for config in (str(ROOT / "config/config.yaml"), "config/config.yaml"):
        assert "your workflow is in a good condition" in idle.run("--lint", "--configfile", config).text


def test_make_figures_runs_the_workflow_and_says_where_the_figures_are() -> None:
    # make says which folder it enters when another make has started these tests
    asked = ["make", "--no-print-directory", "-n", "figures"]
    commands = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"(?m)^snakemake --cores all$", commands)
    assert commands.rstrip().endswith("headmaps where")


@pytest.mark.slow
def test_a_second_run_says_that_there_is_nothing_to_do(finished: Project) -> None:
    before = finished.results()
    assert "Nothing to be done" in finished.run().text
    assert finished.results() == before


# --- targets ----------------------------------------------------------------------------------------------------------

LAYERS = {"first": ("00", "01", "02"), "second": ("01", "02")}
TREATMENTS = ("raw", "gain")
FORMATS = ("svg", "png")
EACH = [f"results/{model}/{treatment}" for model in LAYERS for treatment in TREATMENTS]


def per_layer(pattern: str) -> set[str]:
    """The pattern for every layer of both models."""
    return {pattern.format(model=model, layer=layer) for model, layers in LAYERS.items() for layer in layers}


def per_matrix_layer(figure: str) -> set[str]:
    """A figure of every layer, under each treatment, in both formats."""
    places = {f"{place}/figures/{figure}" for place in EACH}
    return {
        f"{place}/layer-{layer}.{form}" for place in places for layer in LAYERS[place.split("/")[1]] for form in FORMATS
    }


def everywhere(*names: str) -> set[str]:
    """Files in the figures folder of each model and treatment, in both formats."""
    return {f"{place}/figures/{name}.{form}" for place in EACH for name in names for form in FORMATS}


BY_ROLE = ("most-self", "median-self", "least-self")
BY_MATRIX = ("value", "qk")
FIGURES: dict[str, set[str]] = {
    "figure1": per_matrix_layer("figure1"),
    "figure2": everywhere("figure2", "figure2-qk"),
    "figure3": everywhere(*(f"figure3/{role}" for role in BY_ROLE)),
    "figure4": per_matrix_layer("figure4"),
    "figure5": everywhere(*(f"figure5/{role}" for role in BY_ROLE)),
    "heatmaps": everywhere(*(f"heatmaps-{matrix}" for matrix in BY_MATRIX)),
    "profiles": everywhere(*(f"profiles-{matrix}" for matrix in BY_MATRIX)),
    "nulls": everywhere(*(f"nulls-{matrix}" for matrix in BY_MATRIX)),
}
# the name | what it asks for, over every configured model
TARGETS: dict[str, set[str]] = FIGURES | {
    "checkpoints": per_layer("results/{model}/checkpoint/layer-{layer}.json"),
    "heads": per_layer("results/{model}/heads/layer-{layer}.json"),
    "decompositions": {
        file
        for treatment in TREATMENTS
        for matrix in BY_MATRIX
        for file in per_layer("results/{model}/" + f"{treatment}/decomposition/{matrix}/layer-" + "{layer}.json")
    },
    "baselines": {f"results/{model}/baselines/haar.json" for model in LAYERS}
    | {
        file
        for treatment in TREATMENTS
        for file in per_layer("results/{model}/" + f"{treatment}/baselines/internal/layer-" + "{layer}.json")
    },
    "tables": {f"{place}/tables/{name}" for place in EACH for name in ("heads.csv", "vectors.parquet")},
    "figures": set().union(*FIGURES.values()),
    "atlas": {"results/first/atlas.html", "results/second/atlas.html", "results/atlas.html"},
    "comparisons": {f"results/{model}/treatments/treatments.csv" for model in LAYERS}
    | {f"results/comparison/both/{treatment}/comparison.json" for treatment in TREATMENTS},
}


@pytest.fixture(scope="module")
def targets(idle: Project) -> dict[str, PlannedJob]:
    """The plan of every named target at once, by the target's name."""
    return {job.rule: job for job in planned_jobs(idle, *TARGETS)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_named_target_asks_for_its_files_of_every_model(targets: dict[str, PlannedJob], target: str) -> None:
    wanted = TARGETS[target]
    assert wanted <= targets[target].inputs
    assert all(file.endswith(".json") for file in targets[target].inputs - wanted), "records may be asked for too"


def test_every_named_target_is_in_the_table() -> None:
    rules = (ROOT / "workflow/rules/targets.smk").read_text()
    assert set(re.findall(r"(?m)^rule (\w+):", rules)) <= TARGETS.keys()


def test_the_default_is_everything(planned: list[PlannedJob], targets: dict[str, PlannedJob]) -> None:
    (everything,) = [job for job in planned if job.rule == "all"]
    for name in ("tables", "figures", "atlas", "comparisons"):
        assert targets[name].inputs <= everything.inputs


def test_one_figure_plans_what_it_needs_and_no_more(idle: Project) -> None:
    jobs = planned_jobs(idle, "figure1")
    drawn = {"draw_figure1_layer_00_to_02", "draw_figure1_layer_01_to_02_1"}
    needed = {"resolve", "fetch_layer", "geometry", "extract_heads", "decompose", "figure1"}
    assert {job.rule for job in jobs} == needed | drawn
    matrices = {job.spec["matrix"] for job in jobs if job.rule == "decompose"}
    assert matrices == {"value"}


# --- configurations ---------------------------------------------------------------------------------------------------


def test_another_config_file_replaces_the_models(idle: Project, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(SMALL_CONFIG | {"models": [SECOND | {"name": "third"}]}))
    jobs = planned_jobs(idle, "--configfile", str(other))
    models = {file.split("/")[1] for job in jobs for file in job.outputs if file.startswith("results/")}
    assert models == {"third", "atlas.html", "atlas.json"}


def test_the_shipped_configs_can_be_planned(idle: Project, tmp_path: Path) -> None:
    project = idle.duplicate(tmp_path / "project")
    for config in sorted((ROOT / "config").glob("*.yaml")):
        shutil.copy(config, project.folder / "config")
        models = [entry["name"] for entry in yaml.safe_load(config.read_text())["models"]]
        jobs = planned_jobs(project, "tables", "--configfile", f"config/{config.name}")
        made = {file.split("/")[1] for job in jobs for file in job.outputs}
        assert made == set(models)
