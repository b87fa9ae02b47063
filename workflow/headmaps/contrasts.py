"""The comparison rules: which files each comparison of models reads and writes."""

import json
from dataclasses import dataclass
from typing import Any

from headmaps.config import Comparison
from headmaps.figures.names import COMPARISON_TABLES
from headmaps.plan import RESULTS, Plan

HEAD_ARRAYS = ("W_Q.npy", "W_K.npy", "W_V.npy", "W_O.npy", "extras.npz")


def contrasts(plan: Plan) -> "list[Contrast]":
    """One contrast for each comparison of the configuration."""
    return [Contrast(plan, comparison) for comparison in plan.config.comparisons]


@dataclass(frozen=True)
class Contrast:
    """One rule of the comparisons; paths hold the wildcard `{layer_norm}`."""

    plan: Plan
    comparison: Comparison

    @property
    def name(self) -> str:
        """The comparison's name."""
        return self.comparison.name

    @property
    def rule(self) -> str:
        """The rule's name."""
        return "compare_" + "".join(letter if letter.isalnum() else "_" for letter in self.name)

    @property
    def models(self) -> list[str]:
        """The models compared, in the order of all lists of files."""
        return self.plan.compared(self.name)

    @property
    def geometries(self) -> list[str]:
        """Their geometries."""
        return [self.plan.path(model, "heads/geometry.json") for model in self.models]

    @property
    def tables(self) -> list[str]:
        """Their tables of heads."""
        return [self.plan.path(model, "{layer_norm}/tables/heads.csv") for model in self.models]

    @property
    def _pair(self) -> list[str]:
        return self.models if self.comparison.kind == "pair" else []

    @property
    def records(self) -> list[str]:
        """The records of a pair's head matrices."""
        return [file for model in self._pair for file in self.plan.layer_files(model, "heads", ".json")]

    @property
    def arrays(self) -> list[str]:
        """A pair's head matrices."""
        return [
            file
            for model in self._pair
            for name in HEAD_ARRAYS
            for file in self.plan.layer_files(model, "heads", f"/{name}")
        ]

    @property
    def first(self) -> list[str]:
        """Folders of the first model's head matrices, for a pair."""
        return self.plan.layer_files(self.models[0], "heads", "") if self._pair else []

    @property
    def second(self) -> list[str]:
        """Folders of the second model's."""
        return self.plan.layer_files(self.models[1], "heads", "") if self._pair else []

    def _path(self, name: str) -> str:
        return f"{RESULTS}/comparison/{self.name}/{{layer_norm}}/{name}"

    @property
    def output_tables(self) -> list[str]:
        """The tables it writes."""
        return [self._path(name) for name in COMPARISON_TABLES[self.comparison.kind]]

    @property
    def figures(self) -> list[str]:
        """The figures it draws: all formats of one matrix, then of the next."""
        formats = self.plan.config.figures.formats
        return [self._path(f"{matrix}.{form}") for matrix in self.plan.compared_matrices(self.name) for form in formats]

    @property
    def record(self) -> str:
        """Its record."""
        return self._path("comparison.json")

    @property
    def log(self) -> str:
        """Its log."""
        return f"logs/comparison/{self.name}/{{layer_norm}}.log"

    def spec(self, wildcards: Any) -> str:
        """Its spec."""
        spec = {
            "name": self.name,
            "kind": self.comparison.kind,
            "layer_norm": wildcards.layer_norm,
            "models": self.models,
            "matrices": self.plan.compared_matrices(self.name),
            "packages": self.plan.packages("comparison"),
        }
        return json.dumps(spec, sort_keys=True)
