"""Reading a repository by range: the right bytes, few requests, and the token in one place only."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from headmaps.checkpoint.hub import HubStore, resolve_revision
from headmaps.errors import CheckpointError, ConfigError, DownloadError
from hub.server import LocalHub


def test_ranges_come_back_in_the_order_asked(hub: LocalHub, model: str, weights: bytes) -> None:
    ranges = [(2_000_000, 500), (10, 100), (0, 0), (50, 100), (2_999_999, 1)]
    read = list(HubStore("someone/model", model).read_ranges("model.safetensors", ranges))
    assert read == [weights[offset : offset + length] for offset, length in ranges]


def test_neighbours_are_one_request_and_nothing_else_is_fetched(hub: LocalHub, model: str) -> None:
    store = HubStore("someone/model", model)
    list(store.read_ranges("model.safetensors", [(1000, 500), (1500, 500), (60_000, 10), (1_000_000, 10)]))
    asked = [request.headers["Range"] for request in hub.log if request.host == "cdn"]
    assert asked == ["bytes=1000-60009", "bytes=1000000-1000009"]
    assert store.transferred == hub.sent() == 59_010 + 10


def test_every_request_for_bytes_forbids_compression(hub: LocalHub, model: str) -> None:
    store = HubStore("someone/model", model)
    store.read("model.safetensors", 0, 10)
    store.text("config.json")
    files = [request for request in hub.log if not request.path.startswith("/api/")]
    assert files
    assert {request.headers["Accept-Encoding"] for request in files} == {"identity"}


def test_the_storage_address_is_asked_for_once(hub: LocalHub, model: str) -> None:
    store = HubStore("someone/model", model)
    for offset in range(0, 2_000_000, 200_000):
        store.read("model.safetensors", offset, 10)
    assert [request.host for request in hub.log] == ["hub"] + ["cdn"] * 10


def test_the_token_goes_to_the_hub_and_never_to_a_second_host(
    hub: LocalHub, model: str, token: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    secret = token()
    store = HubStore("someone/model", model)
    store.files()
    store.read("model.safetensors", 0, 2_000_000)
    store.text("config.json")
    seen = {host: {r.headers.get("Authorization") for r in hub.log if r.host == host} for host in ("hub", "cdn")}
    assert f"Bearer {secret}" in seen["hub"]
    assert seen["cdn"] == {None}
    assert secret not in "".join(capfd.readouterr())


def test_a_renamed_repository_is_followed_with_the_token(
    hub: LocalHub, model: str, token: Callable[..., str], weights: bytes
) -> None:
    hub.repository("someone/model").private = True
    hub.renamed["old/name"] = "someone/model"
    token()
    assert HubStore("old/name", model).read("model.safetensors", 5, 5) == weights[5:10]


def test_the_listing_gives_sizes_over_several_pages(hub: LocalHub, model: str) -> None:
    hub.page = 1
    sizes = HubStore("someone/model", model).files()
    assert sizes == {"README.md": 9, "config.json": 23, "model.safetensors": 3_000_000}


def test_a_file_that_is_not_there_is_named_with_those_that_are(hub: LocalHub, model: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        HubStore("someone/model", model).text("confg.json")
    assert "confg.json is missing" in str(caught.value)
    assert "config.json, model.safetensors" in str(caught.value)


def test_a_range_beyond_the_end_is_an_error(hub: LocalHub, model: str) -> None:
    listed, unlisted = HubStore("someone/model", model), HubStore("someone/model", model)
    listed.files()
    for store in (listed, unlisted):  # known from the listing, or from the server's answer
        with pytest.raises(CheckpointError, match=r"ends at byte 3000000|Content-Range: bytes 2999990-2999999"):
            store.read("model.safetensors", 2_999_990, 20)
    with pytest.raises(DownloadError, match="ends before the bytes"):
        unlisted.read("model.safetensors", 3_000_000, 20)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_a_name_that_leaves_the_repository_is_never_asked_for(hub: LocalHub, model: str, name: str) -> None:
    with pytest.raises(CheckpointError):
        HubStore("someone/model", model).read(name, 0, 1)
    assert hub.log == []


@pytest.mark.parametrize("repo", ["../../etc", "a/b/c", "https://evil.example/x", "a/..", ""])
def test_what_cannot_be_a_repository_is_refused(repo: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a repository"):
        HubStore(repo, "0" * 40)


# --- revisions ----------------------------------------------------------------------------------------------------


def test_a_full_commit_is_used_as_it_is_without_asking(hub: LocalHub, model: str) -> None:
    assert resolve_revision({"repo": "someone/model", "revision": model}) == model
    assert hub.log == []


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/25"])
def test_a_branch_a_tag_and_a_pull_request_become_a_full_commit(hub: LocalHub, model: str, revision: str) -> None:
    hub.repository("someone/model").refs[revision] = model
    assert resolve_revision({"repo": "someone/model", "revision": revision}) == model


def test_a_branch_is_resolved_once(hub: LocalHub, model: str, tmp_path: Path) -> None:
    spec, memory = {"repo": "someone/model", "revision": "main"}, tmp_path / "revision.json"
    assert resolve_revision(spec, memory) == model
    moved = hub.repository("someone/model").add({"config.json": b"{}"})
    assert resolve_revision(spec, memory) == model
    assert resolve_revision(spec) == moved
    hub.repository("someone/model").refs["v2"] = moved
    assert resolve_revision(spec | {"revision": "v2"}, memory) == moved  # another question, another answer


def test_a_server_that_serves_another_commit_is_noticed(hub: LocalHub, model: str) -> None:
    hub.fault("extra", headers={"X-Repo-Commit": "f" * 40}, path="*/resolve/*", times=-1)
    with pytest.raises(DownloadError, match="answered with commit"):
        HubStore("someone/model", model).read("README.md", 0, 5)


# --- the local Hugging Face cache ---------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that cuts the network off, as HF_HUB_OFFLINE=1 in the environment does."""

    def cut() -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    return cut


