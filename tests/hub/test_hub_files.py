"""Whole files (`fetch: full`): checked against the Hub's hash, resumed, kept, and never half there."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from headmaps.checkpoint import hub_files
from headmaps.checkpoint.hub import fetch_files_from_hub
from headmaps.errors import CheckpointError, DownloadError
from hub.repository import Content
from hub.server import LocalHub

SPEC = {"repo": "someone/model", "revision": "main"}
BODY = {"path": "*.safetensors", "method": "GET", "host": "cdn"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder that files are fetched to."""
    return tmp_path / "checkpoint" / "files"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bytes_asked(hub: LocalHub) -> list[str]:
    return [request.headers["Range"] for request in hub.log if request.host == "cdn"]


def test_config_and_weights_come_with_their_hashes(hub: LocalHub, model: str, weights: bytes, files: Path) -> None:
    record = fetch_files_from_hub(SPEC, files)
    assert names_in(files) == ["config.json", "model.safetensors"]
    assert (files / "model.safetensors").read_bytes() == weights
    assert record["commit"] == model
    for name, described in record["files"].items():
        data = (files / name).read_bytes()
        assert described == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_files_are_real_files_and_not_links_into_a_cache(hub: LocalHub, model: str, files: Path) -> None:
    hf_hub_download("someone/model", "model.safetensors", revision=model, endpoint=hub.endpoint)
    before = hub.sent("model.safetensors")
    fetch_files_from_hub(SPEC, files)
    assert not (files / "model.safetensors").is_symlink()
    assert hub.sent("model.safetensors") == before  # copied from the cache, not fetched again


