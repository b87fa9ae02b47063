"""headmaps: what each attention head of a transformer does, read from its weights alone.

The package is lazy on purpose: every name below is imported on first use, so that a workflow step
(or the Snakefile, which needs only the config) never loads more than it uses.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Geometry": "headmaps.geometry",
    "LayerHeads": "headmaps.heads",
    "read_layer_heads": "headmaps.heads",
    "factors": "headmaps.heads",
    "Decomposition": "headmaps.decomposition",
    "decompose": "headmaps.decomposition",
    "pair_quantities": "headmaps.decomposition",
    "haar_means": "headmaps.haar",
    "Checkpoint": "headmaps.notebook",
    "open_checkpoint": "headmaps.notebook",
}

__all__ = [
    "Checkpoint",
    "Decomposition",
    "Geometry",
    "LayerHeads",
    "__version__",
    "decompose",
    "factors",
    "haar_means",
    "open_checkpoint",
    "pair_quantities",
    "read_layer_heads",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headmaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
