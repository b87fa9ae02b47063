"""`headmaps verify`: whatever is changed about a run is found, with its cause and what to run."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headmaps import verification
from headmaps.findings import Finding, advice, report, wrong
from headmaps.plan import Plan
from headmaps.products import Product
from headmaps.records import sha256_of_file, write_json
from support.checkpoints import llama_tensors, write_safetensors
from support.small_run import LAYERS, first_products, make_project, plan_of, run_first_steps

VALUE = "results/tiny/raw/decomposition/value/layer-00"
HEADS = "results/tiny/heads/layer-01"
SOURCE = "results/tiny/checkpoint/source.json"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first steps ran."""
    folder = tmp_path_factory.mktemp("run") / "project"
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
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(verification, "products", first_products)
    return folder


def found(plan: Plan | None = None) -> list[Finding]:
    return verification.verify(plan or plan_of())


def summary(findings: list[Finding]) -> set[tuple[str, str, str]]:
    return {(finding.path, finding.state, finding.cause) for finding in findings}


def test_a_finished_run_is_verified(run: Path) -> None:
    assert found() == []
    assert report([]).startswith("verified")


# --- results ----------------------------------------------------------------------------------------------------------


def flip_a_byte(path: str) -> Callable[[], None]:
    def change() -> None:
        data = bytearray(Path(path).read_bytes())
        data[-1] ^= 1
        Path(path).write_bytes(data)

    return change


def truncate(path: str) -> Callable[[], None]:
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:-10])


def remove(*paths: str) -> Callable[[], None]:
    return lambda: [Path(path).unlink() for path in paths] and None


def replace(path: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new, 1))

    return change


def edit_array_and_record() -> None:
    flip_a_byte(f"{VALUE}.npz")()
    record = json.loads(Path(f"{VALUE}.json").read_text())
    record["files"]["arrays"]["sha256"] = sha256_of_file(Path(f"{VALUE}.npz"))
    write_json(Path(f"{VALUE}.json"), record)


RESULTS = {
    "an array's byte": (flip_a_byte(f"{VALUE}.npz"), {(f"{VALUE}.npz", "altered", "edited")}),
    "an array cut short": (truncate(f"{HEADS}/W_Q.npy"), {(f"{HEADS}/W_Q.npy", "altered", "edited")}),
    "a fetched layer": (
        flip_a_byte("results/tiny/checkpoint/layer-00.safetensors"),
        {("results/tiny/checkpoint/layer-00.safetensors", "altered", "edited")},
    ),
    "an array deleted": (remove(f"{VALUE}.npz"), {(f"{VALUE}.npz", "missing", "edited")}),
    "everything of a job deleted": (
        remove(f"{VALUE}.npz", f"{VALUE}.json", f"{VALUE}.made.json"),
        {(f"{VALUE}.json", "missing", "never made")},
    ),
    "a record edited": (
        replace(f"{VALUE}.json", '"comparable": true', '"comparable": false'),
        {(f"{VALUE}.json", "altered", "edited")},
    ),
    "a record that is no record": (
        lambda: Path(f"{VALUE}.json").write_text("[]"),
        {(f"{VALUE}.json", "altered", "edited")},
    ),
    "a record that is no JSON": (truncate(f"{VALUE}.json"), {(f"{VALUE}.json", "altered", "edited")}),
    "a record that names no files": (
        lambda: Path(f"{VALUE}.json").write_text('{"files": {}}'),
        {(f"{VALUE}.json", "altered", "edited")},
    ),
    "an array and its record edited to agree": (
        edit_array_and_record,
        {(f"{VALUE}.json", "altered", "edited")},
    ),
    "a sidecar lost": (remove(f"{VALUE}.made.json"), {(f"{VALUE}.json", "stale", "edited")}),
    "a sidecar damaged": (truncate(f"{VALUE}.made.json"), {(f"{VALUE}.json", "stale", "edited")}),
}


@pytest.mark.parametrize("row", RESULTS)
def test_a_changed_result_is_found(run: Path, row: str) -> None:
    change, expected = RESULTS[row]
    change()
    assert summary(found()) == expected


def test_a_changed_upstream_record_makes_what_was_made_from_it_stale(run: Path) -> None:
    replace(f"{HEADS}.json", '"step"', ' "step"')()
    assert summary(found()) == {
        (f"{HEADS}.json", "altered", "edited"),
        ("results/tiny/raw/decomposition/value/layer-01.json", "stale", "input"),
        ("results/tiny/raw/decomposition/qk/layer-01.json", "stale", "input"),
    }


# --- configuration, code, environment ---------------------------------------------------------------------------------


def test_a_changed_configuration_is_named_key_by_key(run: Path) -> None:
    model = {"name": "tiny", "layers": 1, "source": "local", "path": "checkpoints/tiny"}
    findings = wrong(found(plan_of(models=[model])))
    assert summary(findings) == {(SOURCE, "stale", "config"), (SOURCE, "stale", "input")}
    assert "layers was 2, is 1" in findings[0].detail


def test_results_of_another_treatment_are_not_in_this_config(run: Path) -> None:
    findings = found(plan_of(layer_norm=["gain"]))
    unknown = {finding.cause for finding in findings if finding.state == "unknown"}
    assert unknown == {"not in this config"}
    assert {finding.path for finding in findings if finding.state == "missing"} == {
        f"results/tiny/gain/decomposition/{matrix}/layer-0{layer}.json"
        for matrix in ("value", "qk")
        for layer in range(LAYERS)
    }


