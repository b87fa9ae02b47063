"""Are the results what the recorded inputs give? Every hash recomputed, every difference with its cause.

The workflow engine compares dates first and looks at content only of small files with newer dates; it never looks at a
finished result again. What it cannot see is seen here.
"""

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headmaps.config import LocalModel
from headmaps.errors import HeadmapsError, ResultError
from headmaps.findings import Cause, Finding, State
from headmaps.plan import PACKAGE, RESULTS, Plan, code_files
from headmaps.products import Product, models_on_disk, products
from headmaps.records import read_json, sha256_of_file, unplaced

UNRECORDED = ("kept", "files", "partial")
"""Folders of a checkpoint that hold bytes beside their record: whole files, and layers kept for a later run."""

TREATMENTS = ("raw", "gain", "gain_and_center", "gain_and_center_write")
SHIPPED = ("README.md",)
"""Files of the results folder that come with the project."""


def verify(plan: Plan) -> list[Finding]:
    """Everything in the results folder against the plan, the records and the project's files as they are now."""
    known: set[str] = set()
    findings: list[Finding] = []
    hashes = _Hashes()
    for product in products(plan):
        known.update((product.record, str(product.made), *product.files))
        findings += _check(product, hashes)
    findings += local_checkpoints(plan)
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


def _finding(product: Product, state: State, cause: Cause, detail: str, path: str = "") -> Finding:
    return Finding(path or product.record, state, cause, detail, product.rule, product.record)


# --- is it there, and are its bytes those of the record ---------------------------------------------------------------


def _check(product: Product, hashes: _Hashes) -> Iterator[Finding]:
    present = [path for path in (product.record, *product.files) if Path(path).is_file()]
    if not present:
        yield _finding(product, "missing", "never made", f"{product.step} has not run")
        return
    for path in (product.record, *product.files):
        if path not in present:
            yield _finding(product, "missing", "edited", "deleted after it was made", path)
    if product.record not in present:
        return
    try:
        record = read_json(Path(product.record))
    except ResultError as error:
        yield _finding(product, "altered", "edited", error.what)
        return
    if not isinstance(record, dict):
        yield _finding(product, "altered", "edited", "not a record")
        return
    yield from _altered(product, record, hashes)
    yield from _stale(product, hashes)


def _altered(product: Product, record: dict[str, Any], hashes: _Hashes) -> Iterator[Finding]:
    folder = Path(product.record).parent
    if product.step == "fetch_files":
        yield from _altered_downloads(product, record, hashes)
        return
    if not product.files:
        return
    described = record.get("files")
    found = {}
    for one in described.values() if isinstance(described, dict) else ():
        if isinstance(one, dict) and {"path", "sha256"} <= one.keys():
            found[os.path.normpath(folder / one["path"])] = one["sha256"]
    for path in product.files:
        if path not in found:
            yield _finding(product, "altered", "edited", f"the record does not name {path}")
        elif Path(path).is_file() and hashes.of(path) != found[path]:
            detail = f"sha256 is not the recorded one ({Path(path).stat().st_size} bytes)"
            yield _finding(product, "altered", "edited", detail, path)


def _altered_downloads(product: Product, record: dict[str, Any], hashes: _Hashes) -> Iterator[Finding]:
    folder = Path(product.record).parent / "files"
    for name, described in record.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            yield _finding(product, "missing", "edited", "deleted after it was fetched", str(path))
        elif hashes.of(path) != described["sha256"]:
            yield _finding(product, "altered", "edited", "sha256 is not the one fetched", str(path))


# --- was it made from what is here now --------------------------------------------------------------------------------


def _stale(product: Product, hashes: _Hashes) -> Iterator[Finding]:
    made = _made(product)
    if made is None:
        detail = f"nothing says what made it: {product.made.name} is missing or unreadable"
        yield _finding(product, "stale", "edited", detail)
        return
    if made["record"] != hashes.of(product.record):
        yield _finding(product, "altered", "edited", "the record is not the one that its job wrote")
    then, now = made["spec"], unplaced(product.spec)
    if detail := _difference(_without(then, "packages"), _without(now, "packages")):
        yield _finding(product, "stale", "config", detail)
    if detail := _difference(then.get("packages", {}), now.get("packages", {})):
        yield _finding(product, "stale", "environment", detail)
    if detail := _changed_inputs(product, made["inputs"], hashes):
        yield _finding(product, "stale", "input", detail)
    if detail := _changed_code(product, made["code"], hashes):
        yield _finding(product, "stale", "code", detail)


