"""The rule that describes a model's run (provenance and RO-Crate): which records it reads."""

from typing import Any

from headmaps import specs
from headmaps.plan import Plan


class Description:
    """What is described: every result of a model, by its record."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def targets(self) -> list[str]:
        """Both descriptions of every model."""
        names = ("provenance.json", "ro-crate-metadata.json")
        return [self.plan.path(model, name) for model in self.plan.models for name in names]

    def records(self, wildcards: Any) -> list[str]:
        """The records of all jobs of a model, in the order in which they run."""
        plan, model = self.plan, wildcards.model
        files = ["checkpoint/files.json"] if plan.fetches_whole_files(model) else []
        found = [plan.path(model, name) for name in (*files, "checkpoint/source.json", "heads/geometry.json")]
        found += plan.layer_files(model, "checkpoint", ".json") + plan.layer_files(model, "heads", ".json")
        for layer_norm in plan.config.layer_norm:
            found += plan.decompositions_of(model, layer_norm) + plan.baselines_of(model, layer_norm)
            found.append(plan.path(model, layer_norm, "tables/tables.json"))
            found += [plan.path(model, layer_norm, job.record) for job in plan.figure_jobs_of(model)]
            for matrix in plan.qk_matrices(model) if plan.config.rope_offsets else []:
                found += plan.layer_files(model, f"{layer_norm}/rotary/{matrix}", ".json")
                found.append(plan.path(model, layer_norm, f"figures/rotary-{matrix}.json"))
        if plan.config.composition:
            treatment = specs.COMPOSITION_TREATMENT
            found += plan.layer_files(model, f"{treatment}/composition", ".json")
            found.append(plan.path(model, treatment, "figures/composition.json"))
        if len(plan.config.layer_norm) > 1:
            found.append(plan.path(model, "treatments/treatments.json"))
        if plan.models[model].published:
            found.append(plan.path(model, "published/verdict.json"))
        found.append(plan.path(model, "atlas.json"))
        return list(dict.fromkeys(found))

    def names(self, wildcards: Any) -> list[str]:
        """The records relative to the model's folder: a command line has room for no more than 128 kB."""
        start = self.plan.path(wildcards.model, "")
        return [record.removeprefix(start) for record in self.records(wildcards)]
