"""The declarative table of architectures: model_type -> names, layout, dimensions, biases, norms, positions, scale.

The table is in `gpt_style`, `llama_style`, `encoders` and `gguf_style`; what an entry may say is in `entry`.
`names` chooses a checkpoint's tensors by it, `measure` makes the Geometry.
"""

from headmaps.architectures.measure import geometry_of, is_transposed, roles_of_source
from headmaps.architectures.names import attention_layers, chosen_layers, tensors_needed
from headmaps.architectures.table import known_model_types

__all__ = [
    "attention_layers",
    "chosen_layers",
    "geometry_of",
    "is_transposed",
    "known_model_types",
    "roles_of_source",
    "tensors_needed",
]
