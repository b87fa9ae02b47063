"""Positions from checkpoint to table, for every family of rotary embeddings and for models that have none."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headmaps.geometry import read_geometry
from headmaps.heads import read_layer_heads
from headmaps.positions import factors_at
from support.project import ROOT, Project

pytestmark = pytest.mark.slow

OFFSETS = [0, 1, 7, 64]
FAMILIES = {
    "llama3-scaling": ("llama-implicit-width", "half pairs, base 100, scaling llama3"),
    "yarn": ("llama-yarn", "half pairs, base 100, scaling yarn"),
    "partial": ("gpt_neox", "in half pairs, base 10000, scaling none"),
    "interleaved": ("gptj", "in interleaved pairs, base 10000, scaling none"),
    "learned": ("gpt2", "positions are added to the embeddings: the matrix is left alone"),
    "alibi": ("bloom", "ALiBi adds a number that depends on head and distance alone"),
}


def project_with(folder: Path, names: dict[str, str], **entry: Any) -> Project:
    """A project whose models are checkpoints of the models' own code, two layers each."""
    project = Project.copy_to(folder / "project")
    for name, fixture in names.items():
        shutil.copytree(ROOT / "tests/oracle/fixtures" / fixture, project.folder / "checkpoints" / name)
    project.configure(
        {
            "models": [
                {"name": name, "layers": 2, "source": "local", "path": f"checkpoints/{name}", **entry} for name in names
            ],
            "layer_norm": ["raw"],
            "baselines": {"kinds": [], "draws": 8, "pool": 4096, "seed": 0},
            "figures": {"formats": ["png"], "layers": "all", "heads": "auto", "histogram": "weighted"},
            "rope_offsets": OFFSETS,
            "composition": False,
            "comparisons": [],
            "exact": False,
        }
    )
    return project


def table_of(name: str) -> str:
    return f"results/{name}/raw/tables/rotary-qk.csv"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = project_with(tmp_path_factory.mktemp("positions"), {name: made for name, (made, _) in FAMILIES.items()})
    project.run(*map(table_of, FAMILIES))
    return project.folder


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / table_of(name)).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_head_at_every_distance_is_that_of_the_models_own_matrix(name: str, families: Path) -> None:
    results = families / "results" / name
    geometry = read_geometry(results / "heads/geometry.json")
    rows = rows_of(families, name)
    assert len(rows) == 2 * geometry.n_heads * len(OFFSETS)
    for layer in (0, 1):
        heads = read_layer_heads(results / f"heads/layer-{layer:02d}", geometry)
        for offset in OFFSETS:
            here = [row for row in rows if (row["layer"], row["offset"]) == (str(layer), str(offset))]
            for row, (A, B) in zip(here, factors_at(heads, geometry, layer, offset), strict=True):
                W = A @ B
                assert float(row["frobenius_norm"]) == pytest.approx(np.linalg.norm(W), rel=1e-9)
                assert float(row["sigma_max"]) == pytest.approx(np.linalg.norm(W, 2), rel=1e-9)
                assert float(row["trace"]) == pytest.approx(np.trace(W), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("name", "interleaved"), [("partial", False), ("interleaved", True)])
def test_turning_is_multiplication_by_a_complex_number(name: str, interleaved: bool, families: Path) -> None:
    # each pair of a query's dimensions is one complex number, turned by D times the pair's frequency
    results = families / "results" / name
    W_Q, W_K = (np.load(results / f"heads/layer-01/{matrix}.npy").astype(float) for matrix in ("W_Q", "W_K"))
    turned = read_geometry(results / "heads/geometry.json").rotary_of(1).rotary_dim
    x = W_Q[:, :, :turned]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : turned // 2], x[..., turned // 2 :])
    angle = 7 * 10000.0 ** (-np.arange(0, turned, 2) / turned)
    z = (first + 1j * second) * np.exp(1j * angle)
    x = np.stack([z.real, z.imag], axis=-1).reshape(x.shape) if interleaved else np.concatenate([z.real, z.imag], -1)
    queries = np.concatenate([x, W_Q[:, :, turned:]], axis=2)
    rows = [row for row in rows_of(families, name) if (row["layer"], row["offset"]) == ("1", "7")]
    for row, Q, K in zip(rows, queries, W_K, strict=True):
        assert float(row["frobenius_norm"]) == pytest.approx(np.linalg.norm(Q @ K.T), rel=1e-6)
        assert float(row["trace"]) == pytest.approx(np.trace(Q @ K.T), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_distance_changes_and_what_it_cannot(name: str, families: Path) -> None:
    by_head: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows_of(families, name):
        by_head.setdefault((row["layer"], row["head"]), []).append(row)
    for rows in by_head.values():
        ortho = [float(row["ortho_root_mean_square"]) for row in rows]
        assert ortho == pytest.approx([ortho[0]] * len(rows), abs=1e-9)
        norms = [float(row["frobenius_norm"]) for row in rows]
        if name in ("learned", "alibi"):
            assert norms == [norms[0]] * len(rows)
        else:
            assert len(set(norms)) == len(rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_caption_says_which_positions_the_model_has(name: str, families: Path) -> None:
    record = json.loads((families / f"results/{name}/raw/figures/rotary-qk.json").read_text())
    caption = record["facts"]["caption"]
    assert FAMILIES[name][1].lower() in caption.lower()
    assert ("no distance changes anything" in caption) == (name in ("learned", "alibi"))


def test_a_scaling_that_needs_the_number_of_tokens_asks_for_it(tmp_path: Path) -> None:
    project = project_with(tmp_path, {"dynamic": "llama-dynamic"})
    failed = project.run(table_of("dynamic"), check=False)
    assert failed.status != 0
    for words in ("rotary scaling (dynamic)", "models: sequence_length", "sequence_length: 4096", "rope_offsets: []"):
        assert words in failed.text
    assert "Traceback" not in failed.text
    config = project.config()
    config["models"][0]["sequence_length"] = 512
    project.configure(config)
    project.run(table_of("dynamic"))
    assert len(rows_of(project.folder, "dynamic")) == 2 * 4 * len(OFFSETS)
