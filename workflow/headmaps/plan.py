"""What a run consists of: from a configuration to layer numbers, specs, code lists and targets. Standard library only.

A spec holds the parameters that enter a step's result, and only those, as JSON with sorted keys: the workflow
engine re-runs a step when this text changes, and `headmaps verify` compares it with the one in the record.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headmaps import specs
from headmaps.config import (
    HAAR_KINDS,
    POOL_SUFFICES,
    Comparison,
    Config,
    HubModel,
    LocalModel,
    WheelModel,
    expanded_models,
)
from headmaps.errors import ConfigError
from headmaps.figures.names import FIGURES, FigureJob, jobs
from headmaps.references import check_references
from headmaps.states import check_states
from headmaps.step_code import ASSETS, CODE, PACKAGES

Entry = WheelModel | LocalModel | HubModel

RESULTS = "results"
LOCK = "envs/requirements.lock"
PACKAGE = "workflow/headmaps"
LAYERS_PER_FIGURE_JOB = 16
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".json")


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        config: the checked configuration.
        lock: package name -> its line of the lock file (version only).
        models: every model by the name of its results folder.
    """

    config: Config
    lock: Mapping[str, str]
    models: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, lock: str | Path = LOCK) -> "Plan":
        """The plan of a checked configuration.

        Raises:
            ConfigError: a local model's path does not exist, or a model cannot be compared with what it names.
        """
        models = expanded_models(config)
        for name, entry in models.items():
            if isinstance(entry, LocalModel) and not os.path.exists(entry.path):
                what = f"the path of model {name!r} does not exist: {entry.path}"
                do = "correct `path`; a relative one is taken from the folder snakemake runs in"
                raise ConfigError(what, where="models", expected="a folder or a file", do=do)
        check_references(models)
        plan = cls(config, locked_versions(lock), models)
        check_states(plan)
        return plan

    # --- layers ---------------------------------------------------------------------------------------------------

    def layers(self, model: str) -> list[str]:
        """The layer numbers of a model as they stand in file names."""
        return padded(self.models[model].layer_numbers)

    def matrices(self, model: str) -> list[str]:
        """The matrices to decompose."""
        return list(self.models[model].matrices)

    # --- specs ----------------------------------------------------------------------------------------------------

    def spec(self, step: str, wildcards: Any) -> str:
        """The spec of a step as sorted JSON.

        Args:
            step: the step's name.
            wildcards: the rule's wildcards (attributes `model`, `layer_norm`, `matrix`, ...).
        """
        spec: dict[str, Any] = getattr(specs, step)(self, wildcards)
        if packages := self.packages(step):
            spec["packages"] = packages
        if self.config.exact and PACKAGES[step]:
            spec["exact"] = True
        return json.dumps(spec, sort_keys=True)

    def spec_of(self, step: str) -> Callable[[Any], str]:
        """`spec` of one step, as a function of a rule's wildcards."""

        def spec(wildcards: Any) -> str:
            return self.spec(step, wildcards)

        return spec

    def packages(self, step: str) -> dict[str, str]:
        """The locked versions that can change a step's result."""
        return {name: self.lock[name] for name in PACKAGES[step] if name in self.lock}

    # --- code -----------------------------------------------------------------------------------------------------

    def code(self, step: str) -> list[str]:
        """The project files a step imports or copies: inputs of its rule, so that an edit re-runs it."""
        return [f"{PACKAGE}/{name}" for name in code_files(step)]

    # --- sources --------------------------------------------------------------------------------------------------

    def fetches_whole_files(self, model: str) -> bool:
        """Whether the model's files are fetched whole (then `files.json` comes before `source.json`)."""
        entry = self.models[model]
        return isinstance(entry, WheelModel) or (isinstance(entry, HubModel) and entry.fetch == "full")

    def source_inputs(self, wildcards: Any) -> list[str]:
        """What `resolve` reads: the list of fetched files, or a local model's own files."""
        entry = self.models[wildcards.model]
        if isinstance(entry, LocalModel):
            path = Path(entry.path)
            if path.is_file():
                return [str(path)]
            return sorted(str(file) for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES)
        return (
            [self.path(wildcards.model, "checkpoint/files.json")] if self.fetches_whole_files(wildcards.model) else []
        )

    def files_flag(self, wildcards: Any) -> str:
        """`--files` for `resolve`, where whole files are fetched."""
        whole = self.fetches_whole_files(wildcards.model)
        return f"--files {shlex.quote(self.path(wildcards.model, 'checkpoint/files.json'))}" if whole else ""

    def download_slots(self, wildcards: Any) -> int:
        """1 where a layer comes over the network, 0 where its file is here already."""
        entry = self.models[wildcards.model]
        return int(isinstance(entry, HubModel) and not self.fetches_whole_files(wildcards.model))

    # --- inputs of the tables -------------------------------------------------------------------------------------

    def input_decompositions(self, suffix: str) -> Callable[[Any], list[str]]:
        """`decompositions_of` as a function of a rule's wildcards."""

        def files(wildcards: Any) -> list[str]:
            return self.decompositions_of(wildcards.model, wildcards.layer_norm, suffix)

        return files

    def input_baselines(self, suffix: str) -> Callable[[Any], list[str]]:
        """`baselines_of` as a function of a rule's wildcards."""

        def files(wildcards: Any) -> list[str]:
            return self.baselines_of(wildcards.model, wildcards.layer_norm, suffix)

        return files

    def input_layers(self, folder: str, suffix: str) -> Callable[[Any], list[str]]:
        """One file a layer, as a function of a rule's wildcards, which `folder` may name."""

        def files(wildcards: Any) -> list[str]:
            return self.layer_files(wildcards.model, folder.format(**dict(wildcards.items())), suffix)

        return files

    def input_tables(self, name: str) -> Callable[[Any], list[str]]:
        """One file of the tables for each treatment, as a function of a rule's wildcards."""

        def files(wildcards: Any) -> list[str]:
            return [self.path(wildcards.model, each, f"tables/{name}") for each in self.config.layer_norm]

        return files

    def input_all_decompositions(self, suffix: str) -> Callable[[Any], list[str]]:
        """The decompositions of all treatments, as a function of a rule's wildcards."""

        def files(wildcards: Any) -> list[str]:
            return [f for each in self.config.layer_norm for f in self.decompositions_of(wildcards.model, each, suffix)]

        return files

    def earlier_layers(self, name: str) -> Callable[[Any], list[str]]:
        """A file of the head matrices of all layers before the rule's own, their records (".json") or folders ("")."""
        suffix = f"/{name}" if name and not name.startswith(".") else name

        def files(wildcards: Any) -> list[str]:
            every = zip(self.layers(wildcards.model), self.layer_files(wildcards.model, "heads", suffix), strict=True)
            return [file for layer, file in every if int(layer) < int(wildcards.layer)]

        return files

    def matrix_groups(self) -> list[tuple[tuple[str, ...], str]]:
        """(matrices, pattern of the models that have them): the files of a rule depend on the matrices."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for model in self.models:
            groups.setdefault(tuple(self.matrices(model)), []).append(re.escape(model))
        return [(matrices, "|".join(models)) for matrices, models in groups.items()]

    # --- targets --------------------------------------------------------------------------------------------------

    def path(self, model: str, *parts: str) -> str:
        """A path in a model's results."""
        return "/".join([RESULTS, model, *parts])

    def atlases(self, *_: Any) -> list[str]:
        """The interactive pages, and the one that links them."""
        return [*(self.path(model, "atlas.html") for model in self.models), f"{RESULTS}/atlas.html"]

    def each(self) -> Iterator[tuple[str, str]]:
        """Every (model, layer-norm treatment)."""
        for model in self.models:
            for layer_norm in self.config.layer_norm:
                yield model, layer_norm

    def layer_files(self, model: str, folder: str, suffix: str) -> list[str]:
        """One file a layer: `results/{model}/{folder}/layer-LL{suffix}`."""
        return [self.path(model, folder, f"layer-{layer}{suffix}") for layer in self.layers(model)]

    def checkpoints(self, *_: Any) -> list[str]:
        """The records of every fetched layer."""
        return [file for model in self.models for file in self.layer_files(model, "checkpoint", ".json")]

    def heads(self, *_: Any) -> list[str]:
        """The records of every layer's head matrices."""
        return [file for model in self.models for file in self.layer_files(model, "heads", ".json")]

    def decompositions_of(self, model: str, layer_norm: str, suffix: str = ".json") -> list[str]:
        """The decomposition files of one model and treatment, by matrix, then by layer."""
        return [
            file
            for matrix in self.matrices(model)
            for file in self.layer_files(model, f"{layer_norm}/decomposition/{matrix}", suffix)
        ]

    def decompositions(self, *_: Any) -> list[str]:
        """The records of every decomposition."""
        return [file for each in self.each() for file in self.decompositions_of(*each)]

    def baselines_of(self, model: str, layer_norm: str, suffix: str = ".json") -> list[str]:
        """The baseline files of one model and treatment."""
        files = []
        if set(self.config.baselines.kinds) & set(HAAR_KINDS):
            files.append(self.path(model, f"baselines/haar{suffix}"))
        for kind in self.config.baselines.kinds:
            if kind not in POOL_SUFFICES:
                files += self.layer_files(model, f"{layer_norm}/baselines/{kind}", suffix)
        return files

    def baselines(self, *_: Any) -> list[str]:
        """The records of every baseline."""
        return list(dict.fromkeys(file for each in self.each() for file in self.baselines_of(*each)))

    def tables(self, *_: Any) -> list[str]:
        """The tables of every model and treatment."""
        names = ("heads.csv", "vectors.parquet", "tables.json")
        return [self.path(*each, f"tables/{name}") for each in self.each() for name in names]

    # --- positions, composition, treatments, comparisons ------------------------------------------------------------

    def qk_matrices(self, model: str) -> list[str]:
        """The matrices that positions act on."""
        return [matrix for matrix in self.matrices(model) if matrix != "value"]

    def rotaries(self, *_: Any) -> list[str]:
        """The tables over distances."""
        if not self.config.rope_offsets:
            return []
        return [
            self.path(model, layer_norm, f"tables/rotary-{matrix}.csv")
            for model, layer_norm in self.each()
            for matrix in self.qk_matrices(model)
        ]

    def compositions(self, *_: Any) -> list[str]:
        """The tables of the strongest compositions."""
        if not self.config.composition:
            return []
        return [self.path(model, specs.COMPOSITION_TREATMENT, "tables/composition.csv") for model in self.models]

    def treatments(self, *_: Any) -> list[str]:
        """The treatments side by side, where there are several."""
        if len(self.config.layer_norm) < 2:
            return []
        return [self.path(model, "treatments/treatments.csv") for model in self.models]

    def comparison(self, name: str) -> Comparison:
        """A comparison by its name."""
        return next(comparison for comparison in self.config.comparisons if comparison.name == name)

    def compared(self, name: str) -> list[str]:
        """The models of a comparison; an entry with `revisions` stands for all of them."""
        chosen = self.comparison(name).models
        return [m for member in chosen for m in self.models if m == member or m.partition("@")[0] == member]

    def compared_matrices(self, name: str) -> list[str]:
        """The matrices that all models of a comparison have."""
        members = self.compared(name)
        return [m for m in self.matrices(members[0]) if all(m in self.matrices(member) for member in members)]

    def comparisons(self, *_: Any) -> list[str]:
        """The records of all comparisons."""
        return [
            f"{RESULTS}/comparison/{comparison.name}/{layer_norm}/comparison.json"
            for comparison in self.config.comparisons
            for layer_norm in self.config.layer_norm
        ]

    # --- figures --------------------------------------------------------------------------------------------------

    def figure_jobs_of(self, model: str) -> list[FigureJob]:
        """Every call of the figure step for one treatment of a model."""
        figures = self.config.figures
        numbers = self.models[model].layer_numbers
        drawn = numbers if figures.layers == "all" else list(figures.layers)
        found: list[FigureJob] = []
        for figure in self.figure_names():
            layers = numbers if FIGURES[figure].per == "head" else drawn
            found += jobs(
                figure,
                layers,
                self.matrices(model),
                figures.heads,
                figures.formats,
                last_layer=numbers[-1],
                all_layers=numbers,
                layers_per_job=LAYERS_PER_FIGURE_JOB,
            )
        return found

    def figure_names(self) -> list[str]:
        """The figures that this configuration draws."""
        return [name for name in FIGURES if name != "nulls" or self.config.baselines.kinds]

    def figure_files(self, *names: str) -> list[str]:
        """Every file of the named figures (all figures without a name), over every model and treatment.

        Their records are asked for too: a job whose outputs are others than last time, because the config draws other
        layers, has no record yet, and the engine does not compare the parameters of a job that it has no history of.
        """
        return [
            self.path(*each, output)
            for each in self.each()
            for job in self.figure_jobs_of(each[0])
            if not names or job.figure in names
            for output in (*job.outputs, job.record)
        ]


