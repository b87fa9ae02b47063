"""Are the results what the recorded inputs give? Every hash recomputed, every difference with its cause.

The workflow engine compares dates first and looks at content only of small files with newer dates; it never looks at a
finished result again. What it cannot see is seen here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headmaps.errors import ResultError
from headmaps.plan import PACKAGE, RESULTS, Plan
from headmaps.products import Product, models_on_disk, products
from headmaps.records import read_json, sha256_of_file
from headmaps.step_code import CODE

State = Literal["missing", "altered", "stale", "unknown"]
Cause = Literal["never made", "edited", "config", "code", "input", "environment", "not in this config", "left over"]

UNRECORDED = ("kept", "files", "partial")
"""Folders of a checkpoint that hold bytes beside their record: whole files, and layers kept for a later run."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        path: the file.
        state: missing, altered (bytes differ from the record), stale (made from something else), unknown.
        cause: why.
        detail: what exactly differs.
        rule: the rule that makes it again; empty for what no rule makes.
    """

    path: str
    state: State
    cause: Cause
    detail: str
    rule: str = ""


def verify(plan: Plan) -> list[Finding]:
    """Everything in the results folder against the plan, the records and the project's files as they are now."""
    known: set[str] = set()
    findings: list[Finding] = []
    hashes = _Hashes()
    for product in products(plan):
        known.update((product.record, str(product.made), *product.files))
        findings += _check(product, hashes)
    findings += _unknown(plan, known)
    return findings


class _Hashes:
    """sha256 of a file, computed once: code files and records are asked for again and again."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, path: str | Path) -> str:
        """Hex sha256, empty if there is no such file."""
        name = str(path)
        if name not in self._known:
            self._known[name] = sha256_of_file(Path(name)) if Path(name).is_file() else ""
        return self._known[name]


def _check(product: Product, hashes: _Hashes) -> Iterator[Finding]:
    present = [path for path in (product.record, *product.files) if Path(path).is_file()]
    if not present:
        yield Finding(product.record, "missing", "never made", f"{product.step} has not run", product.rule)
        return
    for path in (product.record, *product.files):
        if path not in present:
            yield Finding(path, "missing", "edited", "deleted after it was made", product.rule)
    if product.record not in present:
        return
    try:
        record = read_json(Path(product.record))
    except ResultError as error:
        yield Finding(product.record, "altered", "edited", error.what, product.rule)
        return
    if not isinstance(record, dict):
        yield Finding(product.record, "altered", "edited", "not a record", product.rule)
        return
    yield from _altered(product, record, hashes)
    yield from _stale(product, record, hashes)


def _altered(product: Product, record: dict[str, Any], hashes: _Hashes) -> Iterator[Finding]:
    folder = Path(product.record).parent
    files = record.get("files", {}) if product.files else {}
    for described in files.values():
        path = (folder / described["path"]).as_posix()
        if Path(path).is_file() and hashes.of(path) != described["sha256"]:
            size = Path(path).stat().st_size
            detail = f"sha256 is not the recorded one ({size} bytes, recorded {described['size']})"
            yield Finding(path, "altered", "edited", detail, product.rule)
    if product.step == "fetch_files":
        yield from _altered_downloads(product, record, hashes)


def _altered_downloads(product: Product, record: dict[str, Any], hashes: _Hashes) -> Iterator[Finding]:
    folder = Path(product.record).parent / "files"
    for name, described in record.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            yield Finding(str(path), "missing", "edited", "deleted after it was fetched", product.rule)
        elif hashes.of(path) != described["sha256"]:
            yield Finding(str(path), "altered", "edited", "sha256 is not the one fetched", product.rule)


def _stale(product: Product, record: dict[str, Any], hashes: _Hashes) -> Iterator[Finding]:
    made = _made(product)
    if made is None:
        detail = "the sidecar that says what made it is missing or unreadable"
        yield Finding(product.record, "stale", "edited", detail, product.rule)
        return
    if made["record"] != hashes.of(product.record):
        detail = "the record is not the one that its job wrote"
        yield Finding(product.record, "altered", "edited", detail, product.rule)
    spec = made["spec"]
    if _without(spec, "packages") != _without(product.spec, "packages"):
        yield Finding(product.record, "stale", "config", _difference(spec, product.spec), product.rule)
    if spec.get("packages") != product.spec.get("packages"):
        detail = _difference(spec.get("packages", {}), product.spec.get("packages", {}))
        yield Finding(product.record, "stale", "environment", detail, product.rule)
    for path in product.inputs:
        then = made["inputs"].get(path)
        if then != hashes.of(path) and hashes.of(path):
            detail = f"{path} has changed since" if then else f"{path} was not an input then"
            yield Finding(product.record, "stale", "input", detail, product.rule)
            break
    for name in CODE[product.step]:
        path = f"{PACKAGE}/{name}"
        if made["code"].get(name) != hashes.of(path):
            yield Finding(product.record, "stale", "code", f"{path} has changed since", product.rule)
            break


def _made(product: Product) -> dict[str, Any] | None:
    try:
        made = read_json(product.made)
    except ResultError:
        return None
    keys = {"record", "spec", "inputs", "code"}
    return made if isinstance(made, dict) and keys <= made.keys() else None


def _without(spec: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != key}


def _difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    keys = sorted(key for key in then.keys() | now.keys() if key != "packages" and then.get(key) != now.get(key))
    return ", ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in keys)


def _unknown(plan: Plan, known: Iterable[str]) -> Iterator[Finding]:
    known = set(known)
    for model in models_on_disk():
        if model not in plan.models:
            yield Finding(f"{RESULTS}/{model}", "unknown", "not in this config", "results of another configuration")
            continue
        for path in sorted(Path(RESULTS, model).rglob("*")):
            name = path.as_posix()
            parts = path.relative_to(Path(RESULTS, model)).parts
            beside = parts[0] == "checkpoint" and len(parts) > 1 and parts[1] in UNRECORDED
            if path.is_file() and name not in known and not beside and not path.name.startswith("."):
                other = len(parts) > 1 and parts[0] in {"raw", "gain", "gain_and_center", "gain_and_center_write"}
                elsewhere = other and parts[0] not in plan.config.layer_norm
                cause: Cause = "not in this config" if elsewhere else "left over"
                yield Finding(name, "unknown", cause, "no rule of this configuration makes it")
