"""What this machine has and lacks for a configuration: packages, linear algebra, memory, disk, network, cluster."""

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from headmaps.config import HubModel, WheelModel
from headmaps.plan import Plan
from headmaps.resources import ENGINE_MB, MB

GIB = 1 << 30
CORE = ("snakemake", "numpy", "scipy", "safetensors", "huggingface-hub", "pandas", "pyarrow", "matplotlib", "mpltern")
TIMEOUT = 20


@dataclass(frozen=True)
class Check:
    """One finding: `good` works, `note` works with a remark, `fails` will not work."""

    name: str
    state: Literal["good", "note", "fails"]
    found: str
    do: str = ""


def diagnose(plan: Plan, folder: Path, *, network: bool) -> list[Check]:
    """Every check for one configuration, run in the project's folder."""
    checks = [_python(), *_packages(plan), _blas(), _memory(), _disk(folder)]
    if network:
        checks += _sources(plan)
    return checks + list(_slurm(plan))


def _python() -> Check:
    return Check("python", "good", f"Python {sys.version.split()[0]} at {sys.executable}")


def _packages(plan: Plan) -> Iterator[Check]:
    different = []
    for name in CORE:
        try:
            have = version(name)
        except PackageNotFoundError:
            yield Check("packages", "fails", f"{name} is not installed", "make figures installs it into .venv")
            continue
        if have not in plan.lock.get(name, have).split():
            different.append(f"{name} {have} (locked: {plan.lock[name]})")
    if different:
        do = "results may differ in the last digits from those of the locked versions"
        yield Check("packages", "note", ", ".join(different), do)
    else:
        yield Check("packages", "good", "the locked versions")


def _blas() -> Check:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.linalg.svd(np.eye(2))
    libraries = [
        f"{info['internal_api']} {info.get('version')} ({info.get('architecture', 'unknown kernel')}, "
        f"{info['num_threads']} threads here, 1 in every job)"
        for info in threadpool_info()
        if info["user_api"] == "blas"
    ]
    pinned = os.environ.get("OPENBLAS_CORETYPE")
    do = f"OPENBLAS_CORETYPE={pinned} pins the kernel: slower on newer processors" if pinned else ""
    return Check("blas", "note" if pinned or not libraries else "good", ", ".join(libraries) or "not recognised", do)


def _memory() -> Check:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    total = pages * size
    state: Literal["good", "note"] = "good" if total >= 2 * GIB else "note"
    do = "" if state == "good" else "large models need more per job; see `headmaps plan`"
    return Check("memory", state, f"{total / GIB:.1f} GiB, {os.cpu_count()} cores", do)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    if free < GIB:
        return Check("disk", "fails", f"{free / GIB:.1f} GiB free in {folder}", "free some; see `headmaps plan`")
    return Check("disk", "good", f"{free / GIB:.0f} GiB free in {folder}")


def _sources(plan: Plan) -> Iterator[Check]:
    if any(isinstance(entry, WheelModel) for entry in plan.models.values()):
        yield _package_index()
    repos = {entry.repo: entry for entry in plan.models.values() if isinstance(entry, HubModel)}
    if repos:
        yield _token()
    for repo, entry in repos.items():
        yield _hub_repo(repo, entry.revision or "main")


def _token() -> Check:
    from huggingface_hub import get_token

    # the client takes it from HF_TOKEN or from the file that `hf auth login` writes
    if get_token():
        return Check("hub token", "good", "there is one")
    return Check("hub token", "note", "none: public models only", "gated models: `hf auth login`, or set HF_TOKEN")


def _package_index() -> Check:
    # asks as the fetch step will: the same client, the same settings and proxies
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "snakemake"]
    done = _run(command)
    if done is None or done.returncode:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1] if done else "no answer"
        return Check("wheels", "fails", f"the Python package index does not answer: {said}", "check network and proxy")
    return Check("wheels", "good", "the Python package index answers")