def code_files(step: str) -> list[str]:
    """The project files that go into a step's result, relative to the package."""
    folder = ASSETS.get(step)
    assets = sorted(f"{folder}/{file.name}" for file in Path(PACKAGE, folder).iterdir()) if folder else []
    return [*CODE[step], *assets]


def locked_versions(lock: str | Path) -> dict[str, str]:
    """Package name -> version, as pinned by a lock file (several versions for several Pythons are joined)."""
    pinned: dict[str, list[str]] = {}
    for line in Path(lock).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            pinned.setdefault(match.group(1).lower(), []).append(match.group(2))
    return {name: " ".join(versions) for name, versions in pinned.items()}


def shell_prefix(*, exact: bool, own_python: bool) -> str:
    """What precedes every step's shell command.

    The numbers may depend on the threads of the linear algebra and, in the last bits, on its kernel, so both are
    fixed here and not left to the environment; the locale, the hash seed and matplotlib's settings likewise.

    Args:
        exact: pin the kernel to one that every x86-64 machine of the last ten years has.
        own_python: put the Python that runs the workflow first; not wanted where the engine deploys environments.
    """
    exports = ["PYTHONPATH=workflow", "PYTHONHASHSEED=0", "PYTHONNOUSERSITE=1", "MPLBACKEND=Agg", "LC_ALL=C.UTF-8"]
    exports += [f"{name}_NUM_THREADS=1" for name in ("OMP", "OPENBLAS", "MKL")]
    if exact:
        exports.append("OPENBLAS_CORETYPE=Haswell")
    # a step's output goes to its log; its progress bar may still be drawn where a person watches
    bar = "if [ -t 2 ]; then export HEADMAPS_PROGRESS=tty; fi; "
    if own_python:
        exports.append(f"PATH={_quoted(os.path.dirname(sys.executable))}:$PATH")
    return "set -euo pipefail; export " + " ".join(exports) + "; " + bar


def _quoted(text: str) -> str:
    return shlex.quote(text).replace("{", "{{").replace("}", "}}")


def checked_plan(config: Config, lock: str | Path = LOCK) -> Plan:
    """`Plan.of` for the Snakefile: a mistake ends the program with its message and no traceback."""
    try:
        return Plan.of(config, lock)
    except ConfigError as error:
        raise SystemExit(str(error)) from None


def padded(layers: Sequence[int]) -> list[str]:
    """Layer numbers as they stand in file names: zero-padded to the width of the last, at least two digits."""
    width = max(2, len(str(max(layers))))
    return [f"{layer:0{width}d}" for layer in layers]
