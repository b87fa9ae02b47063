"""Checkpoints of any shape, made quickly: Llama's attention tensors of random bfloat16 numbers, a shard a layer."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama's attention."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    layers: int = 2

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one layer's W_Q, W_K, W_V and W_O in float32."""
        return 4 * self.d_model * self.d_head * 2 * (self.n_heads + self.n_kv_heads)

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """One layer's attention tensors, without the layer's prefix."""
        q, kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        return {
            "input_layernorm.weight": (self.d_model,),
            "self_attn.q_proj.weight": (q, self.d_model),
            "self_attn.k_proj.weight": (kv, self.d_model),
            "self_attn.v_proj.weight": (kv, self.d_model),
            "self_attn.o_proj.weight": (self.d_model, q),
        }

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "model_type": "llama",
            "hidden_size": self.d_model,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.d_head,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
        }

    def __str__(self) -> str:
        return f"{self.d_model}/{self.n_heads}/{self.n_kv_heads}/{self.d_head}"


LLAMA_70B = Shape(8192, 64, 8, 128)
"""Llama-3.1-70B; the model has 80 layers."""
LLAMA_405B = Shape(16384, 128, 8, 128)
"""Llama-3.1-405B; the model has 126 layers."""


def write_checkpoint(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """config.json, an index, and one safetensors file a layer; numbers of full rank and of one order of magnitude."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config))
    random = np.random.default_rng(seed)
    files: dict[str, str] = {}
    for layer in range(shape.layers):
        name = f"model-{layer + 1:05d}-of-{shape.layers:05d}.safetensors"
        tensors = {f"model.layers.{layer}.{tensor}": size for tensor, size in shape.tensors.items()}
        _write_shard(folder / name, tensors, random)
        files |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def _write_shard(path: Path, tensors: dict[str, tuple[int, ...]], random: np.random.Generator) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for shape in tensors.values():
            for start in range(0, shape[0], 1024):
                rows = (min(1024, shape[0] - start), *shape[1:])
                stream.write(_bfloat16(random, rows).tobytes())


def _bfloat16(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Bits of numbers with random sign and mantissa, and magnitudes from 2^-7 to 2^-6."""
    bits = random.integers(0, 1 << 16, size=shape, dtype=np.uint16)
    return (bits & np.uint16(0x807F)) | np.uint16(0x3C00)
