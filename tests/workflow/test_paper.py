"""`config/paper.yaml` from the Hub to the verdict, on random weights of exactly the form of tiiuae/falcon-rw-1b.

The published numbers of these weights are made independently (support/published_numbers.py), with the gains folded in.
So the right verdict is known: `gain` reproduces them and `raw` does not.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.builders import FALCON_COMMIT, make_falcon_rw_repo
from hub.server import LocalHub
from support.project import ROOT, Project, Run
from support.published_numbers import Falcon, write_published

pytestmark = pytest.mark.slow

FIGURES = ("figure1", "figure2", "figure3", "figure4", "figure5")
TARGETS = ("published", *FIGURES, "--configfile", "paper-like.yaml")


class Paper:
    """The project, the Hub that serves the checkpoint, and the one run of everything."""

    def __init__(self, folder: Path) -> None:
        self.project = Project.copy_to(folder / "project")
        repo = make_falcon_rw_repo(folder / "hub/tiiuae/falcon-rw-1b")
        self.size = (repo / "pytorch_model.bin").stat().st_size
        write_published(self.project.folder / "workflow/reference/synthetic", Falcon(repo))
        self.hub = LocalHub()
        assert self.hub.repository("tiiuae/falcon-rw-1b").add_folder(repo) == FALCON_COMMIT
        self.home = folder / "home"
        self.finished = Run(-1, "", "")

    def configure(self, **changes: Any) -> None:
        """paper.yaml with two of its treatments, one layer's figures, and other published numbers."""
        config = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
        config["models"][0] |= changes
        config["layer_norm"] = ["raw", "gain"]
        config["figures"]["layers"] = [13]
        (self.project.folder / "paper-like.yaml").write_text(yaml.safe_dump(config))

    def run(self, *targets: str, check: bool = True) -> Run:
        environment = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home)}
        return self.project.run(*targets, check=check, timeout=900, **environment)

    def read(self, name: str) -> Any:
        return json.loads((self.project.folder / "results/falcon-rw-1b" / name).read_text())


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paper]:
    made = Paper(tmp_path_factory.mktemp("paper"))
    made.configure(published="synthetic")
    with made.hub:
        made.finished = made.run(*TARGETS)
        yield made


def test_the_treatment_that_made_the_published_numbers_is_found(paper: Paper) -> None:
    assert paper.finished.status == 0
    assert "reproduced by gain; the largest difference is" in paper.finished.text
    verdict = paper.read("published/verdict.json")["facts"]
    assert verdict["reproduced_by"] == "gain"
    assert verdict["treatments"]["gain"]["largest"] < 2e-6
    raw = verdict["treatments"]["raw"]["quantities"]
    assert {name for name, found in raw.items() if not found["reproduced"]} >= {"value self", "value sigma", "qk sigma"}


def test_the_bias_vectors_are_found(paper: Paper) -> None:
    lines = paper.read("published/verdict.json")["facts"]["treatments"]["gain"]["bias_lines"]
    assert {place: line["matches"] for place, line in lines.items()} == {
        "value input": "b_O",
        "value output": "b_O + b_V_W_O",
        "qk input": "b_K_W_Q",
        "qk output": "b_Q_W_K",
    }


def test_the_table_and_the_scatter_are_there(paper: Paper) -> None:
    folder = paper.project.folder / "results/falcon-rw-1b/published"
    lines = (folder / "published.csv").read_text().splitlines()
    assert lines[0] == "treatment,quantity,matrix,layer,head,index,published,ours,difference"
    per_treatment = 3 * 768 + 2 + 2 * 4 * 64 + 64 + 2 * 64 + 32 * 101
    assert len(lines) == 1 + 2 * per_treatment
    assert (folder / "scatter.svg").stat().st_size > 10_000
    assert (folder / "scatter.png").read_bytes().startswith(b"\x89PNG")


def test_all_five_figures_are_drawn_for_the_article_s_layer_and_head(paper: Paper) -> None:
    for treatment in ("raw", "gain"):
        folder = paper.project.folder / f"results/falcon-rw-1b/{treatment}/figures"
        for name in ("figure1/layer-13", "figure2", "figure3/layer-13-head-07", "figure4/layer-13"):
            assert (folder / f"{name}.svg").is_file(), name
        assert (folder / "figure5/layer-13-head-07.png").is_file()


def test_only_what_attention_needs_was_fetched(paper: Paper) -> None:
    """The MLP here is tiny, so that most of the file is attention; nothing is fetched twice."""
    assert paper.hub.sent("pytorch_model.bin") <= 1.01 * paper.size
    source = paper.read("checkpoint/source.json")
    assert source["commit"] == FALCON_COMMIT
    assert not any("mlp" in name for tensors in source["layers"].values() for name in tensors)


def test_the_article_s_own_numbers_are_not_those_of_random_weights(paper: Paper) -> None:
    paper.configure(published="falcon-rw-1b")
    run = paper.run("published", "--configfile", "paper-like.yaml", check=False)
    assert run.status != 0
    assert "falcon-rw-1b: not reproduced under any of raw, gain" in run.text
    assert paper.read("published/verdict.json")["facts"]["reproduced_by"] is None
    assert run.jobs()["compare_published"] == 1
    assert "decompose" not in run.jobs()


def test_one_published_number_altered_in_the_fourth_decimal_fails(paper: Paper) -> None:
    paper.configure(published="synthetic")
    path = paper.project.folder / "workflow/reference/synthetic/value_makeup.csv"
    rows = path.read_text().splitlines()
    layer, head, own, *rest = rows[400].split(",")
    rows[400] = ",".join([layer, head, f"{float(own) + 1e-4:.6f}", *rest])
    path.write_text("\n".join(rows) + "\n")
    run = paper.run("published", "--configfile", "paper-like.yaml", check=False)
    assert run.status != 0
    assert "synthetic: not reproduced under any of raw, gain" in run.text
    quantities = paper.read("published/verdict.json")["facts"]["treatments"]["gain"]["quantities"]
    assert [name for name, found in quantities.items() if not found["reproduced"]] == ["value self"]
    assert quantities["value self"]["at"] == {"layer": int(layer), "head": int(head), "index": -1}
