"""provenance.json and the RO-Crate: what made the results, complete, valid, and without names or places."""

import getpass
import json
import os
import platform
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rocrate
from rocrate.rocrate import ROCrate
from rocrate_validator import services
from rocrate_validator.models.settings import ValidationSettings
from rocrate_validator.utils.http import HttpRequester

from headmaps import provenance
from headmaps.provenance import commit_of
from headmaps.records import sha256_of_file
from headmaps.steps import describe
from support.project import ROOT
from support.small_model import call
from support.small_run import first_products, make_project, plan_of, run_first_steps

FOLDER = Path("results/tiny")


def describe_run() -> None:
    """The step, over the records of the first steps."""
    plan = plan_of()
    records = [Path(product.record).relative_to(FOLDER) for product in first_products(plan)]
    spec = {"model": "tiny", "layer_norm": ["raw"]}
    call(
        describe, spec, records=records, lock="envs/requirements.lock", snakefile="Snakefile",
        workflow=FOLDER / "Snakefile", crate=FOLDER / "ro-crate-metadata.json", record=FOLDER / "provenance.json",
    )  # fmt: skip


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first steps ran and were described. Do not change it."""
    folder = tmp_path_factory.mktemp("provenance") / "project"
    folder.mkdir()
    make_project(folder)
    shutil.copy2(ROOT / "Snakefile", folder / "Snakefile")
    before = Path.cwd()
    os.chdir(folder)
    try:
        run_first_steps(plan_of())
        describe_run()
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def known(described: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Its provenance; the project is the current folder."""
    monkeypatch.chdir(described)
    loaded: dict[str, Any] = json.loads((FOLDER / "provenance.json").read_text())
    return loaded


@pytest.fixture
def graph(described: Path) -> dict[str, dict[str, Any]]:
    """The crate's entities by id."""
    metadata = json.loads((described / FOLDER / "ro-crate-metadata.json").read_text())
    return {entity["@id"]: entity for entity in metadata["@graph"]}


# --- provenance.json --------------------------------------------------------------------------------------------------


def test_every_result_is_listed_with_its_hash(known: dict[str, Any]) -> None:
    files = {
        path.as_posix()
        for path in FOLDER.rglob("*")
        if path.is_file() and not path.name.endswith(".made.json") and path.parent != FOLDER
    }
    assert set(known["results"]) == files
    assert all(sha256_of_file(Path(path)) == digest for path, digest in known["results"].items())


def test_every_step_is_listed_with_its_jobs_code_and_packages(known: dict[str, Any]) -> None:
    jobs = {step: found["jobs"] for step, found in known["steps"].items()}
    assert jobs == {"resolve": 1, "fetch_layer": 2, "geometry": 1, "heads": 2, "decompose": 4}
    code = known["steps"]["decompose"]["code"]
    assert code["decomposition.py"] == [sha256_of_file(Path("workflow/headmaps/decomposition.py"))]
    assert len(known["steps"]["decompose"]["packages"]["numpy"]) == 1


