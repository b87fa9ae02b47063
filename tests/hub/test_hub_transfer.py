"""Only what is needed crosses the network, from the entry to the layer files, through the steps of the workflow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants, hf_hub_download

from headmaps.architectures import tensors_needed
from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.hub import HubStore
from headmaps.checkpoint.resolve import source_record
from headmaps.steps import fetch_files, fetch_layer, resolve
from hub.builders import FALCON_COMMIT, bfloat16_normals, make_falcon_rw_repo, make_llama_repo
from hub.repository import Content
from hub.server import LocalHub


def run_resolve(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The step, then what it wrote."""
    resolve.main(["--spec", json.dumps(spec), "--source", str(folder / "source.json")])
    return dict(json.loads((folder / "source.json").read_text()))


def run_fetch_layer(spec: dict[str, Any], folder: Path, layer: int) -> dict[str, Any]:
    """The step, then the record it wrote."""
    stem = folder / f"layer-{layer:02d}"
    paths = ["--source", str(folder / "source.json"), "--output", f"{stem}.safetensors", "--record", f"{stem}.json"]
    fetch_layer.main(["--spec", json.dumps(spec), "--layer", str(layer), *paths])
    return dict(json.loads(Path(f"{stem}.json").read_text()))


def test_two_layers_of_70b_shapes_transfer_their_attention_and_the_headers(hub: LocalHub, tmp_path: Path) -> None:
    """8192 wide, 64 query and 8 key/value heads of 128; the MLP tensors in between are 470 MB each and stay there."""
    folder = make_llama_repo(tmp_path / "70b", 2, 8192, 64, 8, 128, shards=3, width=28672, vocabulary=128256, seed=None)
    files: dict[str, bytes | Path | Content] = {}
    for path in folder.iterdir():
        lfs = path.suffix == ".safetensors"
        files[path.name] = Content(path, lfs=lfs, sha256=f"{len(files):064x}" if lfs else None)
    commit = hub.repository("synthetic/70b").add(files, commit="7" * 40)
    store = HubStore("synthetic/70b", commit)
    catalogue = open_checkpoint(store)
    headers = hub.sent()

    spec = {"source": "hub", "repo": "synthetic/70b", "revision": commit, "layers": [0, 1]}
    source = source_record(spec, catalogue, tensors_needed)
    wanted = 0
    for tensors in source["layers"].values():
        for file in sorted({entry["file"] for entry in tensors.values()}):
            here = sorted((entry["offset"], entry["nbytes"]) for entry in tensors.values() if entry["file"] == file)
            wanted += sum(nbytes for _, nbytes in here)
            for (_, nbytes), data in zip(here, store.read_ranges(file, here), strict=True):
                assert len(data) == nbytes
    attention = 2 * 2 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 8192)
    assert wanted == attention
    assert hub.sent() == store.transferred
    assert attention <= hub.sent() <= 1.02 * (attention + headers)
    whole = sum(path.stat().st_size for path in folder.iterdir())
    assert hub.sent() < 0.09 * whole  # the embeddings of only two layers weigh more than they would in 80


@pytest.fixture
def falcon(hub: LocalHub, tmp_path: Path) -> Path:
    """A small checkpoint of falcon-rw-1b's form on the Hub."""
    folder = make_falcon_rw_repo(tmp_path / "falcon", layers=3, heads=4, d_model=256)
    assert hub.repository("tiiuae/falcon-rw-1b").add_folder(folder) == FALCON_COMMIT
    return folder


FALCON = {"source": "hub", "repo": "tiiuae/falcon-rw-1b", "revision": FALCON_COMMIT}


