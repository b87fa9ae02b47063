"""Verify, lock and diff on finished runs: what the engine cannot see is found, and the advice puts it right."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.checkpoints import LLAMA, llama_tensors, write_llama, write_safetensors
from support.configs import SMALL_CONFIG
from support.project import Project, Run
from support.wheels import only_index, wheel_entry, write_wheel

pytestmark = pytest.mark.slow

TABLE = "results/tiny/raw/tables/heads.csv"


def advised(run: Run) -> list[str]:
    """The arguments of the command that verify advises."""
    return run.text.split("run:  snakemake --cores all", 1)[1].split()


def repaired(project: Project, **environment: str) -> Run:
    """Run what verify advises, and verify again."""
    project.run(*advised(project.headmaps("verify", check=False)), **environment)
    return project.headmaps("verify", check=False)


# --- what is put right by the advice ----------------------------------------------------------------------------------


def replace_the_checkpoint_by_an_older_one(project: Project) -> None:
    tensors = llama_tensors(LLAMA)
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 0] += 1
    path = project.folder / "checkpoints/tiny/model.safetensors"
    write_safetensors(path, tensors)
    os.utime(path, (0, 0))


def edit_a_record(project: Project) -> None:
    path = project.folder / "results/tiny/heads/layer-01.json"
    path.write_text(path.read_text().replace('"step"', ' "step"'))


def lose_a_sidecar(project: Project) -> None:
    (project.folder / "results/tiny/raw/tables/tables.made.json").unlink()


def edit_an_array_of_each_kind(project: Project) -> None:
    for name in ("heads/layer-00/W_V.npy", "raw/decomposition/qk/layer-02.npz", "checkpoint/layer-01.safetensors"):
        path = project.folder / "results/tiny" / name
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def delete_a_table_and_a_figure(project: Project) -> None:
    for name in ("tables/vectors.parquet", "figures/figure2.svg"):
        (project.folder / "results/tiny/raw" / name).unlink()


def edit_the_provenance(project: Project) -> None:
    path = project.folder / "results/tiny/provenance.json"
    path.write_text(path.read_text().replace("described", "Described"))


def edit_the_page(project: Project) -> None:
    path = project.folder / "results/tiny/atlas.html"
    path.write_text(path.read_text() + "<!-- mine -->")


HARM: dict[str, Callable[[Project], None]] = {
    "a checkpoint replaced by an older file": replace_the_checkpoint_by_an_older_one,
    "an edited record": edit_a_record,
    "a lost sidecar": lose_a_sidecar,
    "edited arrays": edit_an_array_of_each_kind,
    "a table and a figure deleted": delete_a_table_and_a_figure,
    "an edited provenance": edit_the_provenance,
    "an edited page": edit_the_page,
}


@pytest.mark.parametrize("row", HARM)
def test_what_verify_advises_puts_it_right(changed: Project, row: str) -> None:
    HARM[row](changed)
    assert changed.headmaps("verify", check=False).status == 1
    run = repaired(changed)
    assert run.status == 0, run.text


def test_after_the_advice_the_bytes_are_the_old_ones(changed: Project, finished: Project) -> None:
    edit_an_array_of_each_kind(changed)
    repaired(changed)
    assert changed.results() == finished.results()


def test_without_the_engine_s_history_code_is_still_compared(changed: Project) -> None:
    shutil.rmtree(changed.folder / ".snakemake")
    path = changed.folder / "workflow/headmaps/figures/ternary.py"
    path.write_text(path.read_text() + "\n")
    os.utime(path, (0, 0))
    assert not changed.planned()  # the engine has forgotten, and the date is an old one
    run = changed.headmaps("verify", check=False)
    assert "workflow/headmaps/figures/ternary.py has changed since" in run.text
    assert repaired(changed).status == 0


def test_fetched_whole_files_are_hashed_and_fetched_again(fresh: Callable[..., Project], tmp_path: Path) -> None:
    index = tmp_path / "index"
    folder = write_llama(tmp_path / "model")
    contents = {f"pack/model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    wheel = write_wheel(index, "pack", "1.0", contents)
    entry = wheel_entry(wheel, name="whole", layers=3, folder="pack/model")
    project = fresh(models=[entry])
    project.run("tables", **only_index(index))
    path = project.folder / "results/whole/checkpoint/files/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    findings = json.loads(project.headmaps("verify", "--json", check=False).stdout)
    (altered,) = [finding for finding in findings if finding["state"] == "altered"]
    assert altered["path"].endswith("checkpoint/files/model.safetensors")
    assert altered["run"] == "snakemake --cores all --forcerun results/whole/checkpoint/files.json"
    project.run("tables", "--forcerun", "results/whole/checkpoint/files.json", **only_index(index))
    again = json.loads(project.headmaps("verify", "--json", check=False).stdout)
    assert {finding["cause"] for finding in again} <= {"never made"}


# --- the target ------------------------------------------------------------------------------------------------------


def test_the_target_says_the_same_and_makes_nothing(changed: Project) -> None:
    assert "verified: every result" in changed.run("verify").text
    before = changed.results()
    path = changed.folder / TABLE
    path.write_text(path.read_text().replace("0.", "0.9", 1))
    run = changed.run("verify", check=False)
    assert run.status != 0
    assert "heads.csv" in run.text
    assert "cause: edited" in run.text
    assert {**before, "tiny/raw/tables/heads.csv": path.read_bytes()} == changed.results()


def test_json_has_every_finding_with_its_command(changed: Project) -> None:
    lose_a_sidecar(changed)
    (finding,) = json.loads(changed.headmaps("verify", "--json", check=False).stdout)
    assert finding == {
        "path": "results/tiny/raw/tables/tables.json", "state": "stale", "cause": "edited",
        "detail": "nothing says what made it: tables.made.json is missing or unreadable", "rule": "make_tables",
        "target": "results/tiny/raw/tables/tables.json",
        "run": "snakemake --cores all --forcerun results/tiny/raw/tables/tables.json",
    }  # fmt: skip


# --- locks and differences --------------------------------------------------------------------------------------------


def test_a_lock_agrees_with_its_run_and_names_what_a_new_seed_changed(changed: Project, finished: Project) -> None:
    changed.headmaps("lock")
    assert changed.headmaps("verify", "--lock", "results.lock.json").status == 0
    config = changed.config()
    config["baselines"] = config["baselines"] | {"seed": 1}
    changed.configure(config)
    changed.run()
    assert changed.headmaps("verify").status == 0
    run = changed.headmaps("verify", "--lock", "results.lock.json", check=False)
    assert run.status == 1
    assert "the configuration differs in baselines" in run.text
    assert "decomposition" not in run.text
    check_the_difference(changed, finished)


def check_the_difference(changed: Project, finished: Project) -> None:
    """Between the two runs: the columns of the baselines, and what shows them."""
    run = changed.headmaps("diff", str(finished.folder), ".", "--json", check=False)
    found = json.loads(run.stdout)
    numbers = [one for one in found["differences"] if one["kind"] == "number"]
    assert numbers
    assert all("gaussian" in one["where"] or "internal" in one["where"] for one in numbers)
    figures = {one["path"] for one in found["differences"] if one["kind"] == "figure"}
    assert any("nulls" in figure for figure in figures)
    assert not any("figure1" in figure for figure in figures)
    assert found["same_figures"] > 0
    assert all(np.isclose(one["delta"], one["b"] - one["a"]) for one in numbers if one["delta"] is not None)
    text = changed.headmaps("diff", str(finished.folder), ".", "--most", "3", check=False)
    assert text.status == 1
    assert "B - A" in text.text


def test_equal_runs_do_not_differ(finished: Project, changed: Project) -> None:
    run = changed.headmaps("diff", str(finished.folder), ".")
    assert "no differences" in run.text


def test_an_altered_run_is_not_locked(changed: Project) -> None:
    edit_the_page(changed)
    run = changed.headmaps("lock", check=False)
    assert run.status == 1
    assert "atlas.html is altered (edited)" in run.text
    assert not (changed.folder / "results.lock.json").exists()


def test_verify_on_an_empty_project_lists_what_to_run(fresh: Callable[..., Project]) -> None:
    run = fresh(**SMALL_CONFIG).headmaps("verify", check=False)
    assert run.status == 1
    assert advised(run) == []
