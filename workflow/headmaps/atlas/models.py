"""What the index page holds: every model's dimensions, and the registry's quantities of all heads.

Blocks: `values-i-NAME`, float32, one number per head matrix of model i (matrix, then layer, then head).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headmaps.atlas.columns import describe_quantities
from headmaps.atlas.packing import pack_single
from headmaps.atlas.results import MATRICES, Float, grid_of, read_heads_csv
from headmaps.errors import ResultError
from headmaps.factor_quantities import FACTOR_REGISTRY
from headmaps.geometry import Geometry
from headmaps.quantities import REGISTRY

TITLE = "Attention heads"

COMPARED = (*REGISTRY, *FACTOR_REGISTRY)
"""Quantities that the page compares."""


@dataclass(frozen=True)
class Model:
    """One model on the index page.

    Attributes:
        name: its name in the results.
        treatment: the norm treatment whose table is shown.
        matrices: the matrices decomposed.
        geometry: its geometry.
        heads_csv: its table of heads.
        page: address of its atlas, relative to the index page.
    """

    name: str
    treatment: str
    matrices: tuple[str, ...]
    geometry: Geometry
    heads_csv: Path
    page: str


class IndexData:
    """Everything of the index page: `manifest()` and `blocks()`."""

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            raise ResultError("there is no model to put on the index page", do="add a model to the config")
        self.models = models
        self.columns: list[dict[str, Float]] = []
        for model in models:
            numbers, _ = read_heads_csv(model.heads_csv, grid_of(model.geometry, model.matrices))
            self.columns.append({name: numbers[name] for name in COMPARED if name in numbers})

    def manifest(self) -> dict[str, Any]:
        """The small facts, as plain JSON values."""
        there = {name for columns in self.columns for name in columns}
        matrices = dict.fromkeys(name for model in self.models for name in model.matrices)
        return {
            "model": TITLE,
            "models": [
                {
                    "name": model.name,
                    "href": quote(model.page),
                    "treatment": model.treatment,
                    "layers": list(model.geometry.layers),
                    "n_layers": model.geometry.n_layers,
                    "heads": model.geometry.n_heads,
                    "kv_heads": model.geometry.n_kv_heads,
                    "d_model": model.geometry.d_model,
                    "dtype": model.geometry.dtype,
                    "matrices": [{"name": name, "rank": model.geometry.rank_of(name)} for name in model.matrices],
                    "columns": list(columns),
                }
                for model, columns in zip(self.models, self.columns, strict=True)
            ],
            "matrices": [[name, MATRICES[name][0]] for name in matrices],
            "quantities": describe_quantities([name for name in COMPARED if name in there]),
        }

    def blocks(self) -> Iterator[tuple[str, str]]:
        """(name, packed text) of every block."""
        for number, columns in enumerate(self.columns):
            for name, values in columns.items():
                yield f"values-{number}-{name}", pack_single(values)