def _hub_repo(repo: str, revision: str) -> Check:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}:
        return Check("hub", "note", f"{repo}: not tried, HF_HUB_OFFLINE is set", "only cached files can be used")
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(repo, revision=revision, timeout=TIMEOUT)
    except Exception as error:  # any failure of the client is the finding
        return Check("hub", "fails", f"{repo}: {str(error).splitlines()[0]}", "see config/README.md, gated models")
    return Check("hub", "good", f"{repo} at {revision} answers")


def _slurm(plan: Plan) -> Iterator[Check]:
    if not shutil.which("sbatch"):
        yield Check("slurm", "note", "no sbatch here: jobs run on this machine")
        return
    ping = _run(["sinfo", "--noheader", "--format=%P %D %T %c %m"])
    if ping is None or ping.returncode:
        said = ping.stderr.strip() if ping else "no answer"
        yield Check("slurm", "fails", f"sbatch is here but the controller does not answer: {said}")
        return
    yield Check("slurm", "good", "partitions: " + "; ".join(line.strip() for line in ping.stdout.splitlines()))
    yield from _accounting()
    yield from _nodes(plan)


def _accounting() -> Iterator[Check]:
    sacct = _run(["sacct", "--noheader", "--parsable2", "--format=JobID", "--starttime=now-1minutes"])
    if sacct is not None and sacct.returncode == 0:
        yield Check("accounting", "good", "sacct answers: `snakemake --profile profiles/slurm`")
        return
    config = _run(["scontrol", "show", "config"])
    match = re.search(r"MinJobAge\s*=\s*(\d+)", config.stdout if config else "")
    age = int(match.group(1)) if match else 0
    said = (sacct.stderr.strip().splitlines() or ["sacct is not here"])[-1] if sacct else "sacct is not here"
    found = f"none ({said}); finished jobs stay visible for MinJobAge = {age} s"
    if age >= 3 * 20:  # the profile's seconds between questions
        yield Check("accounting", "note", found, "use `snakemake --profile profiles/slurm-noacct` (asks squeue)")
    else:
        do = f"use profiles/slurm-noacct with `--slurm-init-seconds-before-status-checks {max(1, age // 3)}`"
        yield Check("accounting", "note", found, do)


def _nodes(plan: Plan) -> Iterator[Check]:
    """Whether a bundle of jobs fits the largest node; one that does not would wait for ever."""
    asked = _run(["sinfo", "--noheader", "--format=%c %m"])
    sizes = [tuple(map(int, re.findall(r"\d+", line)[:2])) for line in (asked.stdout if asked else "").splitlines()]
    if not sizes:
        return
    cpus, memory = max(size[0] for size in sizes), max(size[1] for size in sizes)
    wanted, needed = profile_cores(), largest_request(plan)
    found = f"the largest has {cpus} CPUs and {memory} MB; a bundle asks for {wanted or 'a CPU for each member'}"
    found += f" CPU and {needed} MB" if needed else " CPU and, as far as models are known here, little memory"
    if wanted is None or wanted > cpus:
        yield Check("slurm nodes", "fails", found, f"`cores: {cpus}` in profiles/slurm, or --cores {cpus}")
    elif needed > memory:
        yield Check("slurm nodes", "fails", found, "name a partition with larger nodes: see profiles/slurm")
    else:
        yield Check("slurm nodes", "good", found)


def profile_cores(profile: str | Path = "profiles/slurm/profile.yaml") -> int | None:
    """CPUs that one bundle of the profile asks for at most; None: as many as it has members."""
    import yaml

    cores = yaml.safe_load(Path(profile).read_text(encoding="utf-8")).get("cores") if Path(profile).is_file() else 1
    return int(cores) if cores is not None else None


def largest_request(plan: Plan) -> int:
    """MB that the largest step of the models known here asks for; 0 if none is known."""
    from headmaps.estimate import estimates

    found, _ = estimates(plan, network=False)
    return max((math.ceil(one.memory / MB + ENGINE_MB) for one in found.values()), default=0)


def _run(command: list[str]) -> "subprocess.CompletedProcess[str] | None":
    """Run a command, None if it is not there or does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
