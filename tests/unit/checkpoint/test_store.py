"""A store hands out exactly the bytes asked for, and never a byte from outside its folder."""

from pathlib import Path

import pytest

from headmaps.checkpoint.store import LocalStore, TensorEntry, safe_name
from headmaps.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "weights.bin").write_bytes(bytes(range(100)))
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def test_ranges_are_exact_and_in_the_order_asked_for(folder: Path) -> None:
    store = LocalStore(folder)
    assert store.read("weights.bin", 10, 3) == bytes([10, 11, 12])
    assert list(store.read_ranges("weights.bin", [(50, 1), (0, 2), (99, 1), (100, 0)])) == [b"2", b"\0\1", b"c", b""]


@pytest.mark.parametrize(("offset", "length"), [(99, 2), (101, 0), (-1, 1), (0, -1), (1 << 62, 1 << 62)])
def test_a_range_outside_the_file_is_an_error(folder: Path, offset: int, length: int) -> None:
    with pytest.raises(CheckpointError, match=r"weights\.bin ends at byte 100"):
        LocalStore(folder).read("weights.bin", offset, length)


def test_files_lists_the_folder_without_hidden_files(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    (folder / ".note.json").write_text("x")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    assert LocalStore(folder).files() == {"config.json": 2, "original/params.json": 2, "weights.bin": 100}


def test_a_single_file_is_a_store_of_that_file_and_its_config(folder: Path) -> None:
    store = LocalStore(folder / "weights.bin")
    assert store.single == "weights.bin"
    assert store.files() == {"config.json": 2, "weights.bin": 100}
    (folder / "other.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"other\.bin is missing"):
        store.read("other.bin", 0, 1)


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(folder: Path, link: str) -> None:
    if link == "file":
        (folder / "model.safetensors").symlink_to("../secret")
        name = "model.safetensors"
    else:
        (folder / "sub").symlink_to("..")
        name = "sub/secret"
    store = LocalStore(folder)
    assert name not in store.files()
    with pytest.raises(CheckpointError, match="leaves the checkpoint's folder"):
        store.read(name, 0, 6)
    with pytest.raises(CheckpointError, match="leaves the checkpoint's folder"):
        store.text(name)


def test_a_link_inside_the_folder_is_followed(folder: Path) -> None:
    (folder / "model.bin").symlink_to("weights.bin")
    assert LocalStore(folder).read("model.bin", 5, 1) == b"\5"


def test_a_hub_snapshot_may_link_into_the_blobs_of_its_own_repository(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "abc").write_bytes(b"weights")
    other = tmp_path / "models--c--d" / "blobs"
    other.mkdir(parents=True)
    (other / "def").write_bytes(b"secret")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    (snapshot / "stolen.bin").symlink_to("../../../models--c--d/blobs/def")
    store = LocalStore(snapshot)
    assert store.files() == {"model.safetensors": 7}
    assert store.read("model.safetensors", 0, 7) == b"weights"
    with pytest.raises(CheckpointError, match="leaves the checkpoint's folder"):
        store.read("stolen.bin", 0, 6)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "", ".", "a//b", "a\\..\\b", "C:/x", "a\0b", "a/./b", "a/"]
)
def test_names_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="leaves its folder"):
        safe_name(name, where="index")
    with pytest.raises(CheckpointError, match="leaves its folder"):
        LocalStore(folder).read(name, 0, 1)


def test_a_missing_path_and_a_missing_file_are_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        LocalStore(folder / "nowhere")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing") as error:
        LocalStore(folder).read("model.safetensors", 0, 1)
    assert "config.json, weights.bin" in str(error.value)


@pytest.mark.parametrize("stride", [None, (1, 3)])
def test_entries_survive_json(stride: tuple[int, ...] | None) -> None:
    entry = TensorEntry("w", "model.safetensors", "BF16", (3, 2), 128, 12, stride)
    assert TensorEntry.from_json("w", entry.to_json()) == entry
