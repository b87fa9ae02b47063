"""The first steps of a run on a tiny local model, made in this process: real records and sidecars in half a second."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headmaps.config import read_config
from headmaps.plan import Plan
from headmaps.products import Product, products
from headmaps.steps import decompose, fetch_layer, geometry, heads, resolve
from support.checkpoints import write_llama
from support.project import ROOT
from support.small_model import call

STEPS = ("fetch_files", "resolve", "fetch_layer", "geometry", "heads", "decompose")
LAYERS = 2


def plan_of(**changes: Any) -> Plan:
    """The plan of a project in the current folder."""
    model = {"name": "tiny", "layers": LAYERS, "source": "local", "path": "checkpoints/tiny"}
    return Plan.of(read_config({"models": [model], **changes}))


def make_project(folder: Path) -> None:
    """The files of the project that a verification looks at, and a checkpoint."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "workflow/headmaps", folder / "workflow/headmaps", ignore=ignore)
    shutil.copytree(ROOT / "workflow/reference", folder / "workflow/reference")
    (folder / "envs").mkdir()
    shutil.copy2(ROOT / "envs/requirements.lock", folder / "envs/requirements.lock")
    write_llama(folder / "checkpoints/tiny", num_hidden_layers=LAYERS)


def first_products(plan: Plan) -> Iterator[Product]:
    """The products of the steps that were run."""
    return (product for product in products(plan) if product.step in STEPS)


def run_first_steps(plan: Plan) -> None:
    """From the checkpoint to the decompositions, in the current folder."""
    folder = Path("results/tiny")
    source, shape = folder / "checkpoint/source.json", folder / "heads/geometry.json"
    call(resolve, spec(plan, "resolve"), source=source)
    for product in first_products(plan):
        record = Path(product.record)
        layer = record.stem.removeprefix("layer-")
        if product.step == "fetch_layer":
            output = record.with_suffix(".safetensors")
            call(fetch_layer, product.spec, source=source, layer=int(layer), output=output, record=record)
        elif product.step == "geometry":
            call(geometry, product.spec, source=source, output=shape)
        elif product.step == "heads":
            checkpoint = folder / f"checkpoint/layer-{layer}.safetensors"
            call(
                heads, product.spec, geometry=shape, source=source, checkpoint=checkpoint, layer=int(layer),
                directory=record.with_suffix(""), record=record,
            )  # fmt: skip
        elif product.step == "decompose":
            call(
                decompose, product.spec, geometry=shape, heads=folder / f"heads/layer-{layer}", layer=int(layer),
                output=record.with_suffix(".npz"), record=record,
            )  # fmt: skip


def spec(plan: Plan, step: str) -> dict[str, Any]:
    import json

    loaded: dict[str, Any] = json.loads(plan.spec(step, SimpleNamespace(model="tiny")))
    return loaded