def test_what_is_there_already_is_kept(hub: LocalHub, model: str, files: Path) -> None:
    first = fetch_files_from_hub(SPEC, files)
    stamp = (files / "model.safetensors").stat().st_mtime_ns
    sent = hub.sent()
    assert fetch_files_from_hub(SPEC, files) == first
    assert hub.sent() == sent
    assert (files / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_file_that_was_altered_is_fetched_again(hub: LocalHub, model: str, weights: bytes, files: Path) -> None:
    fetch_files_from_hub(SPEC, files)
    with open(files / "model.safetensors", "r+b") as stream:
        stream.seek(5)
        stream.write(b"\x00\x01\x02")
    fetch_files_from_hub(SPEC, files)
    assert (files / "model.safetensors").read_bytes() == weights


def test_a_branch_that_moves_does_not_change_what_was_begun(hub: LocalHub, model: str, files: Path) -> None:
    fetch_files_from_hub(SPEC, files)
    hub.repository("someone/model").add({"config.json": b"{}", "model.safetensors": b"new"})
    (files / "model.safetensors").unlink()
    assert fetch_files_from_hub(SPEC, files)["commit"] == model


def test_a_flipped_byte_is_noticed_and_the_file_fetched_again(
    hub: LocalHub, model: str, weights: bytes, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.fault("flip", after=1_234_567, **BODY)
    fetch_files_from_hub(SPEC, files)
    assert (files / "model.safetensors").read_bytes() == weights
    assert "arrived damaged" in capfd.readouterr().out


def test_a_file_that_stays_damaged_never_takes_its_name(hub: LocalHub, model: str, files: Path) -> None:
    hub.fault("flip", after=1_234_567, times=-1, **BODY)
    with pytest.raises(DownloadError, match="arrived damaged twice"):
        fetch_files_from_hub(SPEC, files)
    assert names_in(files) == ["config.json"]


def test_a_flipped_byte_of_a_small_file_is_noticed_by_its_git_hash(hub: LocalHub, model: str, files: Path) -> None:
    hub.fault("flip", after=3, path="*/config.json", times=-1)
    with pytest.raises(DownloadError, match="git blob"):
        fetch_files_from_hub(SPEC, files)


def test_a_damaged_copy_in_the_cache_is_not_used(hub: LocalHub, model: str, weights: bytes, files: Path) -> None:
    cached = Path(hf_hub_download("someone/model", "model.safetensors", revision=model, endpoint=hub.endpoint))
    cached.resolve().write_bytes(b"x" + weights[1:])
    fetch_files_from_hub(SPEC, files)
    assert (files / "model.safetensors").read_bytes() == weights


def test_offline_the_cache_is_enough(
    hub: LocalHub, model: str, files: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("config.json", "model.safetensors"):
        hf_hub_download("someone/model", name, revision="main", endpoint=hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = len(hub.log)
    assert fetch_files_from_hub(SPEC, files)["commit"] == model
    assert (files / "model.safetensors").read_bytes() == weights
    assert len(hub.log) == requests


def test_a_server_without_ranges_will_do(hub: LocalHub, model: str, weights: bytes, files: Path) -> None:
    hub.fault("cut", after=700_000, **BODY)
    hub.fault("whole", times=-1, **BODY)
    fetch_files_from_hub(SPEC, files)
    assert (files / "model.safetensors").read_bytes() == weights


def test_a_download_that_failed_is_resumed_by_the_next_run(
    hub: LocalHub, model: str, weights: bytes, files: Path
) -> None:
    hub.fault("cut", after=700_000, **BODY)
    broken = hub.fault("status", status=503, times=-1, **BODY)
    with pytest.raises(DownloadError, match="503"):
        fetch_files_from_hub(SPEC, files)
    assert "model.safetensors" not in names_in(files)
    broken.times = 0
    fetch_files_from_hub(SPEC, files)
    assert (files / "model.safetensors").read_bytes() == weights
    assert bytes_asked(hub)[-1] == "bytes=700000-2999999"
    assert hub.sent("model.safetensors") == len(weights)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_process_that_is_ended_leaves_nothing_to_trust_and_is_resumed(
    hub: LocalHub, model: str, files: Path, number: signal.Signals
) -> None:
    data = os.urandom(40 << 20)
    commit = hub.repository("someone/large").add({"config.json": b"{}", "model.safetensors": data})
    spec = {"repo": "someone/large", "revision": commit}
    slow = hub.fault("slow", after=50, times=-1, **BODY)
    code = f"""
import json, sys
from pathlib import Path
from headmaps.checkpoint.hub import fetch_files_from_hub
fetch_files_from_hub(json.loads({json.dumps(json.dumps(spec))}), Path({str(files)!r}))
"""
    environment = os.environ | {"PYTHONPATH": "workflow", "HF_HOME": str(files.parent), "HF_ENDPOINT": hub.endpoint}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while hub.sent("model.safetensors") < 5 << 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(10) != 0
    part = [name for name in names_in(files) if name.endswith(".part")]
    assert len(part) == 1
    assert part[0].startswith(".model.safetensors.")
    assert "model.safetensors" not in names_in(files)
    have = (files / part[0]).stat().st_size
    assert have > 1 << 20
    slow.times = 0
    fetch_files_from_hub(spec, files)
    assert (files / "model.safetensors").read_bytes() == data
    assert bytes_asked(hub)[-1] == f"bytes={have}-{len(data) - 1}"
    assert names_in(files) == ["config.json", "model.safetensors"]


def test_a_part_of_another_commit_is_never_continued(hub: LocalHub, model: str, files: Path) -> None:
    hub.fault("cut", after=700_000, **BODY)
    broken = hub.fault("status", status=503, times=-1, **BODY)
    with pytest.raises(DownloadError):
        fetch_files_from_hub({"repo": "someone/model", "revision": model}, files)
    broken.times = 0
    other = os.urandom(3_000_000)
    commit = hub.repository("someone/model").add({"config.json": b"{}", "model.safetensors": other})
    fetch_files_from_hub({"repo": "someone/model", "revision": commit}, files)
    assert (files / "model.safetensors").read_bytes() == other


def test_two_processes_do_not_write_the_same_part(hub: LocalHub, model: str, files: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    files.mkdir(parents=True)
    digest = hub.repository("someone/model").commits[model]["model.safetensors"].sha256
    with open(files / f".model.safetensors.{digest[:16]}.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            fetch_files_from_hub(SPEC, files)


def test_too_little_room_is_said_before_anything_is_fetched(
    hub: LocalHub, model: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(hub_files.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(DownloadError, match=r"need 3\.0 MB, but the disk has 1\.0 kB left"):
        fetch_files_from_hub(SPEC, files)
    assert hub.sent("model.safetensors") == 0


def test_a_disk_that_fills_up_on_the_way_says_so_and_keeps_what_came(
    hub: LocalHub, model: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_files.os, "fsync", full)
    with pytest.raises(DownloadError, match="the disk is full"):
        fetch_files_from_hub({"repo": "someone/model", "revision": model}, files)
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    sent = hub.sent("config.json")
    fetch_files_from_hub({"repo": "someone/model", "revision": model}, files)
    assert hub.sent("config.json") == sent  # its part was whole


# --- which files --------------------------------------------------------------------------------------------------


def sharded(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor{number}": shard for number, shard in enumerate(shards)}}).encode()


def test_every_shard_of_the_index_and_nothing_else(hub: LocalHub, files: Path) -> None:
    present = {"config.json": b"{}", "a.safetensors": b"a", "b.safetensors": b"b", "tf_model.h5": b"no"}
    index = {"model.safetensors.index.json": sharded("a.safetensors", "b.safetensors", "a.safetensors")}
    hub.repository("someone/sharded").add(present | index)
    fetch_files_from_hub({"repo": "someone/sharded", "revision": "main"}, files)
    assert names_in(files) == ["a.safetensors", "b.safetensors", "config.json", "model.safetensors.index.json"]


def test_safetensors_are_preferred_to_pickles(hub: LocalHub, files: Path) -> None:
    hub.repository("someone/both").add({"config.json": b"{}", "pytorch_model.bin": b"p", "model.safetensors": b"s"})
    fetch_files_from_hub({"repo": "someone/both", "revision": "main"}, files)
    assert names_in(files) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("shard", ["../../outside.safetensors", "/tmp/x", "a/../../b", "C:\\x"])
def test_an_index_that_leaves_the_folder_is_refused(hub: LocalHub, files: Path, shard: str) -> None:
    hub.repository("evil/index").add({"config.json": b"{}", "model.safetensors.index.json": sharded(shard)})
    with pytest.raises(CheckpointError, match="leaves its folder"):
        fetch_files_from_hub({"repo": "evil/index", "revision": "main"}, files)
    assert names_in(files) == []


def test_a_hash_that_is_none_is_refused(hub: LocalHub, model: str, files: Path) -> None:
    """It names the file on its way, so a Hub could otherwise choose where that is written."""
    hub.repository("evil/hash").add({"model.safetensors": Content(b"x", lfs=True, sha256="../../../outside")})
    with pytest.raises(DownloadError, match="no hash for model"):
        fetch_files_from_hub({"repo": "evil/hash", "revision": "main"}, files)


def test_a_shard_that_is_missing_is_said_before_anything_large_is_fetched(hub: LocalHub, files: Path) -> None:
    index = sharded("a.safetensors", "b.safetensors")
    hub.repository("someone/part").add({"model.safetensors.index.json": index, "a.safetensors": b"a"})
    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing"):
        fetch_files_from_hub({"repo": "someone/part", "revision": "main"}, files)
    assert hub.sent("a.safetensors") == 0


def test_a_token_is_written_nowhere(
    hub: LocalHub, model: str, files: Path, token: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    secret = token()
    record = fetch_files_from_hub(SPEC, files)
    written = b"".join(path.read_bytes() for path in files.parent.rglob("*") if path.is_file())
    assert secret.encode() not in written
    assert secret not in json.dumps(record) + "".join(capfd.readouterr())


def test_the_file_that_is_named_is_fetched_alone(hub: LocalHub, files: Path) -> None:
    hub.repository("some/quantised").add({"q8/model.gguf": b"eight", "model.gguf": b"four", "config.json": b"{}"})
    spec = {"repo": "some/quantised", "revision": "main", "file": "q8/model.gguf"}
    record = fetch_files_from_hub(spec, files)
    assert set(record["files"]) == {"config.json", "q8/model.gguf"}
    assert (files / "q8/model.gguf").read_bytes() == b"eight"
    with pytest.raises(CheckpointError, match=r"the file x\.gguf is missing(.|\n)*q8/model\.gguf"):
        fetch_files_from_hub(spec | {"file": "x.gguf"}, files)
