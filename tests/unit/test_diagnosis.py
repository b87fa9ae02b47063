"""`headmaps doctor`: each thing a run needs, with this machine's answer, before anything runs."""

import json
import subprocess
from pathlib import Path

import pytest

from headmaps import diagnosis
from headmaps.cli import main
from headmaps.config import read_config
from headmaps.diagnosis import Check, diagnose
from headmaps.plan import Plan
from support.project import ROOT

WHEEL = {"name": "w", "layers": 1, "source": "wheel", "package": "p", "version": "1", "sha256": "0" * 64, "file": "f"}
HUB = {"name": "h", "layers": 1, "source": "hub", "repo": "someone/model", "revision": "main"}


def plan_of(*models: dict) -> Plan:
    return Plan.of(read_config({"models": list(models)}), ROOT / "envs/requirements.lock")


def answering(monkeypatch: pytest.MonkeyPatch, **answers: tuple[int, str, str] | None) -> None:
    """Commands by name -> (status, stdout, stderr), or None for one that does not answer."""

    def run(command: list[str]) -> "subprocess.CompletedProcess[str] | None":
        name = "pip" if "pip" in command else command[0]
        answer = answers.get(name)
        return None if answer is None else subprocess.CompletedProcess(command, answer[0], answer[1], answer[2])

    monkeypatch.setattr(diagnosis, "_run", run)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: None)


def test_without_network_only_the_machine_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch)
    checks = by_name(diagnose(plan_of(WHEEL, HUB), tmp_path, network=False))
    assert set(checks) == {"python", "packages", "blas", "memory", "disk", "slurm"}
    assert checks["slurm"].state == "note"
    assert "1 in every job" in checks["blas"].found


def test_a_missing_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "CORE", ("numpy", "no-such-package"))
    first = next(iter(diagnosis._packages(plan_of(WHEEL))))
    assert (first.state, first.found) == ("fails", "no-such-package is not installed")


def test_another_version_than_the_locked_one_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "version", lambda name: "0.0.1")
    (check,) = diagnosis._packages(plan_of(WHEEL))
    assert check.state == "note"
    assert "numpy 0.0.1 (locked: " in check.found


def test_a_pinned_kernel_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    check = diagnosis._blas()
    assert check.state == "note"
    assert "OPENBLAS_CORETYPE=Haswell" in check.do


def test_a_full_disk_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = diagnosis.shutil._ntuple_diskusage(10, 10, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda folder: usage)
    assert diagnosis._disk(tmp_path).state == "fails"


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ((0, "snakemake (9.1)", ""), "good", "answers"),
        ((1, "", "WARNING: x\nERROR: no route to host\n"), "fails", "no route to host"),
        (None, "fails", "no answer"),
    ],
)
def test_the_package_index_is_asked_where_wheels_are_configured(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str] | None, state: str, words: str
) -> None:
    answering(monkeypatch, pip=answer)
    (check,) = diagnosis._sources(plan_of(WHEEL))
    assert check.state == state
    assert words in check.found


class Api:
    """The Hub's client, which knows one repository."""

    def model_info(self, repo: str, revision: str, timeout: int) -> None:
        if repo != "someone/model":
            raise OSError(f"401 Client Error: {repo} is gated\nlong explanation")


@pytest.mark.parametrize(("repo", "state"), [("someone/model", "good"), ("someone/gated", "fails")])
def test_each_repository_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, repo: str, state: str) -> None:
    import huggingface_hub

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    again = HUB | {"repo": repo, "name": "second"}
    checks = list(diagnosis._sources(plan_of(HUB | {"repo": repo}, again)))
    assert [check.name for check in checks] == ["hub token", "hub"]
    assert checks[0].state == "note"
    assert checks[1].state == state
    assert "long explanation" not in checks[1].found


def test_a_token_from_the_login_file_counts_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    check = diagnosis._token()
    assert check.state == "good"
    assert "secret" not in check.found + check.do


def test_offline_the_hub_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "not tried" in diagnosis._hub_repo("someone/model", "main").found


SINFO = (0, "debug* up idle 2 4000\n", "")


@pytest.mark.parametrize(
    ("sacct", "age", "state", "words"),
    [
        ((0, "", ""), 300, "good", "profiles/slurm"),
        ((1, "", "Slurm accounting storage is disabled\n"), 300, "note", "profiles/slurm-noacct` (asks squeue)"),
        ((1, "", "Slurm accounting storage is disabled\n"), 30, "note", "--slurm-init-seconds-before-status-checks 10"),
        (None, 300, "note", "profiles/slurm-noacct"),
    ],
)
def test_accounting_decides_the_profile(
    monkeypatch: pytest.MonkeyPatch, sacct: tuple[int, str, str] | None, age: int, state: str, words: str
) -> None:
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: f"/usr/bin/{name}")
    answering(monkeypatch, sinfo=SINFO, sacct=sacct, scontrol=(0, f"MinJobAge = {age} sec\n", ""))
    checks = by_name(list(diagnosis._slurm(plan_of(WHEEL))))
    assert checks["slurm"].state == "good"
    assert checks["accounting"].state == state
    assert words in checks["accounting"].found + checks["accounting"].do


@pytest.mark.parametrize(
    ("cores", "cpus", "memory", "needed", "state", "words"),
    [
        (1, 2, 4000, 500, "good", "asks for 1 CPU and 500 MB"),
        (64, 2, 4000, 500, "fails", "--cores 2"),
        (None, 2, 4000, 500, "fails", "a CPU for each member"),
        (1, 2, 400, 500, "fails", "name a partition"),
    ],
)
def test_a_bundle_that_fits_no_node_fails(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, cpus: int, memory: int, needed: int, state: str, words: str
) -> None:
    answering(monkeypatch, sinfo=(0, f"{cpus} {memory}\n1 {memory - 1}\n", ""))
    monkeypatch.setattr(diagnosis, "profile_cores", lambda: cores)
    monkeypatch.setattr(diagnosis, "largest_request", lambda plan: needed)
    (check,) = diagnosis._nodes(plan_of(WHEEL))
    assert check.state == state
    assert words in check.found + check.do


def test_a_silent_controller_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis.shutil, "which", lambda name: f"/usr/bin/{name}")
    answering(monkeypatch, sinfo=(1, "", "Unable to contact slurm controller"))
    (check,) = diagnosis._slurm(plan_of(WHEEL))
    assert check.state == "fails"
    assert "Unable to contact" in check.found


def test_the_command_prints_and_ends_by_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    answering(monkeypatch)
    assert main(["doctor", "--offline"]) == 0
    assert "python" in capsys.readouterr().out
    monkeypatch.setattr(diagnosis, "CORE", ("no-such-package",))
    assert main(["doctor", "--offline", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert {check["state"] for check in checks} >= {"fails"}
