"""results.lock.json: a finished run as content hashes, small enough to commit and to compare with on another day."""

from pathlib import Path
from typing import Any

from headmaps.errors import ResultError
from headmaps.plan import LOCK, PACKAGE, RESULTS, Plan
from headmaps.products import Product, products
from headmaps.records import read_json, sha256_of_file
from headmaps.step_code import CODE
from headmaps.verification import Finding

FORMAT = 1


def lock_of(plan: Plan) -> dict[str, Any]:
    """The lock of a finished run: inputs, parameters, code, environment, and every result's hash.

    Raises:
        ResultError: a result is missing or its record cannot be read.
    """
    results: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    for product in products(plan):
        record = read_json(Path(product.record))
        results[product.record] = sha256_of_file(Path(product.record))
        for path in product.files:
            results[path] = _recorded(product, record, path)
        if product.step == "resolve":
            inputs[product.model] = {
                key: record[key] for key in ("source", "repo", "package", "path", "commit", "format") if key in record
            }
    return {
        "format": FORMAT,
        "inputs": inputs,
        "parameters": plan.config.model_dump(mode="json"),
        "code": {name: sha256_of_file(Path(PACKAGE, name)) for name in sorted({f for c in CODE.values() for f in c})},
        "environment": {"lock": sha256_of_file(Path(LOCK)), "packages": dict(plan.lock)},
        "results": results,
    }


def _recorded(product: Product, record: dict[str, Any], path: str) -> str:
    """The hash of a result as its record has it; hashed anew where the record is not one of arrays."""
    folder = Path(product.record).parent
    for described in record.get("files", {}).values():
        if (folder / described["path"]).as_posix() == path:
            return str(described["sha256"])
    raise ResultError("a result is not in its record", where=path, do=f"snakemake --forcerun {product.rule}")


def read_lock(path: Path) -> dict[str, Any]:
    """Read a lock file.

    Raises:
        ResultError: it is missing or not a lock file.
    """
    lock = read_json(path)
    if not isinstance(lock, dict) or lock.get("format") != FORMAT or not isinstance(lock.get("results"), dict):
        do = "write one with `headmaps lock`"
        raise ResultError("not a lock file of this version", where=str(path), expected=f"format {FORMAT}", do=do)
    return lock


def compare_with_lock(plan: Plan, path: Path) -> list[Finding]:
    """What differs between the results as they are and a lock file, each with its cause as far as the lock tells it."""
    then, findings = read_lock(path), []
    now = {file: _hash(file) for product in products(plan) for file in (product.record, *product.files)}
    cause = _cause(then, plan)
    for file in sorted(then["results"].keys() | now.keys()):
        before, after = then["results"].get(file, ""), now.get(file, "")
        if before and after and before != after:
            findings.append(Finding(file, "altered", cause, f"not the bytes of {path}"))
        elif before and not after:
            findings.append(Finding(file, "missing", cause, f"in {path}, not here"))
        elif after and not before:
            findings.append(Finding(file, "unknown", cause, f"not in {path}"))
    return findings


def _hash(file: str) -> str:
    return sha256_of_file(Path(file)) if Path(file).is_file() else ""


def _cause(then: dict[str, Any], plan: Plan) -> Any:
    if then["parameters"] != plan.config.model_dump(mode="json"):
        return "config"
    if any(_hash(f"{PACKAGE}/{name}") != digest for name, digest in then["code"].items()):
        return "code"
    if then["environment"]["lock"] != sha256_of_file(Path(LOCK)):
        return "environment"
    return "edited"


def results_of(place: Path) -> dict[str, str]:
    """Path -> sha256 of a results folder or a lock file; paths are relative to the results folder.

    Raises:
        ResultError: there is neither.
    """
    if place.is_dir():
        root = place / RESULTS if (place / RESULTS).is_dir() else place
        skipped = ("kept", "files", "partial")
        return {
            path.relative_to(root).as_posix(): sha256_of_file(path)
            for path in sorted(root.rglob("*"))
            if path.is_file()
            and not path.name.startswith(".")
            and not path.name.endswith(".made.json")
            and not (path.relative_to(root).parts[1:2] == ("checkpoint",) and path.parent.name in skipped)
        }
    return {path.removeprefix(f"{RESULTS}/"): digest for path, digest in read_lock(place)["results"].items()}
