"""From a checkpoint to one layer's file in the normal form: every byte is the checkpoint's own."""

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
from checkpoint_makers import FIXTURES, MemoryStore, read_layer, safetensors_bytes, torch_file
from safetensors.numpy import load_file

from headmaps.checkpoint import layers as layers_module
from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.layers import fetch_layer, hashes_kept, identity_of, keep, take_kept
from headmaps.checkpoint.normal_form import Described, writing
from headmaps.checkpoint.resolve import source_record
from headmaps.checkpoint.store import LocalStore, Store
from headmaps.errors import CheckpointError, DownloadError
from support.checkpoints import llama_tensors, write_llama

PROJECT = Path(__file__).parents[3]


def by_prefix(config: Mapping[str, Any], names: list[str], layers: list[int], *_: Any) -> dict[str, Any]:
    """In the place of the table of architectures: the tensors of layer 3 are called 3.*, others are shared."""
    chosen = {layer: {name: name for name in names if name.startswith(f"{layer}.")} for layer in layers}
    return {"layers": chosen, "shared": {name: name for name in names if name.startswith("shared")}}


def source_of(store: Store, layers: list[int], source: str = "hub", **spec: Any) -> dict[str, Any]:
    spec = {"source": source, "layers": layers, **spec}
    return source_record(spec, open_checkpoint(store), by_prefix)


def safetensors_store(arrays: Mapping[str, np.ndarray]) -> MemoryStore:
    names = {"f4": "F32", "f2": "F16", "f8": "F64", "u2": "BF16", "u1": "F8_E4M3"}
    header, data = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        dtype = names[array.dtype.str[1:]]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return MemoryStore(
        **{"config__json": b'{"model_type": "x"}', "model__safetensors": safetensors_bytes(header, data)}
    )


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "0.q": random.normal(size=(4, 3)).astype("f4"),
        "0.bits": random.integers(0, 1 << 15, (3, 5)).astype("u2"),
        "0.half": random.normal(size=7).astype("f2"),
        "0.byte": random.integers(0, 100, 3).astype("u1"),
        "0.double": random.normal(size=(2, 2)),
        "1.q": random.normal(size=(4, 3)).astype("f4"),
        "shared.bias": random.normal(size=2).astype("f4"),
        "mlp": random.normal(size=1000).astype("f4"),
    }


def test_a_layer_file_holds_the_layers_own_bytes_and_types(tmp_path: Path) -> None:
    output = tmp_path / "layer-00.safetensors"
    store = safetensors_store(arrays())
    facts = fetch_layer(source_of(store, [0]), 0, store, output)
    with safetensors.safe_open(output, "np") as library:
        found = {name: library.get_slice(name).get_dtype() for name in library.keys()}  # noqa: SIM118 - not a dict
    assert found == {
        "0.q": "F32",
        "0.bits": "BF16",
        "0.half": "F16",
        "0.byte": "F8_E4M3",
        "0.double": "F64",
        "shared.bias": "F32",
    }
    raw = safetensors.deserialize(output.read_bytes())
    for name, tensor in raw:
        assert bytes(tensor["data"]) == arrays()[name].tobytes()
        assert facts["tensors"][name]["sha256"] == hashlib.sha256(arrays()[name].tobytes()).hexdigest()


def test_a_layer_file_decodes_to_floats(tmp_path: Path) -> None:
    output = tmp_path / "layer-00.safetensors"
    store = safetensors_store(arrays())
    fetch_layer(source_of(store, [0]), 0, store, output)
    found = read_layer(output)
    np.testing.assert_array_equal(found["0.q"], arrays()["0.q"])
    np.testing.assert_array_equal(found["0.bits"].view("u4") >> 16, arrays()["0.bits"])
    assert {name: array.dtype.str for name, array in found.items()} == dict.fromkeys(found, "<f4") | {"0.double": "<f8"}


