"""The mutation matrix: one change to a finished run, and exactly the jobs that Snakemake then lists.

A step runs again when, and only when, something that enters its result changed. Each row of the table makes one change
to a finished run of a model with three layers and states what a dry run lists. What stock Snakemake cannot see (an
edited result, an input with an older date, lost metadata) `headmaps verify` must: the second table.

Upstream jobs that are listed take everything downstream with them: within one run the engine cannot know yet that their
bytes will come out the same.
"""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.checkpoints import LLAMA, llama_tensors, write_llama, write_safetensors
from support.project import Project

LAYERS = 3
FETCH = Counter(resolve=1, fetch_layer=LAYERS)
GEOMETRY = Counter(geometry=1)
HEADS = Counter(extract_heads=LAYERS)
DECOMPOSITIONS = Counter(decompose=2 * LAYERS)
POOL = Counter(haar_pool=1)
DRAWN_BASELINES = Counter(draw_baseline=LAYERS)
TABLES = Counter(make_tables=1)
HISTOGRAMS = Counter(draw_figure1_layer_00_to_02=1, draw_figure4_layer_00_to_02=1)
EFFECTS = Counter(draw_figure3_all=1, draw_figure5_all=1)
TERNARY = Counter(draw_figure2_all=1)
OVERVIEWS = Counter(draw_heatmaps_all=1, draw_profiles_all=1, draw_nulls_all=1)
FIGURES = HISTOGRAMS + EFFECTS + TERNARY + OVERVIEWS
ATLAS = Counter(make_atlas=1, index_atlases=1)
PROVENANCE = Counter(describe_run=1)
PAGES = ATLAS + PROVENANCE
# histograms are drawn from the decompositions alone
FROM_TABLES = TABLES + TERNARY + OVERVIEWS + EFFECTS + PAGES
FROM_BASELINES = POOL + DRAWN_BASELINES + FROM_TABLES
FROM_DECOMPOSITIONS = FROM_TABLES + HISTOGRAMS
FROM_HEADS = HEADS + DECOMPOSITIONS + DRAWN_BASELINES + FROM_DECOMPOSITIONS
EVERYTHING = FETCH + GEOMETRY + POOL + FROM_HEADS
NOTHING: Counter[str] = Counter()

Change = Callable[[Project], None]


def edited(file: str, old: str, new: str) -> Change:
    """Replace a piece of text in a project file."""

    def change(project: Project) -> None:
        path = project.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def code(module: str, comment: bool = False) -> Change:
    """Edit a module of the library: a statement, or a comment alone."""

    def change(project: Project) -> None:
        path = project.folder / "workflow/headmaps" / module
        path.write_text(path.read_text() + ("\n# a remark\n" if comment else "\nEDITED = True\n"))

    return change


def config(**sections: Any) -> Change:
    """Change keys of the configuration; a section that is a mapping is merged."""

    def change(project: Project) -> None:
        current = project.config()
        for key, value in sections.items():
            current[key] = current[key] | value if isinstance(value, dict) else value
        project.configure(current)

    return change


def touch_everything(project: Project) -> None:
    later = time.time() + 100
    for path in project.folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path, (later, later))


def clone_results_with_other_dates(project: Project) -> None:
    results = project.folder / "results"
    shutil.copytree(results, project.folder / "copied", copy_function=shutil.copyfile)
    shutil.rmtree(results)
    (project.folder / "copied").rename(results)


def move_the_project(project: Project) -> None:
    moved = project.folder.with_name("moved")
    project.folder.rename(moved)
    moved.rename(project.folder.with_name("project"))


def reorder_and_comment_the_yaml(project: Project) -> None:
    reordered = dict(reversed(project.config().items()))
    reordered["baselines"] = dict(reversed(reordered["baselines"].items()))
    (project.folder / "config/config.yaml").write_text("# a remark\n" + yaml.safe_dump(reordered, sort_keys=False))


def add_a_model(project: Project) -> None:
    write_llama(project.folder / "checkpoints/second", seed=1)
    models = project.config()["models"]
    second = {"name": "second", "layers": LAYERS, "source": "local", "path": "checkpoints/second"}
    config(models=[*models, second])(project)


def rename_the_model(project: Project) -> None:
    config(models=[project.config()["models"][0] | {"name": "renamed"}])(project)


def change_one_byte_of_the_checkpoint(project: Project) -> None:
    tensors = llama_tensors(LLAMA)
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 0] += 1
    write_safetensors(project.folder / "checkpoints/tiny/model.safetensors", tensors)


def change_one_layer_record(project: Project) -> None:
    """As if only layer 1 had been fetched with other bytes: its record says so."""
    record = project.folder / "results/tiny/checkpoint/layer-01.json"
    record.write_text(record.read_text().replace('"sha256": "', '"sha256": "0', 1))


