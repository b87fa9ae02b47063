"""`headmaps lock` and `verify --lock`: a finished run as hashes, and what a later one differs in."""

import json
import os
import shutil
from pathlib import Path

import pytest

from headmaps import lockfile, verification
from headmaps.cli import main
from headmaps.differences import compare
from headmaps.errors import ResultError
from headmaps.lockfile import compare_with_lock, lock_of, read_lock
from headmaps.records import write_json
from support.small_run import first_products, make_project, plan_of, run_first_steps

ARRAY = "results/tiny/raw/decomposition/value/layer-00.npz"
LOCK = Path("results.lock.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first steps ran."""
    folder = tmp_path_factory.mktemp("lock") / "project"
    folder.mkdir()
    make_project(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        run_first_steps(plan_of())
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def locked(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A copy of it, as the current folder, and its lock."""
    shutil.copytree(finished, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(lockfile, "products", first_products)
    monkeypatch.setattr(verification, "products", first_products)
    lock = lock_of(plan_of())
    write_json(LOCK, lock)
    return lock


def edit(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)


def test_a_lock_holds_inputs_parameters_code_environment_and_results(locked: dict) -> None:
    assert set(locked) == {"format", "inputs", "parameters", "code", "environment", "results"}
    assert len(locked["inputs"]["tiny"]["tensors"]) == 2 * 5  # two layers of four projections and a norm
    assert locked["parameters"]["layer_norm"] == ["raw"]
    assert "decomposition.py" in locked["code"]
    assert locked["environment"]["packages"]["numpy"]
    assert all(Path(path).is_file() for path in locked["results"])


def test_a_lock_names_no_place_on_this_machine(locked: dict) -> None:
    text = LOCK.read_text()
    assert str(Path.cwd()) not in text
    assert "checkpoints/tiny" not in text


def test_equal_runs_have_equal_locks(locked: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_project(other)
    monkeypatch.chdir(other)
    run_first_steps(plan_of())
    assert lock_of(plan_of()) == locked


def test_unchanged_results_agree_with_their_lock(locked: dict) -> None:
    assert compare_with_lock(plan_of(), LOCK) == []


def test_an_edited_result_is_found_with_what_makes_it_again(locked: dict) -> None:
    edit(ARRAY)
    (one,) = compare_with_lock(plan_of(), LOCK)
    assert (one.path, one.state, one.cause) == (ARRAY, "altered", "edited")
    assert one.run == f"snakemake --cores all --forcerun {ARRAY.replace('.npz', '.json')}"


def test_a_deleted_result_is_missing(locked: dict) -> None:
    Path(ARRAY).unlink()
    (one,) = compare_with_lock(plan_of(), LOCK)
    assert (one.path, one.state) == (ARRAY, "missing")


def change_code() -> None:
    Path("workflow/headmaps/decomposition.py").write_text("# other\n")


def change_environment() -> None:
    path = Path("envs/requirements.lock")
    path.write_text(path.read_text() + "\nother==1.0\n")


def change_weights() -> None:
    path = Path("results/tiny/checkpoint/layer-00.json")
    record = json.loads(path.read_text())
    next(iter(record["facts"]["tensors"].values()))["sha256"] = "0" * 64
    write_json(path, record)


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (change_code, "code", "workflow/headmaps/decomposition.py differs"),
        (change_environment, "environment", "envs/requirements.lock differs"),
        (change_weights, "input", "the weights of tiny are others"),
    ],
)
def test_the_cause_of_other_bytes_is_named(locked: dict, change, cause: str, words: str) -> None:
    change()
    edit(ARRAY)
    found = {one.path: one for one in compare_with_lock(plan_of(), LOCK)}
    assert found[ARRAY].cause == cause
    assert words in found[ARRAY].detail


def test_another_configuration_is_the_cause(locked: dict) -> None:
    edit(ARRAY)
    plan = plan_of(baselines={"seed": 7})
    found = compare_with_lock(plan, LOCK)
    assert {one.cause for one in found} == {"config"}
    assert "the configuration differs in baselines" in found[0].detail


def test_results_of_another_configuration_are_compared_as_long_as_they_are_here(locked: dict) -> None:
    gain = plan_of(layer_norm=["gain"])
    assert compare_with_lock(gain, LOCK) == []
    edit(ARRAY)
    (one,) = compare_with_lock(gain, LOCK)
    assert (one.path, one.cause, one.run) == (ARRAY, "config", "")


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 99, "results": {}}', '{"format": 1, "results": {}}'])
def test_what_is_no_lock_is_refused(locked: dict, text: str) -> None:
    LOCK.write_text(text)
    with pytest.raises(ResultError, match="not a lock file of this version"):
        read_lock(LOCK)


def test_a_result_that_its_record_does_not_name_cannot_be_locked(locked: dict) -> None:
    write_json(Path(ARRAY).with_suffix(".json"), {"files": {}})
    with pytest.raises(ResultError, match="not in its record"):
        lock_of(plan_of())


def test_folders_are_compared_with_locks(locked: dict) -> None:
    assert compare(Path("results"), LOCK, 0.0).differences == []
    edit(ARRAY)
    assert [one.path for one in compare(LOCK, Path("results"), 0.0).differences] == [ARRAY.removeprefix("results/")]


def test_the_command_locks_only_what_verifies(
    locked: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headmaps.commands import lock

    monkeypatch.setattr(lock, "configured", lambda arguments: plan_of())
    LOCK.unlink()
    assert main(["lock"]) == 0
    assert json.loads(LOCK.read_text()) == locked
    LOCK.unlink()
    edit(ARRAY)
    assert main(["lock"]) == 1
    assert not LOCK.exists()
    assert "is altered (edited)" in capsys.readouterr().err