def test_the_bytes_do_not_depend_on_the_order_of_the_source(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate([list(arrays()), sorted(arrays(), reverse=True)]):
        store = safetensors_store({name: arrays()[name] for name in names})
        fetch_layer(source_of(store, [0]), 0, store, tmp_path / f"{number}.safetensors")
        digests.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(digests) == 1


def test_transposed_and_sliced_tensors_of_a_pickle_are_put_in_c_order(tmp_path: Path) -> None:
    expected = {key.removeprefix("every_kind/"): v for key, v in np.load(FIXTURES / "expected.npz").items()}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes((FIXTURES / "every_kind.bin").read_bytes())
    (tmp_path / "model" / "config.json").write_text("{}")
    store = LocalStore(tmp_path / "model")

    def all_floats(_: Any, names: list[str], *__: Any) -> dict[str, Any]:
        return {"layers": {0: {name: name for name in names if name != "integers"}}, "shared": {}}

    source = source_record({"source": "hub", "layers": [0]}, open_checkpoint(store), all_floats)
    source = json.loads(json.dumps(source))
    fetch_layer(source, 0, store, tmp_path / "layer.safetensors")
    found = read_layer(tmp_path / "layer.safetensors")
    assert len(found) == 14
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_gguf_is_dequantised_to_float32(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(6, 64)).astype("f4")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("0.q", gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.add_tensor("0.norm", weights[0])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    store = LocalStore(tmp_path / "m.gguf")
    source = source_of(store, [0])
    assert source["layers"]["0"]["0.q"]["dtype"] == "Q8_0"
    fetch_layer(source, 0, store, tmp_path / "layer.safetensors")
    found = load_file(tmp_path / "layer.safetensors")
    step = np.abs(weights).reshape(6, 2, 32).max(axis=2) / 127  # Q8_0: the largest of a block becomes 127
    assert np.all(np.abs(found["0.q"] - weights).reshape(6, 2, 32) <= 0.501 * step[..., None])
    np.testing.assert_array_equal(found["0.norm"], weights[0])


def test_the_source_record_is_that_of_the_contract() -> None:
    store = safetensors_store(arrays())
    store.provenance = {"commit": "f" * 40}
    source = source_of(store, [0, 1], repo="a/b", revision="main", token="secret")
    assert source["layers"]["1"] == {"1.q": store_entry(store, "1.q")}
    assert set(source) == {
        "source", "repo", "revision", "commit", "format", "config", "layers", "shared", "notes"
    }  # fmt: skip
    assert source["format"] == "safetensors"
    assert source["config"] == {"model_type": "x"}
    assert list(source["shared"]) == ["shared.bias"]


def store_entry(store: MemoryStore, name: str) -> dict[str, Any]:
    return open_checkpoint(store).tensors[name].to_json()


def test_a_local_checkpoint_that_changes_is_another_source(tmp_path: Path) -> None:
    """Same names, types and offsets, other bytes: `snakemake` sees it by the record, `fetch_layer` by the hash."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = model / "model.safetensors"
    path.write_bytes(safetensors_store(arrays()).contents["model.safetensors"])
    source = source_of(LocalStore(model), [0, 1], source="local", path=str(model))
    changed = arrays()
    changed["0.q"][1, 1] += 1
    path.write_bytes(safetensors_store(changed).contents["model.safetensors"])
    later = source_of(LocalStore(model), [0, 1], source="local", path=str(model))
    assert source["layers"]["0"] != later["layers"]["0"]
    assert source["layers"]["1"] == later["layers"]["1"]
    with pytest.raises(CheckpointError, match=r"the bytes of 0\.q are no longer those that source\.json describes"):
        fetch_layer(source, 0, LocalStore(model), tmp_path / "layer-00.safetensors")
    assert not list(tmp_path.glob("*layer*"))  # nothing half-written is left


def test_memory_stays_near_one_tensor(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    size = 4_000_000
    content = safetensors_store({f"0.{i}": np.zeros(size // 4, "f4") for i in range(10)}).contents
    (model / "model.safetensors").write_bytes(content.pop("model.safetensors"))
    store = LocalStore(model)
    source = source_of(store, [0])
    tracemalloc.start()
    fetch_layer(source, 0, store, tmp_path / "layer.safetensors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    tensors = [Described("a", "F32", (2,)), Described("b", "F32", (1,))]
    for faults in ({"a": bytes(8)}, {"a": bytes(7), "b": bytes(4)}):
        with pytest.raises(ValueError, match=r"a: 7 bytes|not written: b"), writing(tmp_path / "x", tensors) as write:
            for name, data in faults.items():
                write(name, data)
        assert not list(tmp_path.iterdir())


# --- bytes that are kept ---


def kept_layer(tmp_path: Path) -> tuple[Path, str, dict[str, Any]]:
    store = safetensors_store(arrays())
    store.provenance = {"commit": "f" * 40}
    source = source_of(store, [0], repo="a/b")
    output = tmp_path / "layer-00.safetensors"
    facts = fetch_layer(source, 0, store, output)
    identity = identity_of(source, 0)
    assert identity is not None
    keep(output, identity, facts)
    return output, identity, facts


def test_a_layer_that_snakemake_deletes_is_not_fetched_again(tmp_path: Path) -> None:
    output, identity, facts = kept_layer(tmp_path)
    content, inode = output.read_bytes(), output.stat().st_ino
    output.unlink()
    assert take_kept(output, identity) == facts
    assert output.read_bytes() == content
    assert output.stat().st_ino == inode  # a second name, not a second copy


def test_kept_bytes_are_used_only_if_their_hash_holds(tmp_path: Path) -> None:
    output, identity, _ = kept_layer(tmp_path)
    with open(output, "r+b") as stream:  # in place: both names show it
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x7f")
    assert take_kept(output, identity) is None


def test_another_commit_is_another_content(tmp_path: Path) -> None:
    output, identity, facts = kept_layer(tmp_path)
    assert take_kept(output, "0" * 32) is None
    keep(output, "0" * 32, facts)
    assert take_kept(output, identity) is None  # the old commit's bytes do not pile up
    assert len(list((tmp_path / layers_module.KEPT).iterdir())) == 2


def test_a_damaged_note_means_that_nothing_is_kept(tmp_path: Path) -> None:
    output, identity, _ = kept_layer(tmp_path)
    for note in (tmp_path / layers_module.KEPT).glob("*.json"):
        note.write_text("{")
    assert take_kept(output, identity) is None


def test_without_hard_links_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    output, identity, _ = kept_layer(tmp_path)
    assert output.is_file()
    assert take_kept(output, identity) is None
    assert hashes_kept(output, identity)  # the hashes are, so that a second fetch is compared with the first


def test_a_source_that_pins_nothing_is_not_kept() -> None:
    store = safetensors_store(arrays())
    assert identity_of(source_of(store, [0]), 0) is None


# --- a flipped byte ---


class Flipping(MemoryStore):
    """The lowest bit of the first byte of every tensor is another one than was sent, for so many readings."""

    times = 0

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        for data in super().read_ranges(name, ranges):
            self.times -= 1
            yield bytes([data[0] ^ 1]) + data[1:] if self.times >= 0 else data


FOREVER = 1000


def test_a_second_fetch_is_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Flipping()
    store.contents = safetensors_store(arrays()).contents
    store.provenance = {"commit": "f" * 40}
    source = source_of(store, [0], repo="a/b")
    output, identity = tmp_path / "layer-00.safetensors", identity_of(source, 0)
    assert identity is not None
    keep(output, identity, first := fetch_layer(source, 0, store, output))
    content = output.read_bytes()
    for path in (output, *(tmp_path / layers_module.KEPT).glob("*.safetensors")):
        path.unlink()
    earlier = hashes_kept(output, identity)
    assert set(earlier) == set(first["tensors"])

    store.times = 1
    assert fetch_layer(source, 0, store, output, earlier) == first
    assert output.read_bytes() == content
    assert "arrived damaged (an earlier fetch gave others): fetched once more" in capsys.readouterr().err
    output.unlink()
    store.times = FOREVER
    with pytest.raises(DownloadError, match=r"damaged, or were: an earlier fetch gave others(.|\n)*fetch: full"):
        fetch_layer(source, 0, store, output, earlier)
    assert not output.exists()


def torch_store(data: bytes) -> Flipping:
    store = Flipping()
    store.contents = {"config.json": b"{}", "pytorch_model.bin": data}
    return store


def test_a_torch_archive_has_a_checksum_of_each_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "layer-00.safetensors"
    store = torch_store(torch_file({"0.q": arrays()["0.q"]}))
    source = source_of(store, [0])
    store.times = 1
    fetch_layer(source, 0, store, output)
    np.testing.assert_array_equal(read_layer(output)["0.q"], arrays()["0.q"])
    assert "0.q arrived damaged (its archive has another CRC-32 for them)" in capsys.readouterr().err
    store.times = FOREVER
    with pytest.raises(CheckpointError, match=r"the bytes of 0\.q are damaged: its archive has another CRC-32"):
        fetch_layer(source, 0, store, output)


def test_a_torch_archive_written_without_checksums_is_read(tmp_path: Path) -> None:
    """After torch.serialization.set_crc32_options(False) every CRC-32 of the archive is 0."""
    data = torch_file({"0.q": arrays()["0.q"]})
    crc32 = zlib.crc32(arrays()["0.q"].tobytes()).to_bytes(4, "little")
    assert data.count(crc32) == 2
    store = torch_store(data.replace(crc32, bytes(4)))
    source = source_of(store, [0])
    assert "crc32" not in source["layers"]["0"]["0.q"]
    fetch_layer(source, 0, store, tmp_path / "layer-00.safetensors")


def test_whole_files_are_believed_before_bytes_fetched_by_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fetch: full` after a fetch by range that went wrong: the whole file's hash is the Hub's."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors_store(arrays()).contents["model.safetensors"])
    store = LocalStore(tmp_path)
    facts = fetch_layer(source_of(store, [0]), 0, store, tmp_path / "out", {"0.q": "0" * 64})
    assert facts["tensors"]["0.q"]["sha256"] == hashlib.sha256(arrays()["0.q"].tobytes()).hexdigest()
    assert "0.q: an earlier fetch gave others; those of the whole file are taken" in capsys.readouterr().err


# --- the steps ---


def run(step: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"headmaps.steps.{step}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "workflow")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_steps_end_to_end_on_a_local_checkpoint(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model", seed=1)
    spec = json.dumps({"source": "local", "path": str(model), "layers": [0, 1, 2]})
    source, output = tmp_path / "source.json", tmp_path / "layer-01.safetensors"
    done = run("resolve", "--spec", spec, "--source", str(source))
    assert done.returncode == 0, done.stderr
    flags = ["--source", str(source), "--layer", "1", "--output", str(output), "--record", str(tmp_path / "r.json")]
    done = run("fetch_layer", "--spec", json.dumps({"source": "local", "path": str(model)}), *flags)
    assert done.returncode == 0, done.stderr
    found = read_layer(output)
    assert len(found) == 5
    for name, array in found.items():
        np.testing.assert_array_equal(array, llama_tensors(seed=1)[name])
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["files"]["layer-01.safetensors"]["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()


def test_a_step_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    spec = json.dumps({"source": "local", "path": str(tmp_path / "nowhere"), "layers": [0]})
    done = run("resolve", "--spec", spec, "--source", str(tmp_path / "source.json"))
    assert done.returncode == 1
    assert "no checkpoint at" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    done = run("resolve", "--spec", '{"source": "ftp", "layers": [0]}', "--source", str(tmp_path / "source.json"))
    assert "the source 'ftp' is unknown" in done.stderr


def test_fetching_a_layer_imports_little() -> None:
    """It runs once a layer: no huggingface_hub, no gguf, no pandas before they are needed."""
    code = "import sys, headmaps.steps.fetch_layer; print([m for m in ('gguf', 'huggingface_hub', 'pandas', 'numpy') "
    code += "if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "workflow")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "[]"
