"""What made a model's results: versions, commits, hashes, configuration, linear algebra.

The records hold nothing that changes from run to run; here is what does: the day, the machine's kind, the versions.
User names, host names and absolute paths stay out.
"""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headmaps import __version__
from headmaps.errors import ResultError
from headmaps.records import read_json, sha256_of_file

_SOURCE = ("source", "repo", "revision", "commit", "package", "version", "sha256", "file", "folder", "format")


def made_of(record: Path) -> dict[str, Any]:
    """The sidecar of a record; empty where it is missing or unreadable, which `headmaps verify` reports."""
    try:
        made = read_json(record.with_name(f"{record.stem}.made.json"))
    except ResultError:
        return {}
    return made if isinstance(made, dict) else {}


def results_of_record(record: Path, value: Any) -> dict[str, str]:
    """The files a record stands for, itself included: path -> sha256.

    Args:
        value: what the record holds.
    """
    files = {record.as_posix(): sha256_of_file(record)}
    described = value.get("files", {}) if isinstance(value, dict) else {}
    for one in described.values():
        if isinstance(one, dict) and "path" in one:
            files[os.path.normpath(record.parent / one["path"])] = one["sha256"]
    return files


def provenance(spec: Mapping[str, Any], records: Sequence[Path], lock: Path) -> dict[str, Any]:
    """Everything about one model's run but the hashes of its own two descriptions.

    Args:
        spec: the model's part of the configuration. records: of all its results. lock: the pinned requirements.

    Raises:
        ResultError: a record cannot be read.
    """
    values = {record: read_json(record) for record in records}
    made = {record: made_of(record) for record in records}
    results = {
        path: digest for record, value in values.items() for path, digest in results_of_record(record, value).items()
    }
    source = next(value for record, value in values.items() if record.name == "source.json")
    return {
        "step": "describe",
        "spec": dict(spec),
        "described": datetime.now(UTC).isoformat(timespec="seconds"),
        "headmaps": {"version": __version__, "commit": commit_of(Path())},
        "machine": {"system": platform.system(), "architecture": platform.machine(), "processor": processor()},
        "linear_algebra": linear_algebra(),
        "requirements": {"file": lock.as_posix(), "sha256": sha256_of_file(lock)},
        "source": {key: source[key] for key in _SOURCE if key in source},
        "fetched": _fetched(values),
        "steps": steps(made.values()),
        "results": dict(sorted(results.items())),
    }


def _fetched(values: Mapping[Path, Any]) -> dict[str, str]:
    """Whole files that were fetched: name -> sha256."""
    for record, value in values.items():
        if record.name == "files.json":
            return {name: file["sha256"] for name, file in value["files"].items()}
    return {}


def steps(made: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Per step: how many jobs, with which code, packages and pinned kernels; several where jobs differ."""
    found: dict[str, Any] = {}
    for one in made:
        if not one:
            continue
        step = found.setdefault(one["step"], {"jobs": 0, "code": {}, "packages": {}, "pinned_kernels": []})
        step["jobs"] += 1
        for kind in ("code", "packages"):
            for name, value in one.get(kind, {}).items():
                known = step[kind].setdefault(name, [])
                if value not in known:
                    known.append(value)
        if one.get("blas") and one["blas"] not in step["pinned_kernels"]:
            step["pinned_kernels"].append(one["blas"])
    return found


def linear_algebra() -> list[dict[str, Any]]:
    """The BLAS of this process: library, version, and the kernel it chose for this processor."""
    import numpy as np
    from threadpoolctl import threadpool_info

    np.dot(np.eye(2), np.eye(2))
    return [
        {
            "library": info["internal_api"],
            "version": info.get("version"),
            "kernel": info.get("architecture"),
            "threads": info["num_threads"],
        }
        for info in threadpool_info()
        if info["user_api"] == "blas"
    ]


def processor() -> str:
    """The processor's model as the system names it, empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def commit_of(project: Path) -> str | None:
    """The commit that a checkout of the project is at, None where it is not one.

    Local edits do not show here, but in the hashes of the code.
    """
    git = project / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        ref = head.removeprefix("ref: ")
        if (git / ref).is_file():
            return (git / ref).read_text(encoding="utf-8").strip()
        packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), None)
