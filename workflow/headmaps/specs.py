"""The spec of every step: the parameters that enter its result, and only those."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headmaps.plan import Plan

COMPOSITION_TREATMENT = "gain"
"""Readers have their gains folded: what a head reads passes the norm first."""
COMPOSITION_PAIRS = 100
"""Pairs of heads in the table of the strongest, for each way to compose."""

_SOURCE_KEYS = ("source", "package", "version", "sha256", "file", "folder", "path", "repo", "revision", "fetch")


def source(plan: "Plan", model: str) -> dict[str, Any]:
    """The source part of a model's entry."""
    entry = plan.models[model].model_dump()
    return {key: entry[key] for key in _SOURCE_KEYS if entry.get(key)}


def fetch_files(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """What is fetched."""
    return source(plan, wildcards.model)


def resolve(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """What is fetched, and of which layers."""
    entry = plan.models[wildcards.model]
    chosen = {"layers": entry.layers, "stack": entry.stack, "tower": entry.tower}
    return source(plan, wildcards.model) | {key: value for key, value in chosen.items() if value is not None}


def fetch_layer(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """What is fetched."""
    return source(plan, wildcards.model)


def geometry(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The matrices the config names, and the sequence length where a rotary scaling needs one."""
    entry = plan.models[wildcards.model]
    spec: dict[str, Any] = {"matrices": list(entry.matrices)}
    return spec | ({"sequence_length": entry.sequence_length} if entry.sequence_length else {})


def heads(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """Nothing: the checkpoint and the geometry decide."""
    return {}


def decompose(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The matrix and the treatment."""
    return {"matrix": wildcards.matrix, "layer_norm": wildcards.layer_norm}


def haar_pool(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """Size and seed of the pool."""
    return {"draws": plan.config.baselines.pool, "seed": plan.config.baselines.seed}


def baseline(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """What is drawn, how often, and the names that enter the seeds."""
    return {
        "kind": wildcards.kind,
        "draws": plan.config.baselines.draws,
        "seed": plan.config.baselines.seed,
        "model": wildcards.model,
        "layer_norm": wildcards.layer_norm,
        "matrices": plan.matrices(wildcards.model),
    }


def tables(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The baselines that get columns."""
    return {
        "model": wildcards.model,
        "layer_norm": wildcards.layer_norm,
        "kinds": list(plan.config.baselines.kinds),
        "matrices": plan.matrices(wildcards.model),
    }


def rotary(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The distances."""
    return decompose(plan, wildcards) | {"rope_offsets": list(plan.config.rope_offsets)}


def rotary_table(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """Names for the captions."""
    return decompose(plan, wildcards) | {"model": wildcards.model}


def composition(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The treatment."""
    return {"layer_norm": wildcards.layer_norm}


def composition_table(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """How many pairs are listed."""
    return {"model": wildcards.model, "layer_norm": wildcards.layer_norm, "pairs": COMPOSITION_PAIRS}


def treatments(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The treatments side by side; the first is the one the others are compared with."""
    return {
        "model": wildcards.model,
        "treatments": list(plan.config.layer_norm),
        "matrices": plan.matrices(wildcards.model),
    }


def published(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The published numbers and the treatments compared with them; the formats decide no number."""
    return {
        "model": wildcards.model,
        "reference": plan.models[wildcards.model].published,
        "treatments": list(plan.config.layer_norm),
    }


def atlas(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """What the page shows and, for its last view, the configuration that made it."""
    return {
        "model": wildcards.model,
        "layer_norms": list(plan.config.layer_norm),
        "matrices": plan.matrices(wildcards.model),
        "baselines": plan.config.baselines.model_dump(mode="json"),
        "entry": _unplaced(plan.models[wildcards.model].model_dump(mode="json", exclude_defaults=True)),
    }


def _unplaced(entry: dict[str, Any]) -> dict[str, Any]:
    """A model's entry as it may stand in a result: of absolute paths the last name only."""
    for key in ("path", "states"):
        if os.path.isabs(entry.get(key, "")):
            entry[key] = os.path.basename(entry[key].rstrip("/"))
    return entry


def describe(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The model's part of the configuration."""
    entry = _unplaced(plan.models[wildcards.model].model_dump(mode="json", exclude_none=True))
    sections = plan.config.model_dump(mode="json", exclude={"models", "comparisons", "exact"})
    return {"model": wildcards.model, "entry": entry} | sections


def atlas_index(plan: "Plan", wildcards: Any) -> dict[str, Any]:
    """The models it links, each under its first treatment."""
    first = plan.config.layer_norm[0]
    return {
        "models": [
            {"name": model, "layer_norm": first, "matrices": plan.matrices(model), "page": f"{model}/atlas.html"}
            for model in plan.models
        ]
    }
