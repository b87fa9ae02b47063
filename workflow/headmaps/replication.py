"""The comparison with published numbers as rules see it: which files it reads and writes, for models that name some."""

import re
from collections.abc import Callable
from typing import Any

from headmaps.plan import Plan
from headmaps.references import reference_files, reference_head

MATRICES = ("value", "qk")


class Replication:
    """The rule of the comparison; every method but `models` and `verdicts` is a function of the rule's wildcards."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def models(self) -> dict[str, str]:
        """Model -> the published numbers it is compared with."""
        return {model: entry.published for model, entry in self.plan.models.items() if entry.published}

    @property
    def verdicts(self) -> list[str]:
        """The records, one a model."""
        return [self.plan.path(model, "published/verdict.json") for model in self.models]

    def reference(self, wildcards: Any) -> list[str]:
        """The published numbers; none where the model names none, and then no rule makes a verdict."""
        name = self.models.get(wildcards.model)
        return reference_files(name) if name else []

    def tables(self, name: str) -> Callable[[Any], list[str]]:
        """One file of the tables for each treatment."""
        return self.plan.input_tables(name)

    def decompositions(self, suffix: str) -> Callable[[Any], list[str]]:
        """The value and QK decomposition of the published layer, for each treatment."""

        def files(wildcards: Any) -> list[str]:
            model = wildcards.model
            layer, _ = reference_head(self.models[model])
            names = dict(zip(self.plan.models[model].layer_numbers, self.plan.layers(model), strict=True))
            return [
                self.plan.path(model, layer_norm, f"decomposition/{matrix}/layer-{names[layer]}{suffix}")
                for layer_norm in self.plan.config.layer_norm
                for matrix in MATRICES
            ]

        return files

    @property
    def pattern(self) -> str:
        """Regular expression for the models it is for; one that nothing matches where there are none."""
        return "|".join(map(re.escape, self.models)) or "(?!)"

    def figures(self, model: str = "{model}") -> list[str]:
        """The scatter in every format."""
        return [self.plan.path(model, f"published/scatter.{form}") for form in self.plan.config.figures.formats]