def download(hub: LocalHub, name: str, revision: str) -> Path:
    """Bring a file into the cache with the real client."""
    return Path(hf_hub_download("someone/model", name, revision=revision, endpoint=hub.endpoint))


def test_a_cached_file_is_read_offline(hub: LocalHub, model: str, weights: bytes, offline: Callable[[], None]) -> None:
    for name in ("config.json", "model.safetensors"):
        download(hub, name, "main")
    offline()
    before = len(hub.log)
    assert resolve_revision({"repo": "someone/model", "revision": "main"}) == model
    store = HubStore("someone/model", model, check_cache=True)
    assert store.files() == {"config.json": 23, "model.safetensors": 3_000_000}
    assert store.read("model.safetensors", 77, 1000) == weights[77:1077]
    assert store.text("config.json") == b'{"model_type": "llama"}'
    assert len(hub.log) == before


def test_a_cached_file_of_another_commit_is_not_taken(hub: LocalHub, model: str) -> None:
    download(hub, "model.safetensors", "main")
    other = hub.repository("someone/model").add({"model.safetensors": b"other weights"})
    assert HubStore("someone/model", other).read("model.safetensors", 0, 5) == b"other"


def test_offline_without_the_file_says_how_to_get_it(hub: LocalHub, model: str, offline: Callable[[], None]) -> None:
    download(hub, "config.json", model)
    offline()
    with pytest.raises(DownloadError) as caught:
        HubStore("someone/model", model).read("model.safetensors", 0, 5)
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert f"hf download someone/model --revision {model} model.safetensors" in str(caught.value)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        resolve_revision({"repo": "someone/model", "revision": "v9"})
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        HubStore("someone/else", model).files()


def test_a_damaged_copy_in_the_cache_is_noticed(hub: LocalHub, model: str) -> None:
    blob = download(hub, "model.safetensors", model).resolve()
    damaged = bytearray(blob.read_bytes())
    damaged[1_234_567] ^= 1
    blob.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="a damaged copy") as caught:
        HubStore("someone/model", model, check_cache=True).read("model.safetensors", 0, 8)
    assert str(blob) in str(caught.value)


def test_a_link_in_the_cache_that_leaves_it_is_refused(hub: LocalHub, model: str, tmp_path: Path) -> None:
    link = download(hub, "model.safetensors", model)
    (tmp_path / "elsewhere").write_bytes(b"x" * 100)
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link"):
        HubStore("someone/model", model).read("model.safetensors", 0, 8)


def test_the_cache_is_only_read(hub: LocalHub, model: str) -> None:
    download(hub, "config.json", model)
    cache = Path(constants.HF_HUB_CACHE)
    before = sorted(cache.rglob("*"))
    store = HubStore("someone/model", model)
    store.files()
    store.read("model.safetensors", 0, 100)
    assert sorted(cache.rglob("*")) == before
    shutil.rmtree(cache)
