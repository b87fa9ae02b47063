"""The stand-in speaks the Hub's protocol as the real client expects it: else the other tests would prove little."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hub.builders import make_llama_repo
from hub.server import LocalHub


@pytest.fixture
def api(hub: LocalHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint)


def test_a_snapshot_is_the_repository(hub: LocalHub, api: HfApi, model: str, weights: bytes) -> None:
    folder = Path(snapshot_download("someone/model", revision="main", endpoint=hub.endpoint))
    assert folder.name == model
    assert (folder / "model.safetensors").read_bytes() == weights
    assert {request.host for request in hub.log} == {"hub", "cdn"}


def test_model_info_has_sizes_and_hashes(api: HfApi, model: str, weights: bytes) -> None:
    info = api.model_info("someone/model", files_metadata=True)
    assert info.sha == model
    large = {sibling.rfilename: sibling for sibling in info.siblings or []}["model.safetensors"]
    assert large.lfs is not None
    assert large.lfs.sha256 == hashlib.sha256(weights).hexdigest()
    assert large.size == len(weights)


def test_blob_names_are_gits(api: HfApi, model: str) -> None:
    (info,) = api.get_paths_info("someone/model", ["README.md"])
    git = subprocess.run(["git", "hash-object", "--stdin"], input=b"A model.\n", capture_output=True, check=True)
    assert info.blob_id == git.stdout.decode().strip()  # type: ignore[union-attr]


def test_refs_are_branches_and_pull_requests(hub: LocalHub, api: HfApi, model: str) -> None:
    hub.repository("someone/model").refs["refs/pr/25"] = model
    refs = api.list_repo_refs("someone/model", include_pull_requests=True)
    assert [(ref.name, ref.target_commit) for ref in refs.branches] == [("main", model)]
    assert [ref.ref for ref in refs.pull_requests or []] == ["refs/pr/25"]


def test_safetensors_headers_are_found(hub: LocalHub, api: HfApi, tmp_path: Path) -> None:
    hub.repository("some/llama").add_folder(make_llama_repo(tmp_path / "llama", shards=2))
    metadata = api.get_safetensors_metadata("some/llama")
    assert metadata.sharded
    assert "model.layers.1.self_attn.q_proj.weight" in metadata.weight_map


def test_errors_are_the_ones_the_client_knows(hub: LocalHub, api: HfApi, model: str) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("no/such")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("someone/model", revision="no-such")
    with pytest.raises(RemoteEntryNotFoundError):
        api.hf_hub_download("someone/model", "no-such")
    hub.repository("someone/model").gated = True
    with pytest.raises(GatedRepoError):
        api.hf_hub_download("someone/model", "config.json")


def test_it_runs_from_a_shell(tmp_path: Path) -> None:
    make_llama_repo(tmp_path / "some" / "llama")
    make_llama_repo(tmp_path / "some" / "llama@step1000", seed=1)
    command = [sys.executable, "tests/hub/server.py", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip().removeprefix("HF_ENDPOINT=")
        try:
            api = HfApi(endpoint=endpoint)
            first, second = (api.model_info("some/llama", revision=name).sha for name in ("main", "step1000"))
            assert first != second
        finally:
            process.terminate()