def delete(*files: str) -> Change:
    def change(project: Project) -> None:
        for file in files:
            (project.folder / file).unlink()

    return change


def upgrade(package: str) -> Change:
    """A new line for a package in the lock."""

    def change(project: Project) -> None:
        lock = project.folder / "envs/requirements.lock"
        lines = [
            f"{package}==99.9 \\" if line.startswith(f"{package}==") else line for line in lock.read_text().splitlines()
        ]
        lock.write_text("\n".join(lines))

    return change


def nothing(project: Project) -> None:
    pass


ONE_LAYER_DOWN = Counter(extract_heads=1, decompose=2, draw_baseline=1) + FROM_DECOMPOSITIONS
# a result in the middle that nobody asks for is not missed while what was made from it is there: checkpoints and
# matrices can be deleted to save space. `snakemake decompositions` makes them again, and `headmaps verify` lists them.
NOT_MISSED = NOTHING

# the change | what it does | the jobs it costs
MATRIX: dict[str, tuple[Change, Counter[str]]] = {
    "nothing": (nothing, NOTHING),
    "touch every file": (touch_everything, NOTHING),
    "clone the results with other dates": (clone_results_with_other_dates, NOTHING),
    "move the project folder and back": (move_the_project, NOTHING),
    "reorder and comment the YAML": (reorder_and_comment_the_yaml, NOTHING),
    "edit the README of the config": (edited("config/README.md", "Configuration", "Settings"), NOTHING),
    # configuration
    "a figure's layers": (config(figures={"layers": [1]}), Counter(draw_figure1_layer_01=1, draw_figure4_layer_01=1)),
    "the histogram's weights": (config(figures={"histogram": "unweighted"}), HISTOGRAMS),
    "the heads of figures 3 and 5": (
        config(figures={"heads": [[1, 2]]}),
        Counter(draw_figure3_layer_01=1, draw_figure5_layer_01=1),
    ),
    "the figures' formats": (config(figures={"formats": ["svg"]}), FIGURES),
    "the baselines' seed": (config(baselines={"seed": 1}), FROM_BASELINES),
    "the baselines' draws": (config(baselines={"draws": 9}), DRAWN_BASELINES + FROM_TABLES),
    "the size of the pool": (config(baselines={"pool": 5000}), POOL + FROM_TABLES),
    "one more literal baseline": (
        config(baselines={"kinds": ["gaussian", "internal", "rows"]}),
        DRAWN_BASELINES + TABLES + TERNARY + OVERVIEWS + EFFECTS + PAGES,
    ),
    "another treatment of the layer norm": (
        config(layer_norm=["gain"]),
        DECOMPOSITIONS + DRAWN_BASELINES + TABLES + FIGURES + PAGES,
    ),
    "a second treatment of the layer norm": (
        config(layer_norm=["raw", "gain"]),
        DECOMPOSITIONS
        + DRAWN_BASELINES
        + TABLES
        + FIGURES
        + Counter(compare_treatments_value_qk=1, make_atlas=1)
        + PROVENANCE,
    ),
    # models
    "a model renamed": (rename_the_model, EVERYTHING),
    "a model added": (add_a_model, EVERYTHING),
    # inputs
    "one byte of the local checkpoint": (
        change_one_byte_of_the_checkpoint,
        EVERYTHING,
    ),
    "one layer fetched with other bytes": (change_one_layer_record, ONE_LAYER_DOWN),
    # code: what is edited and what uses it, no more
    "code of the fetching": (code("checkpoint/sources.py"), NOTHING),
    "code of the kernel": (code("decomposition.py"), DECOMPOSITIONS + DRAWN_BASELINES + FROM_DECOMPOSITIONS),
    "code of the baselines": (code("baselines.py"), DRAWN_BASELINES + FROM_TABLES),
    "code of the pool": (code("haar.py"), FROM_BASELINES),
    "code of the tables": (code("tables.py"), FROM_TABLES),
    "code of a figure": (code("figures/histogram.py"), HISTOGRAMS),
    "code that all figures share": (code("figures/style.py"), FIGURES),
    "code of the atlas": (code("atlas/page.py"), ATLAS),
    "code of the config and the plan": (code("config.py"), NOTHING),
    # a comment re-runs too: bytes are compared, so that no parser has to decide what cannot matter
    "a comment in the code of a figure": (code("figures/histogram.py", comment=True), HISTOGRAMS),
    # the environment
    "an upgrade of matplotlib": (upgrade("matplotlib"), FIGURES),
    "an upgrade of numpy": (upgrade("numpy"), EVERYTHING - FETCH - GEOMETRY),
    "an upgrade of huggingface-hub": (upgrade("huggingface-hub"), PROVENANCE),
    # results
    "a decomposition deleted": (
        delete("results/tiny/raw/decomposition/qk/layer-01.npz", "results/tiny/raw/decomposition/qk/layer-01.json"),
        NOT_MISSED,
    ),
    "a figure deleted": (delete("results/tiny/raw/figures/figure2.svg"), TERNARY + PROVENANCE),
    "a fetched layer deleted": (
        delete("results/tiny/checkpoint/layer-01.safetensors"),
        NOT_MISSED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", MATRIX)
def test_a_change_costs_exactly_the_jobs_it_enters(changed: Project, row: str) -> None:
    change, expected = MATRIX[row]
    change(changed)
    # whatever is made again, the page that says what made the results is written again
    assert changed.planned() == (expected | PROVENANCE if expected else NOTHING)


@pytest.mark.slow
@pytest.mark.parametrize("cores", ["1", "2", "16"])
def test_the_number_of_cores_costs_nothing(changed: Project, cores: str) -> None:
    assert changed.planned("--cores", cores) == NOTHING


@pytest.mark.slow
def test_a_lost_run_history_fetches_nothing_again(changed: Project) -> None:
    shutil.rmtree(changed.folder / ".snakemake")
    assert changed.planned() == NOTHING


@pytest.mark.slow
def test_a_project_that_moved_for_good_runs_nothing(changed: Project) -> None:
    moved = changed.folder.with_name("elsewhere")
    changed.folder.rename(moved)
    assert Project(moved).planned() == NOTHING


def edit_a_table(project: Project) -> None:
    path = project.folder / "results/tiny/raw/tables/heads.csv"
    path.write_text(path.read_text().replace("0.", "0.9", 1))


def truncate_an_array(project: Project) -> None:
    path = project.folder / "results/tiny/raw/decomposition/value/layer-00.npz"
    path.write_bytes(path.read_bytes()[:-100])


def replace_an_input_by_an_older_file(project: Project) -> None:
    change_one_byte_of_the_checkpoint(project)
    os.utime(project.folder / "checkpoints/tiny/model.safetensors", (0, 0))


def lose_the_history_and_edit_code(project: Project) -> None:
    shutil.rmtree(project.folder / ".snakemake")
    code("tables.py")(project)


def lose_the_history_and_change_the_seed(project: Project) -> None:
    shutil.rmtree(project.folder / ".snakemake")
    config(baselines={"seed": 5})(project)


def add_a_stranger(project: Project) -> None:
    (project.folder / "results/tiny/raw/tables/mine.csv").write_text("x")


# what stock Snakemake does not see | the change | words of the finding, exit status of verify
UNSEEN: dict[str, tuple[Change, tuple[str, ...], int]] = {
    "nothing": (nothing, ("verified",), 0),
    "a table edited by hand": (edit_a_table, ("altered", "heads.csv", "cause: edited"), 1),
    "an array truncated": (truncate_an_array, ("altered", "layer-00.npz", "cause: edited"), 1),
    "a result deleted": (delete("results/tiny/raw/figures/figure2.png"), ("missing", "figure2.png"), 1),
    "an input replaced by an older file": (replace_an_input_by_an_older_file, ("stale", "cause: input"), 1),
    "code edited after the history was lost": (
        lose_the_history_and_edit_code,
        ("stale", "cause: code", "tables.py"),
        1,
    ),
    "a seed changed after the history was lost": (
        lose_the_history_and_change_the_seed,
        ("stale", "cause: config", "seed was 0, is 5"),
        1,
    ),
    "an upgrade of numpy": (upgrade("numpy"), ("stale", "cause: environment"), 1),
    "a result in the middle deleted": (
        delete("results/tiny/raw/decomposition/qk/layer-01.npz"),
        ("missing", "decomposition/qk/layer-01.npz", "deleted after it was made"),
        1,
    ),
    "a file that no rule makes": (add_a_stranger, ("unknown", "mine.csv", "left over"), 0),
    "a model no longer in the config": (rename_the_model, ("unknown", "results/tiny", "not in this config"), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", UNSEEN)
def test_verify_sees_it_and_names_the_cause(changed: Project, row: str) -> None:
    change, words, status = UNSEEN[row]
    change(changed)
    run = changed.headmaps("verify", check=False)
    for word in words:
        assert word in run.text, run.text
    assert run.status == status, run.text


@pytest.mark.slow
def test_what_verify_advises_repairs_it(changed: Project) -> None:
    edit_a_table(changed)
    advice = changed.headmaps("verify", check=False).text.split("run:  snakemake --cores all ")[-1].split()
    changed.run(*advice)
    assert changed.headmaps("verify").status == 0


def test_the_table_covers_every_module_that_a_step_imports() -> None:
    """No library module can be edited without a row, here or in the test of declared code, that says what it costs."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "workflow"))
    from headmaps.step_code import CODE

    assert all(Path("workflow/headmaps", name).suffix == ".py" for names in CODE.values() for name in names)
