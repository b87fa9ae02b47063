"""What a case of the oracle is: one tiny model of a family or variant of the architectures' table.

Sizes are chosen so that a mistake shows: 2 key/value heads of 4 query heads where the family allows, heads whose width
is not d_model / H where the config can say so, 2 layers (4 where layers differ), windows shorter than the input.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: of the fixture's folder.
        model_type: as transformers calls it.
        config: what differs from the family's defaults.
        auto: the transformers class that makes the model.
        attention: path of the attention module of layer {i}, after whatever prefix.
        reads: the projections, inside the attention module, whose input is the stream read by queries, and by keys.
        writes: the output projection, inside the attention module (`..` goes one up).
        norm: the norm before attention, path as `attention`; None where nothing is to be checked.
        post_norm: the norm after the output projection.
        layers: which layers are stored.
        stack, tower: as the workflow's config says it.
        scaled_query: the model scales q itself, before q meets k.
        contiguous: positions are 0, 1, 2, ...; else they have gaps, to see the rotation at many distances.
    """

    name: str
    model_type: str
    config: dict[str, Any]
    attention: str = "layers.{i}.self_attn"
    reads: tuple[str, str] = ("q_proj", "k_proj")
    writes: str = "o_proj"
    norm: str | None = "layers.{i}.input_layernorm"
    post_norm: str | None = None
    auto: str = "AutoModelForCausalLM"
    layers: tuple[int, ...] = (0, 1)
    stack: str | None = None
    tower: str | None = None
    scaled_query: bool = False
    contiguous: bool = False
    implementation: str = "eager"
    """Which of transformers' attention functions is watched."""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Further random inputs of the model: name -> shape."""


TEXT = {"vocab_size": 32, "max_position_embeddings": 512}
MHA = TEXT | {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
FUSED = {"reads": ("query_key_value", "query_key_value"), "writes": "dense"}
ROPE = {"rope_type": "default", "rope_theta": 100.0}
"""A low base, so that every pair of dimensions turns visibly over the distances of the fixture."""
OUT = {"writes": "out_proj"}