def test_edited_code_makes_exactly_its_steps_stale(run: Path) -> None:
    path = Path("workflow/headmaps/decomposition.py")
    path.write_text(path.read_text() + "\n")
    findings = found()
    assert {finding.rule for finding in findings} == {"decompose"}
    assert {finding.cause for finding in findings} == {"code"}
    assert findings[0].detail == "workflow/headmaps/decomposition.py has changed since"


def test_edited_code_of_fetching_is_no_reason_to_fetch_again(run: Path) -> None:
    path = Path("workflow/headmaps/checkpoint/ranges.py")
    path.write_text(path.read_text() + "\n")
    assert found() == []


def test_an_upgrade_is_the_environment(run: Path) -> None:
    path = Path("envs/requirements.lock")
    lines = ["numpy==99.0 \\" if line.startswith("numpy==") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    findings = found()
    assert {finding.cause for finding in findings} == {"environment"}
    assert "numpy was" in findings[0].detail
    assert "is '99.0" in findings[0].detail


# --- inputs -----------------------------------------------------------------------------------------------------------


def one_weight_changed() -> None:
    tensors = llama_tensors({"hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
                             "num_key_value_heads": 2, "head_dim": 8})  # fmt: skip
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 0] += 1
    write_safetensors(Path("checkpoints/tiny/model.safetensors"), tensors)


def test_a_local_checkpoint_replaced_by_an_older_file_is_read_again(run: Path) -> None:
    one_weight_changed()
    os.utime("checkpoints/tiny/model.safetensors", (0, 0))
    findings = found()
    assert summary(findings) == {(SOURCE, "stale", "input")}
    assert "model.layers.1.self_attn.v_proj.weight in checkpoints/tiny is not the one" in findings[0].detail
    assert findings[0].run == f"snakemake --cores all --forcerun {SOURCE}"


def test_a_tensor_that_nobody_reads_does_not_matter(run: Path) -> None:
    tensors = llama_tensors({"hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
                             "num_key_value_heads": 2, "head_dim": 8})  # fmt: skip
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
    write_safetensors(Path("checkpoints/tiny/model.safetensors"), tensors)
    assert found() == []


def test_a_changed_config_of_a_local_checkpoint_is_named(run: Path) -> None:
    replace("checkpoints/tiny/config.json", "10000.0", "20000.0")()
    assert "rope_theta was 10000.0, is 20000.0" in found()[0].detail


def test_a_local_checkpoint_that_lost_its_weights_is_said(run: Path) -> None:
    Path("checkpoints/tiny/model.safetensors").unlink()
    findings = found()
    assert summary(findings) == {(SOURCE, "stale", "input")}
    assert "cannot be read as it was" in findings[0].detail


def test_whole_fetched_files_are_hashed_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("results/whole/checkpoint")
    (folder / "files").mkdir(parents=True)
    files = {}
    for name in ("good.bin", "edited.bin", "lost.bin"):
        (folder / "files" / name).write_text(name)
        files[name] = {"size": len(name), "sha256": sha256_of_file(folder / "files" / name)}
    write_json(folder / "files.json", {"files": files})
    (folder / "files/edited.bin").write_text("EDITED.bin")
    (folder / "files/lost.bin").unlink()
    made = {"record": sha256_of_file(folder / "files.json"), "spec": {}, "inputs": {}, "code": {}}
    write_json(folder / "files.made.json", made)
    product = Product("whole", "fetch_files", "fetch_files", str(folder / "files.json"), (), (), {})
    monkeypatch.setattr(verification, "products", lambda plan: [product])
    assert summary(wrong(found())) == {
        (f"{folder}/files/edited.bin", "altered", "edited"),
        (f"{folder}/files/lost.bin", "missing", "edited"),
    }


# --- what no rule makes -----------------------------------------------------------------------------------------------


def test_files_that_no_rule_makes_are_listed_and_do_no_harm(run: Path) -> None:
    for name in ("tiny/raw/mine.csv", "README.md", "notes.txt", "comparison/old/raw/layers.csv"):
        Path("results", name).parent.mkdir(parents=True, exist_ok=True)
        Path("results", name).write_text("x")
    shutil.copytree("results/tiny", "results/other")
    Path("results/tiny/checkpoint/kept").mkdir(exist_ok=True)
    Path("results/tiny/checkpoint/kept/layer-00.safetensors").write_text("kept for a later run")
    findings = found()
    assert wrong(findings) == []
    assert summary(findings) == {
        ("results/tiny/raw/mine.csv", "unknown", "left over"),
        ("results/notes.txt", "unknown", "left over"),
        ("results/comparison/old/raw/layers.csv", "unknown", "left over"),
        ("results/other", "unknown", "not in this config"),
    }
    assert "verified" in report(findings)


# --- in words ---------------------------------------------------------------------------------------------------------


def finding(number: int, state: str = "altered", rule: str = "make_tables") -> Finding:
    return Finding(f"results/{number}.csv", state, "edited", "sha256", rule, f"results/{number}.json")  # type: ignore[arg-type]


def test_advice_names_few_files_one_by_one_and_many_by_rule() -> None:
    assert advice([finding(0)]) == "snakemake --cores all --forcerun results/0.json"
    many = [finding(number) for number in range(9)] + [finding(9, rule="decompose")]
    assert advice(many) == "snakemake --cores all --forcerun make_tables decompose"


def test_what_is_only_missing_needs_no_force() -> None:
    assert advice([finding(0, "missing"), finding(1, "missing")]) == "snakemake --cores all"
    assert finding(0, "missing").run == "snakemake --cores all"


def test_a_long_list_is_cut_unless_everything_is_asked_for() -> None:
    findings = [finding(number) for number in range(50)]
    assert "... and 10 more; --all prints them" in report(findings)
    assert "results/49.csv" in report(findings, everything=True)
    assert "not verified: 50 altered" in report(findings)
