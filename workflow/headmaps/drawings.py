"""The figure rules: which files each call of the figure step reads and writes, as patterns of a rule."""

import json
import re
from dataclasses import dataclass
from typing import Any

from headmaps.figures.names import FIGURES, FigureJob
from headmaps.plan import RESULTS, Plan, padded
from headmaps.states import StatesOf


def drawings(plan: Plan) -> "list[Drawing]":
    """One drawing for each figure job of each shape of model (models of equal layers and matrices share rules)."""
    shapes: dict[tuple[Any, ...], list[str]] = {}
    for model, entry in plan.models.items():
        shapes.setdefault((tuple(entry.layer_numbers), tuple(entry.matrices)), []).append(model)
    return [
        Drawing(plan, job, models, number)
        for number, models in enumerate(shapes.values())
        for job in plan.figure_jobs_of(models[0])
    ]


@dataclass(frozen=True)
class Drawing:
    """One rule of the figures: a figure job of all models of one shape.

    Paths hold the wildcards `{model}` and `{layer_norm}`.
    """

    plan: Plan
    job: FigureJob
    models: list[str]
    number: int

    @property
    def rule(self) -> str:
        """The rule's name; models of another shape have a rule with another number."""
        shape = f"_{self.number}" if self.number else ""
        return f"draw_{self.job.figure}_{self.job.key}{shape}".replace("-", "_")

    @property
    def model_pattern(self) -> str:
        """Regular expression for the models of this shape."""
        return "|".join(map(re.escape, self.models))

    @property
    def category(self) -> str:
        """Heading in the report."""
        return FIGURES[self.job.figure].category

    @property
    def outputs(self) -> list[str]:
        """The files it draws."""
        return [self._path(output) for output in self.job.outputs]

    @property
    def record(self) -> str:
        """Its record."""
        return self._path(self.job.record)

    @property
    def log(self) -> str:
        """Its log."""
        return f"logs/figures/{{model}}/{{layer_norm}}/{self.job.figure}/{self.job.key}.log"

    @property
    def table(self) -> list[str]:
        """The table of heads, where it reads one: a new baseline then redraws only what shows baselines."""
        chosen = FIGURES[self.job.figure].per == "head" and self.job.heads != "auto"
        reads = FIGURES[self.job.figure].reads != "decompositions" and not chosen
        return [self._path("tables/heads.csv")] if reads else []

    @property
    def decompositions(self) -> list[str]:
        """The decompositions it reads."""
        return self._decompositions(".npz")

    @property
    def states(self) -> StatesOf:
        """The sampled hidden states it shows, of models that have some."""
        return StatesOf(self.plan, self.job.layers, wanted=FIGURES[self.job.figure].per == "head")

    def step(self, wildcards: Any) -> str:
        """The name under which its code is listed: a figure with sampled states needs some more."""
        return f"{self.job.figure}_states" if self.states.files(wildcards) else self.job.figure

    def code(self, wildcards: Any) -> list[str]:
        """The project files it is drawn with."""
        return self.plan.code(self.step(wildcards))

    @property
    def records(self) -> list[str]:
        """The records of those."""
        return self._decompositions(".json")

    def _decompositions(self, suffix: str) -> list[str]:
        numbers = self.plan.models[self.models[0]].layer_numbers
        names = dict(zip(numbers, padded(numbers), strict=True))
        return [
            self._path(f"decomposition/{matrix}/layer-{names[layer]}{suffix}")
            for matrix in self.job.matrices
            for layer in self.job.layers
        ]

    def _path(self, name: str) -> str:
        return f"{RESULTS}/{{model}}/{{layer_norm}}/{name}"

    def spec(self, wildcards: Any) -> str:
        """The spec of this drawing for one model."""
        figures = self.plan.config.figures
        spec: dict[str, Any] = {
            "figure": self.job.figure,
            "model": wildcards.model,
            "layer_norm": wildcards.layer_norm,
            "layers": list(self.job.layers),
            "matrices": list(self.job.matrices),
            "formats": list(figures.formats),
            "packages": self.plan.packages(self.job.figure),
        }
        if self.job.figure in {"figure1", "figure4"}:
            spec["histogram"] = figures.histogram
        if FIGURES[self.job.figure].per == "head":
            spec["heads"] = self.job.heads
        if FIGURES[self.job.figure].per == "model":
            spec["baselines"] = list(self.plan.config.baselines.kinds)
        return json.dumps(spec, sort_keys=True)
