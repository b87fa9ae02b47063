"""Small checkpoints made from a seed, written as the safetensors format says, without the library under test."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint16": "BF16"}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors one after another in the given order; uint16 arrays are taken for bfloat16 bits."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(a).tobytes() for a in tensors.values())
    )


LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}


def llama_tensors(config: Mapping[str, Any] = LLAMA, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random attention tensors of a Llama checkpoint, with an MLP tensor that nobody should read."""
    random = np.random.default_rng(seed)
    d_model, d_head = config["hidden_size"], config["head_dim"]
    n_heads, n_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {
        "input_layernorm.weight": (d_model,),
        "self_attn.q_proj.weight": (n_heads * d_head, d_model),
        "self_attn.k_proj.weight": (n_kv_heads * d_head, d_model),
        "self_attn.v_proj.weight": (n_kv_heads * d_head, d_model),
        "self_attn.o_proj.weight": (d_model, n_heads * d_head),
        "mlp.up_proj.weight": (16, d_model),
    }
    return {
        f"model.layers.{layer}.{name}": random.normal(0.0, 0.1, shape).astype(np.float32)
        + (name.endswith("norm.weight"))
        for layer in range(config["num_hidden_layers"])
        for name, shape in shapes.items()
    }


def write_llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A Llama checkpoint folder: config.json and model.safetensors."""
    config = LLAMA | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", llama_tensors(config, seed))
    return folder
