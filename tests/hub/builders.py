"""Repositories of the forms that matter, made of random weights: small on disk, the same every time.

From a shell: python tests/hub/builders.py falcon-rw FOLDER/tiiuae/falcon-rw-1b
"""

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs as a script too

from hub.torch_zip import Stored, write_torch_zip

FALCON_COMMIT = "e4b9872bb803165eb22f0a867d4e6a64d34fce19"


def bfloat16_normals(seed: list[int], shape: tuple[int, ...], scale: float, mean: float = 0.0) -> bytes:
    """Little-endian bfloat16 of random normals (truncated, not rounded: they are random anyway)."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * scale + mean
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def _normals(seed: list[int], shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Stored:
    def pieces() -> Iterator[bytes]:
        yield bfloat16_normals(seed, shape, scale, mean)

    return Stored("BF16", shape, pieces)


def make_falcon_rw_repo(
    folder: Path, layers: int = 24, heads: int = 32, d_model: int = 2048, seed: int = 0, vocabulary: int = 8
) -> Path:
    """A repository of the exact form of tiiuae/falcon-rw-1b: bfloat16 `pytorch_model.bin` and nothing else.

    `query_key_value` is interleaved per head (H, 3, d_head); biases, two layer norms, ALiBi. The MLP (its width is
    `d_model // 64`) and the vocabulary are tiny, since nothing reads them. 807 MB at full size. A file `.commit`
    gives it the real repository's commit.

    Returns:
        The folder, to be added to a LocalHub with `add_folder`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    width, scale = max(d_model // 64, 1), 0.5 / d_model**0.5
    shapes: dict[str, tuple[tuple[int, ...], float, float]] = {
        "input_layernorm.weight": ((d_model,), 0.1, 1.0),
        "input_layernorm.bias": ((d_model,), 0.05, 0.0),
        "self_attention.query_key_value.weight": ((3 * d_model, d_model), scale, 0.0),
        "self_attention.query_key_value.bias": ((3 * d_model,), 0.05, 0.0),
        "self_attention.dense.weight": ((d_model, d_model), scale, 0.0),
        "self_attention.dense.bias": ((d_model,), 0.05, 0.0),
        "post_attention_layernorm.weight": ((d_model,), 0.1, 1.0),
        "post_attention_layernorm.bias": ((d_model,), 0.05, 0.0),
        "mlp.dense_h_to_4h.weight": ((width, d_model), scale, 0.0),
        "mlp.dense_h_to_4h.bias": ((width,), 0.05, 0.0),
        "mlp.dense_4h_to_h.weight": ((d_model, width), scale, 0.0),
        "mlp.dense_4h_to_h.bias": ((d_model,), 0.05, 0.0),
    }
    tensors = {"transformer.word_embeddings.weight": _normals([seed, 1], (vocabulary, d_model), 0.02)}
    for layer in range(layers):
        for number, (name, (shape, spread, mean)) in enumerate(shapes.items()):
            tensors[f"transformer.h.{layer}.{name}"] = _normals([seed, 2, layer, number], shape, spread, mean)
    tensors["transformer.ln_f.weight"] = _normals([seed, 3], (d_model,), 0.1, 1.0)
    tensors["transformer.ln_f.bias"] = _normals([seed, 4], (d_model,), 0.05)
    write_torch_zip(folder / "pytorch_model.bin", tensors)
    config = {
        "alibi": True, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
        "hidden_size": d_model, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
        "multi_query": False, "new_decoder_architecture": False, "num_attention_heads": heads,
        "num_hidden_layers": layers, "parallel_attn": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.27.4", "use_cache": True, "vocab_size": vocabulary,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "README.md").write_text("Random weights in the form of tiiuae/falcon-rw-1b.\n")
    (folder / ".commit").write_text(FALCON_COMMIT + "\n")
    return folder


def make_llama_repo(
    folder: Path,
    layers: int = 2,
    d_model: int = 64,
    heads: int = 4,
    kv: int = 2,
    d_head: int = 16,
    shards: int = 1,
    *,
    width: int | None = None,
    vocabulary: int = 32,
    seed: int | None = 0,
) -> Path:
    """A Llama checkpoint: bfloat16 safetensors, in one file or in `shards`, with MLP tensors in between.

    Args:
        width: of the MLP, 3.5 times d_model by default (as 70B has it).
        seed: of the random weights; None writes no bytes at all (sparse files of zeros), for 70B's shapes.

    Returns:
        The folder, to be added to a LocalHub with `add_folder`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = _llama_shapes(layers, d_model, heads, kv, d_head, width or d_model * 7 // 2, vocabulary)
    content: Callable[[str], bytes | None] = lambda name: None  # noqa: E731
    if seed is not None:
        numbers = {name: number for number, name in enumerate(sorted(shapes))}

        def content(name: str) -> bytes | None:
            mean, scale = (1.0, 0.1) if "norm" in name else (0.0, d_model**-0.5)
            return bfloat16_normals([seed, numbers[name]], shapes[name], scale, mean)

    config = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": d_head, "hidden_act": "silu",
        "hidden_size": d_model, "intermediate_size": width or d_model * 7 // 2, "max_position_embeddings": 8192,
        "model_type": "llama", "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", shapes, content)
        return folder
    names = list(shapes)
    cuts = [round(len(names) * number / shards) for number in range(shards + 1)]
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[cuts[number] : cuts[number + 1]]
        write_safetensors(folder / file, {name: shapes[name] for name in mine}, content)
        weight_map |= dict.fromkeys(mine, file)
    total = sum(2 * int(np.prod(shape)) for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return folder


def _llama_shapes(
    layers: int, d_model: int, heads: int, kv: int, d_head: int, width: int, vocabulary: int
) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes in the order of the model, as large checkpoints are cut into shards."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, d_model)}
    for layer in range(layers):
        block = f"model.layers.{layer}."
        shapes |= {
            f"{block}input_layernorm.weight": (d_model,),
            f"{block}mlp.down_proj.weight": (d_model, width),
            f"{block}mlp.gate_proj.weight": (width, d_model),
            f"{block}mlp.up_proj.weight": (width, d_model),
            f"{block}post_attention_layernorm.weight": (d_model,),
            f"{block}self_attn.k_proj.weight": (kv * d_head, d_model),
            f"{block}self_attn.o_proj.weight": (d_model, heads * d_head),
            f"{block}self_attn.q_proj.weight": (heads * d_head, d_model),
            f"{block}self_attn.v_proj.weight": (kv * d_head, d_model),
        }
    return shapes | {"model.norm.weight": (d_model,), "lm_head.weight": (vocabulary, d_model)}


def write_safetensors(
    path: Path, shapes: dict[str, tuple[int, ...]], content: Callable[[str], bytes | None], dtype: str = "BF16"
) -> None:
    """Write a safetensors file of two-byte tensors, sorted by name; where `content` gives None, a hole of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(shapes):
        nbytes = 2 * int(np.prod(shapes[name]))
        header[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(shapes):
            data, nbytes = content(name), 2 * int(np.prod(shapes[name]))
            if data is None:
                stream.seek(nbytes, 1)
            else:
                stream.write(data)
        stream.truncate(8 + len(text) + offset)


if __name__ == "__main__":
    {"falcon-rw": make_falcon_rw_repo, "llama": make_llama_repo}[sys.argv[1]](Path(sys.argv[2]))
