"""The benchmark: its methods compute the same thing, and its table says what was run and what was not."""

import argparse
import json

import numpy as np
import pytest

from headmaps.benchmark import draws, kernel, whole
from headmaps.benchmark.clock import measure
from headmaps.commands import benchmark
from headmaps.decomposition import pair_quantities


def arguments(*given):
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize("name", [name for name in kernel.methods() if name not in {"the three products alone"}])
def test_every_method_gives_the_same_sigma_and_self(name):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((60, 5)), rng.standard_normal((5, 60))
    found = kernel.methods()[name](A, B)
    sigma, Z = (found.sigma, found.Z) if hasattr(found, "sigma") else found
    u, s, vh = np.linalg.svd(A @ B)
    tolerance = 1e-4 if "float32" in name else 1e-7
    np.testing.assert_allclose(sigma, s[:5], rtol=tolerance)
    for mine, theirs in zip(pair_quantities(Z)[1:], pair_quantities(vh[:5] @ u[:, :5])[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)


def test_the_floor_is_the_three_products():
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((30, 3)), rng.standard_normal((3, 30))
    for mine, theirs in zip(kernel.three_products(A, B), (A.T @ A, B @ B.T, B @ A), strict=True):
        np.testing.assert_allclose(mine, theirs)


def test_a_measurement_has_the_time_and_the_memory_of_one_call():
    timing = measure(lambda: np.zeros(1_000_000))
    assert 8_000_000 <= timing.peak < 9_000_000
    assert 0 < timing.seconds < 1


def test_the_table_estimates_what_would_take_too_long(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("headmaps.benchmark.clock.BUDGET", 0.0)
    monkeypatch.setattr(draws, "SHAPES", ((40, 4),))
    monkeypatch.setattr(draws, "DRAWS", 3)
    assert (
        benchmark.run(
            arguments(
                "--parts",
                "kernel",
                "draws",
                "--shapes",
                "20,2",
                "40,4",
                "--limit",
                "0",
                "--json",
                str(tmp_path / "b.json"),
            )
        )
        == 0
    )
    printed = capsys.readouterr().out
    dense = next(line for line in printed.splitlines() if line.startswith("| dense SVD"))
    assert dense.count("~") == 2  # the second shape's time and ratio; the first shape is always run
    assert "kernel" in printed
    assert "| Z alone | (40, 4) |" in printed
    numbers = json.loads((tmp_path / "b.json").read_text())
    assert {row["method"] for row in numbers["kernels"]} == set(kernel.methods())
    assert [row["run"] for row in numbers["kernels"] if row["method"] == "dense SVD"] == [True, False]


@pytest.mark.parametrize("text", ["2048", "a,b", "4,8", "8,0"])
def test_a_shape_that_is_none_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        arguments("--shapes", text)
    assert text in capsys.readouterr().err


def test_the_bare_process_gets_the_workflows_own_commands():
    printed = (
        "rule decompose:\n    input: x\n\n"
        "    Shell command: python -m headmaps.steps.decompose --spec '{\"a\": 1}' --layer 3 > logs/a.log 2>&1\n"
        "        python -m headmaps.steps.fetch_files --files results/m/files.json 2>&1 | tee logs/b.log\n"
    )
    assert whole.steps_of(printed) == [
        ("decompose", ["--spec", '{"a": 1}', "--layer", "3"]),
        ("fetch_files", ["--files", "results/m/files.json"]),
    ]


@pytest.mark.slow
def test_the_whole_workflow_is_measured_against_one_process(tmp_path, capsys):
    given = arguments("--parts", "workflow", "--model", "2,4,128", "--json", str(tmp_path / "b.json"))
    assert benchmark.run(given) == 0
    assert "| one bare process |" in capsys.readouterr().out
    costs = json.loads((tmp_path / "b.json").read_text())["workflow"]
    assert costs["the workflow again, nothing to do"]["cpu"] < costs["the workflow"]["cpu"]
    assert all(cost["peak"] > 20_000_000 for cost in costs.values())