def test_versions_kernel_and_lock_are_recorded(known: dict[str, Any]) -> None:
    assert known["requirements"]["sha256"] == sha256_of_file(Path("envs/requirements.lock"))
    assert known["linear_algebra"][0]["kernel"]
    assert known["machine"]["architecture"] == platform.machine()
    assert known["headmaps"]["version"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", known["described"])


def test_no_user_host_or_place_is_named(known: dict[str, Any]) -> None:
    for name in ("provenance.json", "provenance.made.json", "ro-crate-metadata.json"):
        text = (FOLDER / name).read_text()
        for word in (str(Path.cwd()), os.path.expanduser("~") + "/", platform.node(), "/tmp/"):
            assert word not in text, (name, word)
        assert f'"{getpass.getuser()}"' not in text


def test_jobs_made_by_different_code_are_all_listed() -> None:
    made = [{"step": "s", "code": {"a.py": digest}, "packages": {}, "blas": "Haswell"} for digest in ("1", "2", "1")]
    found = provenance.steps([*made, {}])
    assert found == {"s": {"jobs": 3, "code": {"a.py": ["1", "2"]}, "packages": {}, "pinned_kernels": ["Haswell"]}}


@pytest.mark.parametrize("packed", [False, True])
def test_the_commit_of_a_checkout_is_read_without_git(tmp_path: Path, packed: bool) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    assert commit_of(tmp_path) is None
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    if packed:
        (git / "packed-refs").write_text(
            "# pack-refs\n" + "0" * 40 + " refs/heads/other\n" + "a" * 40 + " refs/heads/main\n"
        )
    else:
        (git / "refs/heads").mkdir(parents=True)
        (git / "refs/heads/main").write_text("a" * 40 + "\n")
    assert commit_of(tmp_path) == "a" * 40
    (git / "HEAD").write_text("b" * 40 + "\n")
    assert commit_of(tmp_path) == "b" * 40


def test_describing_takes_no_longer_than_a_second_and_a_half(known: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(Path.cwd(), tmp_path / "copy")
    os.chdir(tmp_path / "copy")  # `known` puts the folder back
    before = time.process_time()
    describe_run()
    assert time.process_time() - before < 1.5


# --- the RO-Crate -----------------------------------------------------------------------------------------------------


def context_1_1() -> dict[str, Any]:
    """The JSON-LD context of RO-Crate 1.1 as far as it matters here, without the network.

    It is the one that the rocrate package ships, of a later version, in which Bioschemas' terms have other names and
    which has more terms of schema.org.
    """
    shipped = json.loads((Path(rocrate.__file__).parent / "data/ro-crate.jsonld").read_text())["@context"]
    terms = {name: term.replace("bioschemas.org/terms/", "bioschemas.org/") for name, term in shipped.items()}
    del terms["sha256"]
    return {"@context": terms}


def test_the_crate_is_a_valid_workflow_run_crate(
    described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the validator of the profile's authors."""
    asked = []

    def get(self: HttpRequester, url: str, **options: Any) -> Any:
        asked.append(url)
        text = json.dumps(context_1_1())
        headers = {"Content-Type": "application/ld+json"}
        return SimpleNamespace(status_code=200, headers=headers, text=text, content=text.encode(), json=context_1_1)

    monkeypatch.setattr(HttpRequester, "get", get, raising=False)
    result = services.validate(
        ValidationSettings(
            rocrate_uri=str(described / FOLDER),
            profile_identifier="workflow-run-crate-0.5",
            requirement_severity="REQUIRED",
            offline=True,
            cache_path=tmp_path / "cache",
        )
    )
    assert set(asked) == {"https://w3id.org/ro/crate/1.1/context"}
    assert result.passed(), [issue.message for issue in result.get_issues()]


def test_rocrate_reads_it_back(described: Path) -> None:
    crate = ROCrate(described / FOLDER)
    assert crate.mainEntity.id == "Snakefile"
    assert "ComputationalWorkflow" in crate.mainEntity.type
    assert crate.name == "headmaps: attention heads of tiny"


def test_every_result_is_a_file_of_the_crate_with_its_hash(
    known: dict[str, Any], graph: dict[str, dict[str, Any]]
) -> None:
    for path, digest in known["results"].items():
        entity = graph[Path(path).relative_to(FOLDER).as_posix()]
        assert entity["sha256"] == digest
        assert entity["contentSize"] == str(Path(path).stat().st_size)


def test_the_run_names_its_inputs_and_results(known: dict[str, Any], graph: dict[str, dict[str, Any]]) -> None:
    run = graph["#run"]
    assert run["instrument"] == {"@id": "Snakefile"}
    assert {one["@id"] for one in run["object"]} == {"#checkpoint", "#configuration"}
    assert len(run["result"]) == len(known["results"]) + 1  # and provenance.json
    assert json.loads(graph["#configuration"]["value"])["layer_norm"] == ["raw"]


def test_each_step_says_what_it_read_and_wrote(graph: dict[str, dict[str, Any]]) -> None:
    action = graph["#action-decompose"]
    assert action["instrument"] == {"@id": "#step-decompose"}
    assert {one["@id"] for one in action["object"]} == {
        "heads/geometry.json", "heads/layer-00.json", "heads/layer-01.json",
    }  # fmt: skip
    assert {one["@id"] for one in action["result"]} == {
        f"raw/decomposition/{matrix}/layer-0{layer}.{suffix}"
        for matrix in ("value", "qk")
        for layer in (0, 1)
        for suffix in ("npz", "json")
    }
