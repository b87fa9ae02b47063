"""`snakemake` with models on the Hub: what is fetched, how often, and what never is; run as a user runs it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hub.builders import bfloat16_normals, make_falcon_rw_repo, make_llama_repo
from hub.conftest import Online
from hub.server import LocalHub
from hub.test_entry import write_gguf
from hub.torch_zip import Stored, write_torch_zip


def hub_model(name: str, repo: str, revision: str = "main", layers: int = 2, **more: Any) -> dict[str, Any]:
    """An entry of the configuration."""
    return {"name": name, "layers": layers, "source": "hub", "repo": repo, "revision": revision, **more}


def local_model(name: str, path: Path, layers: int = 2) -> dict[str, Any]:
    """The same checkpoint from its folder, without any network."""
    return {"name": name, "layers": layers, "source": "local", "path": str(path)}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_tensors_are_fetched_by_range_and_then_nothing_touches_the_network(
    hub: LocalHub, online: Online, tmp_path: Path
) -> None:
    """The first run fetches; the server is switched off; the rest of the workflow runs all the same."""
    commit = hub.repository("some/llama").add_folder(make_llama_repo(tmp_path / "llama", d_model=128, d_head=32))
    online.configure(hub_model("llama", "some/llama"))
    online.run()
    source = read_json(online.checkpoint("llama") / "source.json")
    assert source["commit"] == commit
    said = "".join(path.read_text() for path in (online.folder / "logs").rglob("*.log"))
    assert len(re.findall(rf"some/llama@{commit}: \S+ [kMG]?B received in \d+ requests", said)) == 3
    attention = sum(entry["nbytes"] for tensors in source["layers"].values() for entry in tensors.values())
    headers = sum(request.sent for request in hub.log if request.headers.get("Range", "").startswith("bytes=0-"))
    assert attention <= hub.sent("safetensors") <= 1.02 * attention + headers + 2_000
    hub.stop()
    dead = {"HF_ENDPOINT": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1"}
    online.run("tables", **dead)
    assert (online.folder / "results/llama/raw/tables/heads.csv").is_file()


def make_sharded_bin(folder: Path) -> Path:
    """A Llama in two pickled shards and their index."""
    made = make_llama_repo(folder)
    shapes = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in {
            "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64), "input_layernorm": (64,),
        }.items()
    }  # fmt: skip
    files: dict[str, str] = {}
    for number in (1, 2):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        mine = {name: shape for name, shape in shapes.items() if f"layers.{number - 1}." in name}
        stored = {
            name: Stored(
                "BF16", shape, lambda name=name, shape=shape: iter([bfloat16_normals([len(name)], shape, 0.1)])
            )
            for name, shape in mine.items()
        }
        write_torch_zip(made / file, stored)
        files |= dict.fromkeys(mine, file)
    (made / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    (made / "model.safetensors").unlink()
    return made


@pytest.mark.slow
def test_every_form_of_checkpoint_gives_the_layers_that_its_folder_gives(
    hub: LocalHub, online: Online, tmp_path: Path
) -> None:
    quantised = write_gguf(tmp_path / "gguf" / "q" / "model-Q8_0.gguf").parent.parent
    write_gguf(quantised / "other.gguf")
    write_gguf(quantised / "third.gguf")
    forms = {
        "safetensors": make_llama_repo(tmp_path / "safetensors", shards=2),
        "bin": make_falcon_rw_repo(tmp_path / "bin", layers=2, heads=4, d_model=128),
        "bin-sharded": make_sharded_bin(tmp_path / "bin-sharded"),
        "gguf": quantised,
    }
    models = []
    for form, folder in forms.items():
        hub.repository(f"some/{form}").add_folder(folder)
        file = {"file": "q/model-Q8_0.gguf"} if form == "gguf" else {}
        models.append(local_model(f"{form}-local", folder / file["file"] if file else folder))
        models.append(hub_model(f"{form}-range", f"some/{form}", **file))
        models.append(hub_model(f"{form}-full", f"some/{form}", fetch="full", **file))
    online.configure(*models)
    online.run()
    for form in forms:
        expected = online.layers(f"{form}-local")
        assert len(expected) == 2
        for way in ("range", "full"):
            assert online.layers(f"{form}-{way}") == expected, f"{form}, {way}"
    files = read_json(online.checkpoint("gguf-full") / "files.json")["files"]
    assert list(files) == ["q/model-Q8_0.gguf"]
    assert (online.checkpoint("bin-sharded-full") / "files/pytorch_model-00002-of-00002.bin").is_file()


@pytest.mark.slow
def test_revisions_are_models_of_their_own(hub: LocalHub, online: Online, tmp_path: Path) -> None:
    """Branches, a branch with a slash, and a pull request; each is resolved once and stays what it was."""
    repository, commits = hub.repository("some/pythia"), {}
    for seed, revision in enumerate(["step1000", "stage1/step5", "refs/pr/3", "main"]):
        commits[revision] = repository.add_folder(make_llama_repo(tmp_path / str(seed), seed=seed), revision)
    entry = {"name": "pythia", "layers": 2, "source": "hub", "repo": "some/pythia"}
    online.configure(
        entry | {"revisions": ["step1000", "stage1/step5"]}, hub_model("converted", "some/pythia", "refs/pr/3")
    )
    online.run()
    names = {"pythia@step1000": "step1000", "pythia@stage1%2Fstep5": "stage1/step5", "converted": "refs/pr/3"}
    assert {path.name for path in (online.folder / "results").iterdir() if path.is_dir()} == set(names)
    for name, revision in names.items():
        assert read_json(online.checkpoint(name) / "source.json")["commit"] == commits[revision]
    assert len({json.dumps([len(data) for data in online.layers(name).values()]) for name in names}) == 1
    assert len({tuple(online.layers(name).values()) for name in names}) == 3

    repository.refs["step1000"] = commits["main"]  # the branch moves
    before = len(hub.log)
    assert not online.run("checkpoints").jobs()
    online.run("checkpoints", "--forcerun", "resolve")
    assert read_json(online.checkpoint("pythia@step1000") / "source.json")["commit"] == commits["step1000"]
    assert all("/revision/" not in request.path for request in hub.log[before:])


@pytest.mark.slow
def test_no_edit_fetches_anything_again(hub: LocalHub, online: Online, tmp_path: Path) -> None:
    """Code, lock and every key that does not change what is fetched; and a record that is lost costs no bytes."""
    hub.repository("some/llama").add_folder(make_llama_repo(tmp_path / "llama"))
    online.configure(hub_model("range", "some/llama"), hub_model("full", "some/llama", fetch="full"))
    online.run()
    requests = len(hub.log)
    for file in [
        *(online.folder / "workflow/headmaps/checkpoint").glob("*.py"),
        *online.folder.glob("workflow/**/*.smk"),
    ]:
        file.write_text(file.read_text() + "\n# edited\n")
    for name in ("fetch_files", "fetch_layer", "resolve"):
        step = online.folder / f"workflow/headmaps/steps/{name}.py"
        step.write_text(step.read_text() + "\n# edited\n")
    lock = online.folder / "envs/requirements.lock"
    lock.write_text(re.sub(r"==(\d+)", lambda match: f"=={int(match[1]) + 1}", lock.read_text()))
    models = online.project.config()["models"]
    online.configure(*models, layer_norm=["raw", "gain"], composition=True, rope_offsets=[0, 1])
    assert not online.run("checkpoints").jobs()
    for record in [*online.checkpoint("range").glob("layer-*"), *online.checkpoint("full").glob("*.*")]:
        record.unlink()
    assert set(online.run("checkpoints").jobs()) == {"fetch_files", "resolve", "fetch_layer"}
    bodies = [request for request in hub.log[requests:] if not request.path.startswith("/api/")]
    assert [request for request in bodies if request.method == "GET" and request.sent] == []


@pytest.mark.slow
def test_a_few_downloads_at_a_time_whatever_the_cores(hub: LocalHub, online: Online, tmp_path: Path) -> None:
    repository = hub.repository("some/llama")
    repository.add_folder(make_llama_repo(tmp_path / "llama", layers=8))
    hub.fault("slow", path="*.safetensors", host="cdn", times=-1, after=700)
    online.configure(hub_model("llama", "some/llama", layers=8))
    online.run("checkpoints", "--cores", "8")
    assert hub.most_at_once == 3
    hub.most_at_once = 0
    online.configure(hub_model("other", "some/llama", layers=8))
    online.run("checkpoints", "--cores", "8", "--resources", "download=1")
    assert hub.most_at_once == 1


@pytest.mark.slow
def test_a_gated_model_with_a_token_that_is_written_nowhere(hub: LocalHub, online: Online, tmp_path: Path) -> None:
    hub.repository("some/gated").add_folder(make_llama_repo(tmp_path / "llama"))
    hub.repository("some/gated").gated = True
    secret = "hf_thisisthesecrettoken"
    hub.tokens[secret] = {"some/gated"}
    online.configure(hub_model("range", "some/gated"), hub_model("full", "some/gated", fetch="full"))
    run = online.run("checkpoints", "--verbose", "--printshellcmds", HF_TOKEN=secret)
    assert len(online.layers("range")) == len(online.layers("full")) == 2
    assert secret not in run.text
    for path in online.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    assert {request.host for request in hub.log if secret in str(request.headers)} == {"hub"}