def test_a_pickled_checkpoint_is_read_by_range_too(hub: LocalHub, falcon: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    source = run_resolve(FALCON | {"layers": [0, 1, 2]}, results)
    assert source["commit"] == FALCON_COMMIT
    assert source["format"] == "torch"
    resolved = hub.sent()
    record = run_fetch_layer(FALCON, results, 1)
    tensors = source["layers"]["1"]
    assert hub.sent() - resolved <= 1.02 * sum(entry["nbytes"] for entry in tensors.values()) + (64 << 10) * len(
        tensors
    )
    name = "transformer.h.1.self_attention.query_key_value.weight"
    expected = bfloat16_normals([0, 2, 1, 2], (768, 256), 0.5 / 16)
    layer = (results / "layer-01.safetensors").read_bytes()
    assert expected in layer
    assert set(record["facts"]["tensors"]) == set(tensors)
    assert tensors[name]["shape"] == [768, 256]


def test_a_second_fetch_of_a_layer_asks_nobody(hub: LocalHub, falcon: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_resolve(FALCON | {"layers": [0, 1, 2]}, results)
    first = run_fetch_layer(FALCON, results, 0)
    data = (results / "layer-00.safetensors").read_bytes()
    (results / "layer-00.safetensors").unlink()
    requests = len(hub.log)
    assert run_fetch_layer(FALCON, results, 0) == first
    assert (results / "layer-00.safetensors").read_bytes() == data
    assert len(hub.log) == requests


def test_a_byte_flipped_on_its_way_is_noticed(
    hub: LocalHub, falcon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an archive of torch by its checksums; in safetensors, which have none, by what came the first time."""
    clean, results, again = tmp_path / "clean", tmp_path / "results", "fetched once more"
    run_resolve(FALCON | {"layers": [0, 1, 2]}, clean)
    run_fetch_layer(FALCON, clean, 1)
    run_resolve(FALCON | {"layers": [0, 1, 2]}, results)
    hub.fault("flip", path="*.bin", method="GET", host="cdn", after=300)
    run_fetch_layer(FALCON, results, 1)
    assert again in capsys.readouterr().err
    assert (results / "layer-01.safetensors").read_bytes() == (clean / "layer-01.safetensors").read_bytes()

    hub.repository("some/llama").add_folder(make_llama_repo(tmp_path / "llama", layers=1))
    llama, results = {"source": "hub", "repo": "some/llama", "revision": "main"}, tmp_path / "llama-results"
    run_resolve(llama | {"layers": [0]}, results)
    first = run_fetch_layer(llama, results, 0)
    for path in [*results.glob("layer-*"), *results.glob("kept/*.safetensors")]:
        path.unlink()
    hub.fault("flip", path="*.safetensors", method="GET", host="cdn", after=8)
    assert run_fetch_layer(llama, results, 0) == first
    assert again in capsys.readouterr().err


def test_offline_the_cache_of_huggingface_hub_is_enough(
    hub: LocalHub, falcon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online, offline = tmp_path / "online", tmp_path / "offline"
    run_resolve(FALCON | {"layers": [0, 1, 2]}, online)
    run_fetch_layer(FALCON, online, 2)
    for name in ("config.json", "pytorch_model.bin"):
        hf_hub_download(FALCON["repo"], name, revision=FALCON_COMMIT, endpoint=hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = len(hub.log)
    run_resolve(FALCON | {"layers": [0, 1, 2]}, offline)
    run_fetch_layer(FALCON, offline, 2)
    for name in ("source.json", "layer-02.safetensors", "layer-02.json"):
        assert (offline / name).read_bytes() == (online / name).read_bytes(), name
    assert len(hub.log) == requests


@pytest.mark.parametrize("fetch", ["tensors", "full"])
def test_both_ways_of_fetching_give_the_same_layers(hub: LocalHub, tmp_path: Path, fetch: str) -> None:
    folder = make_llama_repo(tmp_path / "llama", layers=1, shards=2)
    hub.repository("some/llama").add_folder(folder)
    spec = {"source": "hub", "repo": "some/llama", "revision": "main"} | ({"fetch": "full"} if fetch == "full" else {})
    results = tmp_path / "results"
    if fetch == "full":
        fetch_files.main(["--spec", json.dumps(spec), "--files", str(results / "files.json")])
    source = run_resolve(spec | {"layers": [0]}, results)
    run_fetch_layer(spec, results, 0)
    run_resolve({"source": "local", "path": str(folder), "layers": [0]}, tmp_path / "local")
    run_fetch_layer({"source": "local", "path": str(folder)}, tmp_path / "local", 0)
    name = "layer-00.safetensors"
    assert (results / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    assert source["commit"] == hub.repository("some/llama").refs["main"]


def test_a_sharded_llama_gives_the_tensors_that_were_written(hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.repository("some/llama").add_folder(make_llama_repo(tmp_path / "llama", layers=3, shards=2))
    spec = {"source": "hub", "repo": "some/llama", "revision": "main"}
    source = run_resolve(spec | {"layers": [0, 1, 2]}, tmp_path / "results")
    assert source["commit"] == commit
    for layer in range(3):
        run_fetch_layer(spec, tmp_path / "results", layer)
        data = (tmp_path / "results" / f"layer-{layer:02d}.safetensors").read_bytes()
        for name, entry in source["layers"][str(layer)].items():
            file = (tmp_path / "llama" / entry["file"]).read_bytes()
            stored = file[entry["offset"] : entry["offset"] + entry["nbytes"]]
            assert np.frombuffer(stored, "<u2").any(), name
            assert stored in data


def test_the_builders_make_the_same_files_every_time(tmp_path: Path) -> None:
    for make, file in ((make_falcon_rw_repo, "pytorch_model.bin"), (make_llama_repo, "model.safetensors")):
        sizes = {"layers": 1, "heads": 2, "d_model": 64}
        first, second = make(tmp_path / "1", **sizes), make(tmp_path / "2", **sizes)
        assert (first / file).read_bytes() == (second / file).read_bytes()