def _made(product: Product) -> dict[str, Any] | None:
    try:
        made = read_json(product.made)
    except ResultError:
        return None
    keys = {"record", "spec", "inputs", "code"}
    return made if isinstance(made, dict) and keys <= made.keys() else None


def _without(spec: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != key}


def _difference(then: dict[str, Any], now: dict[str, Any], start: str = "") -> str:
    """`draws was 64, is 128`, key by key, into sections; empty where both are equal."""
    parts = []
    for key in sorted(then.keys() | now.keys()):
        before, after = then.get(key), now.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            parts.append(_difference(before, after, f"{start}{key}."))
        elif before != after:
            parts.append(f"{start}{key} was {_shown(before)}, is {_shown(after)}")
    return ", ".join(part for part in parts if part)


def _shown(value: Any) -> str:
    return "not there" if value is None else repr(value)


def _changed_inputs(product: Product, then: dict[str, str], hashes: _Hashes) -> str:
    now = {os.path.relpath(path): path for path in product.inputs}
    found = []
    for name, path in now.items():
        digest = hashes.of(path)
        if name not in then:
            found.append(f"{name} was not an input then")
        elif not digest and not path.startswith(f"{RESULTS}/"):
            found.append(f"{name} is gone")
        elif digest and digest != then[name]:
            found.append(f"{name} has changed since")
    found += [f"{name} is no input any more" for name in then if name not in now]
    return _first(found)


def _changed_code(product: Product, then: dict[str, str], hashes: _Hashes) -> str:
    now = {name: hashes.of(f"{PACKAGE}/{name}") for name in code_files(product.step)}
    return _first([f"{PACKAGE}/{name} has changed since" for name in now if then.get(name) != now[name]])


def _first(found: list[str]) -> str:
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return found[0] + more if found else ""


# --- checkpoints on this machine --------------------------------------------------------------------------------------


def local_checkpoints(plan: Plan) -> Iterator[Finding]:
    """Local checkpoints that are no longer what was read: headers, config, and the bytes of every tensor, read again.

    A file that was replaced keeps its name and may have an older date, so that nothing but its bytes can tell.
    """
    for model, entry in plan.models.items():
        source = plan.path(model, "checkpoint/source.json")
        there = isinstance(entry, LocalModel) and Path(source).is_file()
        if there and (detail := _changed_checkpoint(plan, model, Path(source))):
            yield Finding(source, "stale", "input", detail, "resolve", source)


def _changed_checkpoint(plan: Plan, model: str, source: Path) -> str:
    from headmaps.resolution import resolved

    spec = json.loads(plan.spec("resolve", SimpleNamespace(model=model)))
    try:
        then = read_json(source)
        now, _ = resolved(spec, source.parent)
    except HeadmapsError as error:
        return f"the checkpoint in {spec['path']} cannot be read as it was: {error.what}"
    found = []
    if detail := _difference(then.get("config", {}), now["config"]):
        found.append(f"the config in {spec['path']} has changed since: {detail}")
    before = _tensors(then)
    found += [
        f"tensor {name} in {spec['path']} is not the one that was read"
        for name, entry in _tensors(now).items()
        if before.get(name) != entry
    ]
    return _first(found)


def _tensors(source: dict[str, Any]) -> dict[str, Any]:
    return {
        **source.get("shared", {}),
        **{k: v for layer in source.get("layers", {}).values() for k, v in layer.items()},
    }


# --- what no rule makes -----------------------------------------------------------------------------------------------


def _unknown(plan: Plan, known: Collection[str]) -> Iterator[Finding]:
    models = models_on_disk()
    for model in models:
        if model not in plan.models:
            yield Finding(f"{RESULTS}/{model}", "unknown", "not in this config", "results of another configuration")
    for path in sorted(Path(RESULTS).rglob("*")) if Path(RESULTS).is_dir() else ():
        parts = path.relative_to(RESULTS).parts
        if not path.is_file() or path.as_posix() in known or path.name.startswith("."):
            continue
        if parts[0] in models and (parts[0] not in plan.models or _unrecorded(parts)):
            continue
        if len(parts) == 1 and path.name in SHIPPED:
            continue
        elsewhere = len(parts) > 2 and parts[1] in TREATMENTS and parts[1] not in plan.config.layer_norm
        cause: Cause = "not in this config" if elsewhere else "left over"
        yield Finding(path.as_posix(), "unknown", cause, "no rule of this configuration makes it")


def _unrecorded(parts: tuple[str, ...]) -> bool:
    return len(parts) > 2 and parts[1] == "checkpoint" and parts[2] in UNRECORDED
