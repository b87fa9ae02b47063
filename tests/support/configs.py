"""Configurations of small models, with every section spelled out."""

from typing import Any

SMALL_CONFIG: dict[str, Any] = {
    "models": [{"name": "tiny", "layers": 3, "source": "local", "path": "checkpoints/tiny"}],
    "layer_norm": ["raw"],
    "baselines": {"kinds": ["gaussian", "internal"], "draws": 8, "pool": 4096, "seed": 0},
    "figures": {"formats": ["svg", "png"], "layers": "all", "heads": "auto", "histogram": "weighted"},
    "rope_offsets": [],
    "composition": False,
    "comparisons": [],
    "exact": False,
}
