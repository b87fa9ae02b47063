"""Which of a checkpoint's files are read, and what is refused before any tensor is touched."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_makers import ARCHITECTURE, MemoryStore, f32, gguf_bytes, safetensors_bytes, tensor_info, torch_file

from headmaps.checkpoint.catalogue import Catalogue, open_checkpoint, refuse_scaled
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import CheckpointError

SAFE = safetensors_bytes({"w": f32(0, 8, [2])}, bytes(8))
TORCH = torch_file({"t": np.zeros((2, 2))})
GGUF = gguf_bytes([ARCHITECTURE], [tensor_info("g", (2, 4), 0, 0)], bytes(32))
CONFIG = b'{"model_type": "llama"}'
INDEX = json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}).encode()


def opened(files: dict[str, bytes], file: str | None = None) -> Catalogue:
    store = MemoryStore()
    store.contents = {"config.json": CONFIG, **files}
    return open_checkpoint(store, file)


def refused(files: dict[str, bytes], file: str | None = None) -> str:
    with pytest.raises(CheckpointError) as error:
        opened(files, file)
    return str(error.value)


@pytest.mark.parametrize(
    ("files", "tensors"),
    [
        ({"model.safetensors": SAFE}, "w"),
        ({"model.safetensors": SAFE, "pytorch_model.bin": TORCH, "x.gguf": GGUF}, "w"),
        ({"model.safetensors.index.json": INDEX, "model-00001-of-00001.safetensors": SAFE}, "w"),
        ({"pytorch_model.bin": TORCH, "x.gguf": GGUF}, "t"),
        ({"x.gguf": GGUF}, "g"),
        ({"other.safetensors": SAFE}, "w"),
        ({"model.safetensors": SAFE, "consolidated.safetensors": b"", "adapter_model.safetensors": b""}, "w"),
        ({"pytorch_model.bin": TORCH, "consolidated.safetensors": b"", "original/model.safetensors": b""}, "t"),
        ({"pytorch_model.bin": TORCH, "training_args.bin": b"", "tf_model.h5": b"", "onnx/model.onnx": b""}, "t"),
    ],
)
def test_safetensors_before_torch_before_gguf(files: dict[str, bytes], tensors: str) -> None:
    assert list(opened(files).tensors) == [tensors]


def test_a_named_file_is_read_whatever_else_is_there() -> None:
    files = {"model.safetensors": SAFE, "a.gguf": GGUF, "b.gguf": b"", "x.bin": TORCH}
    assert list(opened(files, "a.gguf").tensors) == ["g"]
    assert list(opened(files, "x.bin").tensors) == ["t"]
    assert "not a checkpoint that is read here" in refused(files, "config.json")


def test_a_gguf_file_needs_no_config() -> None:
    store = MemoryStore()
    store.contents = {"x.gguf": GGUF}
    assert open_checkpoint(store).config["model_type"] == "gguf:llama"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no weights in a format that is read here"),
        ({"tf_model.h5": b"", "flax_model.msgpack": b""}, "found: config.json, tf_model.h5, flax_model.msgpack"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": SAFE}, "an adapter alone"),
        ({"a.gguf": GGUF, "b.gguf": GGUF}, "2 GGUF files to choose from"),
        ({"model-00001-of-00002.safetensors": SAFE, "model-00002-of-00002.safetensors": SAFE}, "index.json"),
        ({"model.safetensors.index.json": INDEX}, "the shard model-00001-of-00001.safetensors is missing"),
        ({"model.safetensors": SAFE, "config.json": b"{"}, "config.json is not valid JSON"),
        ({"model.safetensors": SAFE, "config.json": b"[]"}, "config.json is not a JSON object"),
        ({"model.safetensors": SAFE, "config.json": b'{"a": "\\ud800"}'}, "config.json is not valid JSON"),
        ({"model.safetensors": SAFE, "config.json": b"[" * 100_000}, "config.json is not valid JSON"),
    ],
)
def test_what_cannot_be_read_is_named(files: dict[str, bytes], message: str) -> None:
    assert message in refused(files)


def test_a_tensor_that_its_index_does_not_name_is_not_read() -> None:
    names = {"a": f32(0, 4, [1]), "b": f32(4, 8, [1])}
    index = json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
    catalogue = opened(
        {
            "model.safetensors.index.json": index,
            "model-00001-of-00001.safetensors": safetensors_bytes(names, bytes(8)),
            "config.json": CONFIG,
        }
    )
    assert catalogue.locate(["a"]).keys() == {"a"}
    with pytest.raises(CheckpointError, match=r"index does not name the tensor b, which is in model-00001-of-00001"):
        catalogue.locate(["a", "b"])


@pytest.mark.parametrize("link", ["model.safetensors", "model-00001-of-00001.safetensors"])
def test_weights_that_are_links_out_of_the_folder_are_named(tmp_path: Path, link: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "elsewhere").write_bytes(SAFE)
    (model / link).symlink_to(tmp_path / "elsewhere")
    (model / "config.json").write_bytes(CONFIG)
    if "0" in link:
        (model / "model.safetensors.index.json").write_bytes(INDEX)
    with pytest.raises(CheckpointError, match=f"{link} is a symbolic link that leaves"):
        open_checkpoint(LocalStore(model))


def test_weights_without_a_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAFE)
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        open_checkpoint(LocalStore(tmp_path))


def test_infinity_in_a_config_becomes_text() -> None:
    """Python writes it (time_step_limit of Mamba hybrids), and no JSON reader is bound to read it."""
    config = {"model.safetensors": SAFE, "config.json": b'{"limit": [0.0, Infinity]}'}
    assert opened(config).config == {"limit": [0.0, "Infinity"]}


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", None])
@pytest.mark.parametrize("part", [None, "text_config"])
def test_quantised_checkpoints_are_refused_by_method(method: str | None, part: str | None) -> None:
    config: dict[str, Any] = {"quantization_config": {"quant_method": method, "bits": 4}}
    config = config if part is None else {part: config}
    message = refused({"model.safetensors": SAFE, "config.json": json.dumps(config).encode()})
    assert f"quantised ({method or 'by an unnamed method'})" in message


def scaled(header: dict[str, Any], config: dict[str, Any], name: str) -> None:
    size = max(entry["data_offsets"][1] for entry in header.values())
    files = {"model.safetensors": safetensors_bytes(header, bytes(size)), "config.json": json.dumps(config).encode()}
    refuse_scaled([name], opened(files))


def test_fp8_is_read_without_scales_only() -> None:
    weight = {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}
    scaled({"q.weight": weight}, {}, "q.weight")
    for scale in ("q.weight_scale", "q.weight_scale_inv"):
        with pytest.raises(CheckpointError, match=f"its scales are in {scale}"):
            scaled({"q.weight": weight, scale: f32(4, 8, [1])}, {}, "q.weight")


def test_weights_stored_as_integers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="is stored as I8"):
        scaled({"q.weight": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}}, {}, "q.weight")


def test_mxfp4_experts_beside_plain_attention_are_no_obstacle() -> None:
    """As in gpt-oss: the config says MXFP4, the attention is BF16."""
    header = {
        "attn.q.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "experts.down_blocks": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]},
        "experts.down_scales": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
    }
    scaled(header, {"quantization_config": {"quant_method": "mxfp4"}}, "attn.q.weight")
