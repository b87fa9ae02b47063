"""Sampled hidden states (`states:`): what they redraw, and what is said where there are none."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.checkpoints import LLAMA
from support.project import Project

pytestmark = pytest.mark.slow

BANDS = Counter(draw_figure3_all=1, draw_figure5_all=1, make_atlas=1)


def sample_states(project: Project, layers: tuple[int, ...] = (0, 1, 2)) -> None:
    """Random states of some layers, named in the config."""
    folder = project.folder / "states"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for layer in layers:
        for side in ("input", "output"):
            np.save(folder / f"{side}-{layer:02d}.npy", rng.standard_normal((50, LLAMA["hidden_size"])))
    config = project.config()
    config["models"][0]["states"] = "states"
    project.configure(config)


def caption(project: Project, figure: str) -> str:
    record = json.loads((project.folder / f"results/tiny/raw/figures/{figure}/all.json").read_text())
    return str(record["facts"]["most-self.svg"]["caption"])


def without_provenance(jobs: "Counter[str]") -> "Counter[str]":
    return Counter({name: count for name, count in jobs.items() if name != "describe_run"})


def test_without_states_the_figures_say_so(finished: Project) -> None:
    for figure in ("figure3", "figure5"):
        assert "The band of hidden states is left out" in caption(finished, figure)


def test_states_redraw_the_figures_that_show_them_and_nothing_else(changed: Project) -> None:
    before = {figure: picture(changed, figure) for figure in ("figure3", "figure5")}
    sample_states(changed)
    assert without_provenance(changed.planned()) == BANDS
    changed.run()
    for figure, old in before.items():
        assert "Brown: 0.01 to 0.99 quantiles of the sampled hidden states" in caption(changed, figure)
        assert picture(changed, figure) != old
    assert changed.planned() == Counter()
    assert changed.headmaps("verify").status == 0


def picture(project: Project, figure: str) -> bytes:
    return (project.folder / f"results/tiny/raw/figures/{figure}/most-self.png").read_bytes()


def test_a_changed_state_redraws_and_verify_names_it(changed: Project) -> None:
    sample_states(changed)
    changed.run()
    path = changed.folder / "states/input-01.npy"
    np.save(path, np.load(path) + 1)
    assert without_provenance(changed.planned()) == BANDS
    assert "states/input-01.npy has changed since" in changed.headmaps("verify", check=False).text


def test_a_figure_over_layers_of_which_some_have_no_states_has_no_band(changed: Project) -> None:
    sample_states(changed, layers=(0, 2))
    assert without_provenance(changed.planned()) == Counter(make_atlas=1)  # which shows the model's entry


def test_chosen_heads_need_the_states_of_their_layer_only(changed: Project) -> None:
    sample_states(changed, layers=(2,))
    config = changed.config()
    config["figures"]["heads"] = [[0, 1], [2, 3]]
    changed.configure(config)
    changed.run("figure3", "figure5")
    folder = changed.folder / "results/tiny/raw/figures/figure3"
    without, given = (json.loads((folder / f"layer-{layer}.json").read_text())["facts"] for layer in ("00", "02"))
    assert "left out" in without["layer-00-head-01.svg"]["caption"]
    assert "Brown" in given["layer-02-head-03.svg"]["caption"]


@pytest.mark.parametrize(
    ("missing", "words"),
    [(("output-01.npy",), "there is no states/output-01.npy"), ((), "has none of its layers: nowhere")],
)
def test_a_folder_that_cannot_be_meant_is_refused_before_anything_runs(
    changed: Project, missing: tuple[str, ...], words: str
) -> None:
    sample_states(changed)
    for name in missing:
        (changed.folder / "states" / name).unlink()
    if not missing:
        config = changed.config()
        config["models"][0]["states"] = "nowhere"
        changed.configure(config)
    run = changed.run("--dry-run", check=False)
    assert run.status != 0
    assert words in run.text
    assert "Traceback" not in run.text


def test_states_of_another_width_fail_with_their_name(changed: Project) -> None:
    sample_states(changed)
    np.save(changed.folder / "states/input-00.npy", np.zeros((5, 7)))
    run = changed.run("figure3", check=False)
    log = Path(changed.folder, "logs/figures/tiny/raw/figure3/all.log").read_text()
    assert run.status != 0
    assert "states/input-00.npy" in log
    assert "(samples, 48)" in log
    assert "Traceback" not in log
