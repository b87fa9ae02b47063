"""results.lock.json: a finished run as content hashes, small enough to commit and to compare with on another day."""

import os
from pathlib import Path
from typing import Any

from headmaps.errors import ResultError
from headmaps.findings import Cause, Finding
from headmaps.plan import LOCK, PACKAGE, RESULTS, Plan, code_files
from headmaps.products import Product, products
from headmaps.records import read_json, sha256_of_file
from headmaps.step_code import CODE

FORMAT = 1
VOLATILE = ("provenance.json", "ro-crate-metadata.json")
"""Results that say when they were made; no two runs have the same."""

_SOURCE = ("source", "repo", "package", "version", "file", "folder", "commit", "sha256", "format")


def lock_of(plan: Plan) -> dict[str, Any]:
    """The lock of a finished run: inputs, parameters, code, environment, and every result's hash.

    Raises:
        ResultError: a result is missing or its record cannot be read.
    """
    results: dict[str, str] = {}
    for product in products(plan):
        if product.step == "describe":
            continue
        record = read_json(Path(product.record))
        results[product.record] = sha256_of_file(Path(product.record))
        for path in product.files:
            results[path] = _recorded(product, record, path)
    return {
        "format": FORMAT,
        "inputs": {model: _inputs(plan, model) for model in plan.models},
        "parameters": parameters(plan),
        "code": code(),
        "environment": {"lock": sha256_of_file(Path(LOCK)), "packages": dict(plan.lock)},
        "results": results,
    }


def _inputs(plan: Plan, model: str) -> dict[str, Any]:
    """Where a model's weights came from, and the hash of every tensor that was read."""
    source = read_json(Path(plan.path(model, "checkpoint/source.json")))
    tensors: dict[str, str] = {}
    for record in plan.layer_files(model, "checkpoint", ".json"):
        described = read_json(Path(record)).get("facts", {}).get("tensors", {})
        tensors |= {name: tensor["sha256"] for name, tensor in described.items()}
    return {key: source[key] for key in _SOURCE if key in source} | {"tensors": tensors}


def parameters(plan: Plan) -> dict[str, Any]:
    """The configuration, without the places of local checkpoints."""
    config = plan.config.model_dump(mode="json", exclude_none=True)
    for entry in config["models"]:
        for key in ("path", "states"):
            entry.pop(key, None)
    return config


def code() -> dict[str, str]:
    """Project file -> sha256, of every file that some step imports or copies."""
    names = sorted({name for step in CODE for name in code_files(step)})
    return {name: sha256_of_file(Path(PACKAGE, name)) for name in names}


def _recorded(product: Product, record: dict[str, Any], path: str) -> str:
    """The hash of a result as its record has it."""
    folder = Path(product.record).parent
    for described in record.get("files", {}).values():
        if os.path.normpath(folder / described["path"]) == path:
            return str(described["sha256"])
    raise ResultError("a result is not in its record", where=path, do=f"snakemake --forcerun {product.rule}")


def read_lock(path: Path) -> dict[str, Any]:
    """Read a lock file.

    Raises:
        ResultError: it is missing or not a lock file.
    """
    lock = read_json(path)
    sections = ("inputs", "parameters", "code", "environment", "results")
    if (
        not isinstance(lock, dict)
        or lock.get("format") != FORMAT
        or not all(isinstance(lock.get(section), dict) for section in sections)
    ):
        do = "write one with `headmaps lock`"
        raise ResultError("not a lock file of this version", where=str(path), expected=f"format {FORMAT}", do=do)
    return lock


def compare_with_lock(plan: Plan, path: Path) -> list[Finding]:
    """What differs between the results as they are and a lock file, each with its cause as far as the lock tells it.

    Raises:
        ResultError: the lock cannot be read.
    """
    then, findings = read_lock(path), []
    made = {
        file: product
        for product in products(plan)
        if product.step != "describe"
        for file in (product.record, *product.files)
    }
    cause, why = _cause(then, plan)
    for file in sorted(then["results"].keys() | made.keys()):
        before, after = then["results"].get(file, ""), _hash(file)
        rule, target = (made[file].rule, made[file].record) if file in made else ("", "")
        if before and after and before != after:
            findings.append(Finding(file, "altered", cause, f"not the bytes of {path}: {why}", rule, target))
        elif before and not after:
            findings.append(Finding(file, "missing", cause, f"in {path}, not here: {why}", rule, target))
        elif after and not before:
            findings.append(Finding(file, "unknown", cause, f"not in {path}: {why}"))
    return findings


def _hash(file: str) -> str:
    return sha256_of_file(Path(file)) if Path(file).is_file() else ""


def _cause(then: dict[str, Any], plan: Plan) -> tuple[Cause, str]:
    """The first thing that differs between the lock and now, of those that enter a result."""
    if then["parameters"] != parameters(plan):
        now = parameters(plan)
        keys = [key for key in {**then["parameters"], **now} if then["parameters"].get(key) != now.get(key)]
        return "config", f"the configuration differs in {', '.join(keys)}"
    for model in plan.models:
        try:
            same = then["inputs"].get(model) == _inputs(plan, model)
        except ResultError:
            same = True  # nothing fetched: that is a missing file, not another input
        if not same:
            return "input", f"the weights of {model} are others"
    changed = [name for name, digest in code().items() if then["code"].get(name) != digest]
    if changed:
        return "code", f"{PACKAGE}/{changed[0]} differs" + (f", and {len(changed) - 1} more" if changed[1:] else "")
    if then["environment"]["lock"] != sha256_of_file(Path(LOCK)):
        return "environment", f"{LOCK} differs"
    return "edited", "with the same configuration, weights, code and locked packages"


def results_of(place: Path) -> dict[str, str]:
    """Path -> sha256 of a results folder or a lock file; paths are relative to the results folder.

    What says when or by what results were made is left out: it differs between equal runs.

    Raises:
        ResultError: there is neither.
    """
    if place.is_dir():
        root = results_folder(place)
        return {
            path.relative_to(root).as_posix(): sha256_of_file(path)
            for path in sorted(root.rglob("*"))
            if path.is_file() and not _left_out(path.relative_to(root))
        }
    return {path.removeprefix(f"{RESULTS}/"): digest for path, digest in read_lock(place)["results"].items()}


def results_folder(place: Path) -> Path:
    """The results folder of a project folder, or the folder itself."""
    return place / RESULTS if (place / RESULTS).is_dir() else place


def _left_out(path: Path) -> bool:
    beside = len(path.parts) > 2 and path.parts[1] == "checkpoint" and path.parts[2] in {"kept", "files", "partial"}
    shipped = len(path.parts) == 1 and path.name == "README.md"
    copied = len(path.parts) == 2 and path.name == "Snakefile"
    volatile = path.name in VOLATILE or path.name.endswith(".made.json") or path.name.startswith(".")
    return beside or shipped or copied or volatile
