"""A checkpoint in a notebook: the examples of the documentation run, and its heads are the workflow's."""

import re
from pathlib import Path

import numpy as np
import pytest

import headmaps
from headmaps.errors import ArchitectureError, CheckpointError, ConfigError
from headmaps.geometry import read_geometry
from headmaps.layer_factors import LayerFactors
from headmaps.steps import fetch_layer, geometry, heads, resolve
from hub.server import LocalHub
from support.checkpoints import llama_tensors, write_llama
from support.small_model import call

DOCS = Path(__file__).parents[2] / "docs"


def examples():
    return re.findall(r"(?s)```python\n(.*?)```", (DOCS / "python.md").read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_llama(tmp_path / "my-checkpoint", seed=3)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my-checkpoint"


def test_the_example_of_the_documentation_runs_in_ten_lines(folder, capsys):
    example = examples()[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    names = {}
    exec(example, names)
    A, B, head = names["A"], names["B"], names["head"]
    np.testing.assert_allclose((names["U"] * head.sigma) @ names["Vh"], A @ B, atol=1e-12)
    printed = capsys.readouterr().out
    assert "3 layers, 4 heads" in printed
    assert f"self: {np.abs(np.diag(head.Z)).mean():.3f}, by chance 0.116" in printed  # G(24) / (sqrt(pi) G(24.5))


def test_the_example_of_the_table_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    rows = ["0,0,value,0.2,3.5", "0,1,qk,0.9,9", "0,1,value,0.1,2"]
    table = tmp_path / "results/my-model/raw/tables/heads.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(["layer,head,matrix,self_mean,self_mean_gaussian_ratio", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    exec(examples()[1], {})
    printed = capsys.readouterr().out
    assert "0.9" not in printed
    assert printed.index("0.1 ") < printed.index("0.2 "), "the strongest head comes last"


def test_heads_are_those_of_the_workflows_steps(folder, tmp_path):
    spec = {"source": "local", "path": str(folder), "layers": 3}
    source, shape = tmp_path / "checkpoint/source.json", tmp_path / "heads/geometry.json"
    layer, directory = tmp_path / "checkpoint/layer-01.safetensors", tmp_path / "heads/layer-01"
    call(resolve, spec, source=source)
    call(geometry, {}, source=source, output=shape)
    call(fetch_layer, spec, source=source, layer=1, output=layer, record=layer.with_suffix(".json"))
    call(
        heads, {}, geometry=shape, source=source, checkpoint=layer, layer=1, directory=directory,
        record=directory.with_suffix(".json"),
    )  # fmt: skip
    model = headmaps.open_checkpoint(folder)
    assert model.geometry == read_geometry(shape)
    expected = headmaps.read_layer_heads(directory, model.geometry)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        np.testing.assert_array_equal(getattr(model.heads(1), name), getattr(expected, name))
    np.testing.assert_array_equal(model.heads(1).extras["norm_weight"], expected.extras["norm_weight"])
    for matrix in ("value", "qk"):
        for number, (A, B, _) in enumerate(LayerFactors(expected, model.geometry, matrix, "gain")):
            found = model.factors(1, number, matrix, "gain")
            np.testing.assert_array_equal(found[0], A)
            np.testing.assert_array_equal(found[1], B)


def test_only_the_layer_asked_for_is_read(folder, monkeypatch):
    model = headmaps.open_checkpoint(folder, layers=[0, 2])
    read = []
    original = type(model.store).read_ranges
    monkeypatch.setattr(type(model.store), "read_ranges", lambda self, *a: read.append(a) or original(self, *a))
    model.factors(2, 0)
    model.factors(2, 3, "qk")
    q_proj = np.ascontiguousarray(llama_tensors(seed=3)["model.layers.2.self_attn.q_proj.weight"])
    np.testing.assert_array_equal(model.heads(2).W_Q[0], q_proj[:8].T)
    assert [name for name, _ in read].count("model.safetensors") == 1, "the tensors of one layer, once"


def test_a_repository_of_the_hub_is_read_by_range(folder, tmp_path, monkeypatch):
    with LocalHub() as hub:
        commit = hub.repository("someone/model").add({path.name: path.read_bytes() for path in folder.iterdir()})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        there = headmaps.open_checkpoint("hub:someone/model")
        here = headmaps.open_checkpoint(folder)
        np.testing.assert_array_equal(there.factors(1, 2, "qk")[0], here.factors(1, 2, "qk")[0])
        assert there.source["commit"] == commit
        assert hub.sent(".safetensors") < folder.joinpath("model.safetensors").stat().st_size / 2


@pytest.mark.parametrize(
    ("error", "words", "asked"),
    [
        (CheckpointError, "without a layer 7", {"layer": 7, "head": 0}),
        (CheckpointError, "no head -1", {"layer": 0, "head": -1}),
        (ArchitectureError, "qk_rope", {"layer": 0, "head": 0, "matrix": "qk_rope"}),
        (ConfigError, "centred", {"layer": 0, "head": 0, "layer_norm": "centred"}),
    ],
)
def test_what_is_not_there_is_refused_by_name(folder, error, words, asked):
    with pytest.raises(error, match=words):
        headmaps.open_checkpoint(folder).factors(**asked)
