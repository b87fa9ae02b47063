"""Every product of a run: the record that stands for it, the files it holds, and what it was made from.

The rules say the same to the workflow engine; here it is said to `headmaps verify`, `lock` and `provenance`, which look
at results without running anything. A test compares the two.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headmaps.config import HAAR_KINDS, POOL_SUFFICES
from headmaps.contrasts import contrasts
from headmaps.description import Description
from headmaps.drawings import drawings
from headmaps.plan import LOCK, RESULTS, Plan
from headmaps.replication import Replication
from headmaps.specs import COMPOSITION_TREATMENT
from headmaps.states import StatesOf

ARRAYS = ("W_Q.npy", "W_K.npy", "W_V.npy", "W_O.npy", "extras.npz")


@dataclass(frozen=True)
class Product:
    """What one job makes.

    Attributes:
        model: the model's results folder.
        step: the step's name.
        rule: the rule that makes it.
        record: the record's path; it names the files beside it.
        files: the other files, in the order the rule declares them.
        inputs: the small files (records, geometry, source) whose content decides it.
        spec: the spec the configuration asks for now.
    """

    model: str
    step: str
    rule: str
    record: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    spec: dict[str, Any]

    @property
    def made(self) -> Path:
        """The sidecar that says what made it."""
        record = Path(self.record)
        return record.with_name(f"{record.stem}.made.json")


def products(plan: Plan) -> Iterator[Product]:
    """Every product of the configuration, each after those it is made from."""
    for model in plan.models:
        yield from _checkpoint(plan, model)
        yield from _heads(plan, model)
        for layer_norm in plan.config.layer_norm:
            yield from _decompositions(plan, model, layer_norm)
        yield from _baselines(plan, model)
        for layer_norm in plan.config.layer_norm:
            yield from _tables(plan, model, layer_norm)
            yield from _rotary(plan, model, layer_norm)
        if plan.config.composition:
            yield from _composition(plan, model)
        if len(plan.config.layer_norm) > 1:
            yield from _treatments(plan, model)
    yield from _figures(plan)
    for model in plan.models:
        yield from _atlas(plan, model)
        yield from _published(plan, model)
        yield from _description(plan, model)
    yield from _index(plan)
    yield from _comparisons(plan)


def _spec(plan: Plan, step: str, **wildcards: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(plan.spec(step, SimpleNamespace(**wildcards)))
    return spec


def _checkpoint(plan: Plan, model: str) -> Iterator[Product]:
    files, source = plan.path(model, "checkpoint/files.json"), plan.path(model, "checkpoint/source.json")
    whole = plan.fetches_whole_files(model)
    if whole:
        yield Product(model, "fetch_files", "fetch_files", files, (), (), _spec(plan, "fetch_files", model=model))
    spec = _spec(plan, "resolve", model=model)
    yield Product(model, "resolve", "resolve", source, (), (files,) if whole else (), spec)
    spec = _spec(plan, "fetch_layer", model=model)
    for record in plan.layer_files(model, "checkpoint", ".json"):
        tensors = record.removesuffix(".json") + ".safetensors"
        yield Product(model, "fetch_layer", "fetch_layer", record, (tensors,), (source,), spec)


def _heads(plan: Plan, model: str) -> Iterator[Product]:
    source, geometry = plan.path(model, "checkpoint/source.json"), plan.path(model, "heads/geometry.json")
    yield Product(model, "geometry", "geometry", geometry, (), (source,), _spec(plan, "geometry", model=model))
    spec = _spec(plan, "heads", model=model)
    for layer in plan.layers(model):
        record = plan.path(model, f"heads/layer-{layer}.json")
        files = tuple(plan.path(model, f"heads/layer-{layer}/{name}") for name in ARRAYS)
        fetched = plan.path(model, f"checkpoint/layer-{layer}.json")
        yield Product(model, "heads", "extract_heads", record, files, (fetched, geometry), spec)


def _decompositions(plan: Plan, model: str, layer_norm: str) -> Iterator[Product]:
    geometry = plan.path(model, "heads/geometry.json")
    for matrix in plan.matrices(model):
        spec = _spec(plan, "decompose", model=model, layer_norm=layer_norm, matrix=matrix)
        for layer in plan.layers(model):
            stem = plan.path(model, layer_norm, f"decomposition/{matrix}/layer-{layer}")
            inputs = (plan.path(model, f"heads/layer-{layer}.json"), geometry)
            yield Product(model, "decompose", "decompose", f"{stem}.json", (f"{stem}.npz",), inputs, spec)


def _baselines(plan: Plan, model: str) -> Iterator[Product]:
    geometry = plan.path(model, "heads/geometry.json")
    kinds = plan.config.baselines.kinds
    if set(kinds) & set(HAAR_KINDS):
        stem = plan.path(model, "baselines/haar")
        spec = _spec(plan, "haar_pool", model=model)
        yield Product(model, "haar_pool", "haar_pool", f"{stem}.json", (f"{stem}.npz",), (geometry,), spec)
    for layer_norm in plan.config.layer_norm:
        for kind in (kind for kind in kinds if kind not in POOL_SUFFICES):
            spec = _spec(plan, "baseline", model=model, layer_norm=layer_norm, kind=kind)
            for layer in plan.layers(model):
                stem = plan.path(model, layer_norm, f"baselines/{kind}/layer-{layer}")
                inputs = (plan.path(model, f"heads/layer-{layer}.json"), geometry)
                yield Product(model, "baseline", "draw_baseline", f"{stem}.json", (f"{stem}.npz",), inputs, spec)


def _tables(plan: Plan, model: str, layer_norm: str) -> Iterator[Product]:
    folder = plan.path(model, layer_norm, "tables")
    inputs = (
        *plan.decompositions_of(model, layer_norm),
        *plan.baselines_of(model, layer_norm),
        plan.path(model, "heads/geometry.json"),
    )
    files = (f"{folder}/heads.csv", f"{folder}/vectors.parquet")
    spec = _spec(plan, "tables", model=model, layer_norm=layer_norm)
    yield Product(model, "tables", "make_tables", f"{folder}/tables.json", files, inputs, spec)


def _figures(plan: Plan) -> Iterator[Product]:
    for drawing in drawings(plan):
        for model in drawing.models:
            for layer_norm in plan.config.layer_norm:
                place = {"model": model, "layer_norm": layer_norm}
                inputs = (
                    *(path.format(**place) for path in drawing.records),
                    *(path.format(**place) for path in drawing.table),
                    plan.path(model, "heads/geometry.json"),
                    plan.path(model, "checkpoint/source.json"),
                    *_states(drawing.states, model),
                )
                files = tuple(path.format(**place) for path in drawing.outputs)
                spec: dict[str, Any] = json.loads(drawing.spec(SimpleNamespace(**place)))
                record, step = drawing.record.format(**place), drawing.step(SimpleNamespace(**place))
                yield Product(model, step, drawing.rule, record, files, inputs, spec)


def _states(states: StatesOf, model: str) -> list[str]:
    """The sampled hidden states that a job reads, and the records of the heads they are projected on."""
    place = SimpleNamespace(model=model)
    return [*states.files(place), *states.records(place)]


def _atlas(plan: Plan, model: str) -> Iterator[Product]:
    inputs = [plan.path(model, "heads/geometry.json"), plan.path(model, "checkpoint/source.json")]
    for layer_norm in plan.config.layer_norm:
        inputs += [plan.path(model, layer_norm, "tables/tables.json"), *plan.decompositions_of(model, layer_norm)]
    inputs += _states(StatesOf(plan), model)
    record, page = plan.path(model, "atlas.json"), plan.path(model, "atlas.html")
    yield Product(model, "atlas", "make_atlas", record, (page,), tuple(inputs), _spec(plan, "atlas", model=model))


def _published(plan: Plan, model: str) -> Iterator[Product]:
    replication, place = Replication(plan), SimpleNamespace(model=model)
    if model not in replication.models:
        return
    inputs = (
        plan.path(model, "heads/geometry.json"),
        plan.path(model, "checkpoint/source.json"),
        *replication.tables("tables.json")(place),
        *replication.decompositions(".json")(place),
        *replication.reference(place),
    )
    folder = plan.path(model, "published")
    files = (f"{folder}/published.csv", *replication.figures(model))
    spec = _spec(plan, "published", model=model)
    yield Product(model, "published", "compare_published", f"{folder}/verdict.json", files, inputs, spec)


def _description(plan: Plan, model: str) -> Iterator[Product]:
    record, inputs = plan.path(model, "provenance.json"), Description(plan).records(SimpleNamespace(model=model))
    files = (plan.path(model, "Snakefile"), plan.path(model, "ro-crate-metadata.json"))
    spec = _spec(plan, "describe", model=model)
    yield Product(model, "describe", "describe_run", record, files, (*inputs, LOCK, "Snakefile"), spec)


def _index(plan: Plan) -> Iterator[Product]:
    inputs = [
        plan.path(model, name)
        for model in plan.models
        for name in ("heads/geometry.json", f"{plan.config.layer_norm[0]}/tables/tables.json")
    ]
    page = f"{RESULTS}/atlas.html"
    spec = _spec(plan, "atlas_index")
    yield Product("", "atlas_index", "index_atlases", f"{RESULTS}/atlas.json", (page,), tuple(inputs), spec)


def _rotary(plan: Plan, model: str, layer_norm: str) -> Iterator[Product]:
    geometry, source = plan.path(model, "heads/geometry.json"), plan.path(model, "checkpoint/source.json")
    for matrix in plan.qk_matrices(model) if plan.config.rope_offsets else []:
        place = {"model": model, "layer_norm": layer_norm, "matrix": matrix}
        spec, records = _spec(plan, "rotary", **place), []
        for layer in plan.layers(model):
            stem = plan.path(model, layer_norm, f"rotary/{matrix}/layer-{layer}")
            inputs = (geometry, plan.path(model, f"heads/layer-{layer}.json"))
            yield Product(model, "rotary", "turn_qk", f"{stem}.json", (f"{stem}.npz",), inputs, spec)
            records.append(f"{stem}.json")
        stem = plan.path(model, layer_norm, f"figures/rotary-{matrix}")
        files = (plan.path(model, layer_norm, f"tables/rotary-{matrix}.csv"), *_pictures(plan, stem))
        spec = _spec(plan, "rotary_table", **place)
        yield Product(model, "rotary_table", "draw_rotary", f"{stem}.json", files, (geometry, source, *records), spec)


def _composition(plan: Plan, model: str) -> Iterator[Product]:
    geometry, source = plan.path(model, "heads/geometry.json"), plan.path(model, "checkpoint/source.json")
    place = {"model": model, "layer_norm": COMPOSITION_TREATMENT}
    spec, records, heads = _spec(plan, "composition", **place), [], []
    for layer in plan.layers(model):
        heads.append(plan.path(model, f"heads/layer-{layer}.json"))
        stem = plan.path(model, COMPOSITION_TREATMENT, f"composition/layer-{layer}")
        yield Product(model, "composition", "compose_layer", f"{stem}.json", (f"{stem}.npz",), (geometry, *heads), spec)
        records.append(f"{stem}.json")
    stem = plan.path(model, COMPOSITION_TREATMENT, "figures/composition")
    files = (plan.path(model, COMPOSITION_TREATMENT, "tables/composition.csv"), *_pictures(plan, stem))
    spec = _spec(plan, "composition_table", **place)
    inputs = (geometry, source, *records)
    yield Product(model, "composition_table", "draw_composition", f"{stem}.json", files, inputs, spec)


def _treatments(plan: Plan, model: str) -> Iterator[Product]:
    inputs = (
        plan.path(model, "heads/geometry.json"),
        plan.path(model, "checkpoint/source.json"),
        *(plan.path(model, layer_norm, "tables/heads.csv") for layer_norm in plan.config.layer_norm),
    )
    folder, matrices = plan.path(model, "treatments"), plan.matrices(model)
    pictures = [file for matrix in matrices for file in _pictures(plan, f"{folder}/{matrix}")]
    rule = f"compare_treatments_{'_'.join(matrices)}"
    files = (f"{folder}/treatments.csv", *pictures)
    spec = _spec(plan, "treatments", model=model)
    yield Product(model, "treatments", rule, f"{folder}/treatments.json", files, inputs, spec)


def _comparisons(plan: Plan) -> Iterator[Product]:
    for contrast in contrasts(plan):
        for layer_norm in plan.config.layer_norm:
            place = {"layer_norm": layer_norm}

            def here(paths: list[str], place: Mapping[str, str] = place) -> tuple[str, ...]:
                return tuple(path.format(**place) for path in paths)

            files = here([*contrast.output_tables, *contrast.figures])
            inputs = here([*contrast.geometries, *contrast.tables, *contrast.records])
            spec: dict[str, Any] = json.loads(contrast.spec(SimpleNamespace(**place)))
            record = contrast.record.format(**place)
            yield Product("comparison", "comparison", contrast.rule, record, files, inputs, spec)


def _pictures(plan: Plan, stem: str) -> list[str]:
    return [f"{stem}.{form}" for form in plan.config.figures.formats]


def models_on_disk(results: Path = Path(RESULTS)) -> list[str]:
    """The models that have a results folder."""
    if not results.is_dir():
        return []
    return sorted(path.name for path in results.iterdir() if path.is_dir() and path.name != "comparison")
