"""A model's results as a Workflow Run RO-Crate: inputs, steps and outputs with their hashes, for other people's tools.

Profile: Workflow Run Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5). The crate's root is the model's results
folder, which holds a copy of the Snakefile, since the profile wants the main workflow inside the crate.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from headmaps import __version__
from headmaps.provenance import made_of, results_of_record
from headmaps.records import read_json

METADATA = "ro-crate-metadata.json"
WORKFLOW = "Snakefile"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
LICENSE = {
    "@type": "CreativeWork",
    "name": "the checkpoint's licence",
    "description": "The licence of the checkpoint governs what is derived from it; headmaps itself is under MIT.",
}
FORMATS = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".html": "text/html",
    ".parquet": "application/vnd.apache.parquet",
    ".npy": "application/x-npy",
    ".npz": "application/x-npz",
    ".safetensors": "application/x-safetensors",
}


def crate_of(folder: Path, known: Mapping[str, Any], records: Sequence[Path], workflow: Path) -> dict[str, Any]:
    """The metadata of a crate, as plain JSON.

    Args:
        folder: the model's results. known: its provenance. records: of all its results.
        workflow: the Snakefile, of which `folder` holds a copy.
    """
    crate = ROCrate(version="1.1")  # the version that the profile is written for
    crate.metadata.extra_terms["sha256"] = "https://w3id.org/ro/terms/workflow-run#sha256"
    model, day = known["spec"]["model"], known["described"]
    crate.name = f"headmaps: attention heads of {model}"
    crate.description = (
        f"What each attention head of {model} reads, writes and copies, computed from its weights alone: "
        "head matrices, decompositions, tables, figures and an interactive page."
    )
    crate.datePublished = day
    crate.license = crate.add(ContextEntity(crate, "#license", LICENSE))
    profiles = [
        crate.add(ContextEntity(crate, url, {"@type": "CreativeWork", "name": name, "version": version}))
        for url, (name, version) in PROFILES.items()
    ]
    crate.root_dataset["conformsTo"] = profiles
    about = {"name": "headmaps", "version": __version__, "encodingFormat": "text/plain"}
    main = crate.add_workflow(str(workflow), WORKFLOW, main=True, lang="snakemake", properties=about)
    main["conformsTo"] = {"@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"}
    files = _files(crate, folder, known["results"])
    files["provenance.json"] = crate.add_file(
        dest_path="provenance.json",
        properties={"name": "versions, commits, hashes and configuration", "encodingFormat": "application/json"},
    )
    inputs = [_checkpoint(crate, known["source"]), _configuration(crate, known["spec"])]
    run = {
        "@type": "CreateAction",
        "name": f"headmaps run on {model}",
        "description": "All steps of the workflow for this model.",
        "endTime": day,
        "actionStatus": "http://schema.org/CompletedActionStatus",
    }
    action = crate.add(ContextEntity(crate, "#run", run))
    action["instrument"], action["object"], action["result"] = main, inputs, list(files.values())
    actions = [action, *_steps(crate, main, folder, known, records, files)]
    crate.root_dataset["mentions"] = actions
    metadata: dict[str, Any] = crate.metadata.generate()
    return metadata


def _files(crate: ROCrate, folder: Path, results: Mapping[str, str]) -> dict[str, Any]:
    """An entity for each result, by its path within the folder."""
    files = {}
    for path, digest in results.items():
        name = Path(path).relative_to(folder).as_posix()
        properties = {"name": name, "sha256": digest, "contentSize": str(Path(path).stat().st_size)}
        if form := FORMATS.get(Path(path).suffix):
            properties["encodingFormat"] = form
        files[name] = crate.add_file(dest_path=name, properties=properties)
    return files


def _checkpoint(crate: ROCrate, source: Mapping[str, Any]) -> Any:
    name = source.get("repo") or source.get("package") or source.get("file") or "local checkpoint"
    version = source.get("commit") or source.get("version") or source.get("sha256")
    properties = {"@type": "CreativeWork", "name": str(name), "description": "The checkpoint whose weights were read."}
    if version:
        properties["version"] = str(version)
    if source.get("sha256"):
        properties["sha256"] = str(source["sha256"])
    return crate.add(ContextEntity(crate, "#checkpoint", properties))


def _configuration(crate: ROCrate, spec: Mapping[str, Any]) -> Any:
    properties = {"@type": "PropertyValue", "name": "configuration", "value": json.dumps(spec, sort_keys=True)}
    return crate.add(ContextEntity(crate, "#configuration", properties))


def _steps(
    crate: ROCrate,
    main: Any,
    folder: Path,
    known: Mapping[str, Any],
    records: Sequence[Path],
    files: Mapping[str, Any],
) -> list[Any]:
    """A tool and an action for each step: what its jobs read and what they wrote."""
    read: dict[str, set[str]] = {}
    wrote: dict[str, set[str]] = {}
    for record in records:
        made = made_of(record)
        step = made.get("step", "unknown")
        read.setdefault(step, set()).update(made.get("inputs", {}))
        wrote.setdefault(step, set()).update(results_of_record(record, read_json(record)))
    actions, tools = [], []
    for step, paths in wrote.items():
        tool = {"@type": "SoftwareApplication", "name": f"headmaps.steps.{step}", "softwareVersion": __version__}
        tools.append(crate.add(ContextEntity(crate, f"#step-{step}", tool)))
        jobs = known["steps"].get(step, {}).get("jobs", 0)
        properties = {
            "@type": "CreateAction",
            "name": step,
            "description": f"{jobs} job{'' if jobs == 1 else 's'} of python -m headmaps.steps.{step}",
            "endTime": known["described"],
            "actionStatus": "http://schema.org/CompletedActionStatus",
        }
        action = crate.add(ContextEntity(crate, f"#action-{step}", properties))
        action["instrument"] = tools[-1]
        for role, names in (("result", paths), ("object", read[step])):
            if found := _entities(names, folder, files):
                action[role] = found if len(found) > 1 else found[0]
        actions.append(action)
    main["hasPart"] = tools
    return actions


def _entities(paths: set[str], folder: Path, files: Mapping[str, Any]) -> list[Any]:
    inside = (Path(path).relative_to(folder).as_posix() for path in sorted(paths) if Path(path).is_relative_to(folder))
    return [files[name] for name in inside if name in files]
