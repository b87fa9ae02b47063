"""Which files each figure consists of: what the workflow declares and what the step writes come from one table."""

import subprocess
import sys
from pathlib import Path

import pytest

from headmaps.errors import ConfigError
from headmaps.figures.names import FIGURES, jobs, matrices_of, outputs

PROJECT = Path(__file__).resolve().parents[2]
PLAIN = ["value", "qk"]
LATENT = ["value", "qk_nope", "qk_rope"]


@pytest.mark.parametrize(
    ("figure", "heads", "expected"),
    [
        ("figure1", "auto", ["figures/figure1/layer-13.svg"]),
        ("figure2", "auto", ["figures/figure2.svg", "figures/figure2-qk.svg"]),
        (
            "figure3",
            "auto",
            [f"figures/figure3/{role}.svg" for role in ("most-self", "median-self", "least-self")],
        ),
        ("figure4", "auto", ["figures/figure4/layer-13.svg"]),
        ("figure5", [[13, 7], [2, 101]], [f"figures/figure5/layer-{x}.svg" for x in ("13-head-07", "02-head-101")]),
        ("figure5", "all", ["figures/figure5/layer-13.pdf"]),
        ("heatmaps", "auto", ["figures/heatmaps-value.svg", "figures/heatmaps-qk.svg"]),
        ("profiles", "auto", ["figures/profiles-value.svg", "figures/profiles-qk.svg"]),
        ("nulls", "auto", ["figures/nulls-value.svg", "figures/nulls-qk.svg"]),
    ],
)
def test_files_of_each_figure(figure, heads, expected):
    assert outputs(figure, [13], PLAIN, heads, ["svg"], last_layer=23) == expected


def test_both_parts_of_a_latent_qk_matrix_have_files_of_their_own():
    assert outputs("figure4", [3], LATENT, "auto", ["svg", "png"], last_layer=60) == [
        "figures/figure4/layer-03-qk_nope.svg",
        "figures/figure4/layer-03-qk_nope.png",
        "figures/figure4/layer-03-qk_rope.svg",
        "figures/figure4/layer-03-qk_rope.png",
    ]
    assert outputs("figure1", [3], LATENT, "auto", ["svg"], last_layer=60) == ["figures/figure1/layer-03.svg"]


def test_layer_numbers_are_as_wide_as_the_last_one():
    assert outputs("figure1", [7], PLAIN, "auto", ["svg"], last_layer=125) == ["figures/figure1/layer-007.svg"]


@pytest.mark.parametrize("heads", ["auto", "all", [[13, 7], [2, 3], [13, 7], [13, 1]]])
@pytest.mark.parametrize("matrices", [PLAIN, LATENT, ["value"]])
@pytest.mark.parametrize("layers_per_job", [1, 4, 100])
def test_the_jobs_of_a_figure_share_out_its_files_and_read_what_they_draw(heads, matrices, layers_per_job):
    layers = list(range(24))
    for figure in FIGURES:
        found = list(jobs(figure, layers, matrices, heads, ["svg", "png"], 23, layers, layers_per_job))
        files = [file for job in found for file in job.outputs]
        assert sorted(files) == sorted(outputs(figure, layers, matrices, heads, ["svg", "png"], 23))
        assert len({*files}) == len(files)
        assert len({job.record for job in found}) == len(found)
        for job in found:
            assert job.matrices == matrices_of(figure, matrices)
            assert list(job.outputs) == outputs(figure, job.layers, job.matrices, job.heads, ["svg", "png"], 23)


def test_a_heads_figure_reads_only_the_layers_of_its_heads():
    found = list(jobs("figure3", range(24), PLAIN, [[13, 7], [2, 3], [13, 1]], ["svg"], 23, range(24)))
    assert [(job.key, job.layers, job.heads) for job in found] == [
        ("layer-02", (2,), [(2, 3)]),
        ("layer-13", (13,), [(13, 7), (13, 1)]),
    ]


def test_a_model_without_a_qk_matrix_has_no_job_for_figures_4_and_5():
    assert list(jobs("figure4", [0], ["value"], "auto", ["svg"], 0, [0])) == []


def test_figures_of_different_names_never_share_a_file():
    files = [file for figure in FIGURES for file in outputs(figure, [0, 1], PLAIN, "auto", ["svg", "png"], 1)]
    assert len({*files}) == len(files)


def test_an_unknown_figure_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="figure9") as error:
        outputs("figure9", [0], PLAIN, "auto", ["svg"], 0)
    assert "figure1, figure2" in str(error.value)


def test_planning_does_not_load_numpy_or_matplotlib():
    code = "import sys, headmaps.figures.names; sys.exit(bool({'numpy', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(PROJECT / "workflow")}, check=True)
