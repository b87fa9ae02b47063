"""source.json of a tiny Llama, as the resolve step writes it, for tests of the architectures' table."""

from typing import Any

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}
SHAPES = {
    "self_attn.q_proj.weight": [64, 32],
    "self_attn.k_proj.weight": [32, 32],
    "self_attn.v_proj.weight": [32, 32],
    "self_attn.o_proj.weight": [32, 64],
    "input_layernorm.weight": [32],
}


def source(
    config: dict[str, Any], shapes: dict[str, list[int]], block: str = "model.layers.{i}.", **more: Any
) -> dict[str, Any]:
    """source.json as the resolve step writes it, with two layers alike."""
    layers = {
        str(i): {block.format(i=i) + name: {"dtype": "BF16", "shape": shape} for name, shape in shapes.items()}
        for i in range(2)
    }
    return {"config": config, "layers": layers, "shared": {}, "notes": []} | more


def names_of(record: dict[str, Any]) -> list[str]:
    return [name for tensors in record["layers"].values() for name in tensors]
