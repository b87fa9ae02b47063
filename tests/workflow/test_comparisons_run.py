"""Comparisons through the workflow, with planted answers: training on a Hub, a fine-tuned copy, a wider model.

The family `grown` has two layers of four heads. Its value head 1.2 begins to copy between steps 1000 and 4000, all else
stays random and the same; `tuned` is its last revision with the writing of head 0.3 replaced.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hub.server import LocalHub
from support.checkpoints import LLAMA, llama_tensors, write_llama, write_safetensors
from support.project import Project

pytestmark = pytest.mark.slow

CONFIG = LLAMA | {"num_hidden_layers": 2}
R, COPYING = CONFIG["head_dim"], {"step0": 0.0, "step1000": 0.0, "step4000": 0.9, "step16000": 1.0}
"""How much of what head 1.2 writes is what it reads, by revision."""

COMPARISONS = [
    {"name": "growth", "models": ["grown"], "kind": "training"},
    {"name": "tuning", "models": ["grown@step16000", "tuned"], "kind": "pair"},
    {"name": "widths", "models": ["grown@step16000", "wide"], "kind": "models"},
]


def grown(copying: float) -> dict[str, NDArray[np.float32]]:
    """The family's tensors: W_O of head 1.2 is a mixture of its random start and the transpose of its W_V."""
    tensors = llama_tensors(CONFIG, seed=1)
    W_O = tensors["model.layers.1.self_attn.o_proj.weight"]
    W_V = tensors["model.layers.1.self_attn.v_proj.weight"]
    columns, rows = slice(2 * R, 3 * R), slice(R, 2 * R)  # of query head 2, and of its key/value head 1
    W_O[:, columns] = (1 - copying) * W_O[:, columns] + copying * W_V[rows].T
    return tensors


def write(folder: Path, tensors: Mapping[str, NDArray[np.float32]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparisons")
    project = Project.copy_to(folder / "project")
    tuned = grown(1.0)
    W_O = tuned["model.layers.0.self_attn.o_proj.weight"]
    W_O[:, 3 * R :] = np.random.default_rng(5).normal(0, 0.1, (len(W_O), R))
    write(project.folder / "checkpoints/tuned", tuned)
    write_llama(project.folder / "checkpoints/wide", seed=2, hidden_size=96, num_hidden_layers=2)
    project.configure(
        {
            "models": [
                {"name": "grown", "layers": 2, "source": "hub", "repo": "someone/grown", "revisions": list(COPYING)},
                {"name": "tuned", "layers": 2, "source": "local", "path": "checkpoints/tuned"},
                {"name": "wide", "layers": 2, "source": "local", "path": "checkpoints/wide"},
            ],
            "layer_norm": ["raw"],
            "baselines": {"kinds": ["gaussian"], "draws": 8, "pool": 4096, "seed": 0},
            "figures": {"formats": ["png"], "layers": "all", "heads": "auto", "histogram": "weighted"},
            "rope_offsets": [],
            "composition": False,
            "comparisons": COMPARISONS,
            "exact": False,
        }
    )
    with LocalHub() as hub:
        for revision, copying in COPYING.items():
            made = write(folder / "hub" / revision, grown(copying))
            hub.repository("someone/grown").add_folder(made, revision)
        project.run("comparisons", HF_ENDPOINT=hub.endpoint, HF_HUB_CACHE=str(folder / "cache"))
    return project.folder / "results"


def rows_of(results: Path, comparison: str, table: str) -> list[dict[str, str]]:
    with (results / f"comparison/{comparison}/raw/{table}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def head_of(row: Mapping[str, str]) -> tuple[str, int, int]:
    return row["matrix"], int(row["layer"]), int(row["head"])


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_head_that_begins_to_copy_is_found_with_its_step(results: Path) -> None:
    onsets = rows_of(results, "growth", "onsets")
    assert len(onsets) == 2 * 2 * 4
    rise = {head_of(row): float(row["last"]) - float(row["first"]) for row in onsets}
    found = next(row for row in onsets if head_of(row) == ("value", 1, 2))
    assert max(rise, key=lambda head: rise[head]) == ("value", 1, 2)
    assert float(found["last"]) == pytest.approx(1.0, abs=1e-6)
    assert float(found["half_step"]) == 4000
    assert all(change == 0 for head, change in rise.items() if head != ("value", 1, 2))
    dated = {head_of(row) for row in onsets if row["half_step"]}
    beyond = {head_of(row) for row in onsets if abs(float(row["z"])) > 2}
    assert dated == beyond, "what ends at chance has no beginning"
    facts = json.loads((results / "comparison/growth/raw/comparison.json").read_text())["facts"]
    assert "half of these were half-way there, for good, by step 4000" in facts["value"]["caption"]


def test_trajectories_follow_the_training_steps_and_begin_at_the_random_line(results: Path) -> None:
    rows = [row for row in rows_of(results, "growth", "trajectories") if head_of(row) == ("value", 1, 2)]
    assert [int(row["step"]) for row in rows] == [0, 1000, 4000, 16000]
    own, chance = ([float(row[name]) for row in rows] for name in ("self_mean", "self_mean_gaussian_mean"))
    assert chance == [chance[0]] * 4
    assert abs(float(rows[0]["self_mean_gaussian_z"])) < 3 < float(rows[-1]["self_mean_gaussian_z"])
    assert own[0] == own[1] < own[2] < own[3]


def test_layer_means_rise_in_the_layer_of_that_head_alone(results: Path) -> None:
    means: dict[tuple[str, str], list[float]] = {}
    for row in rows_of(results, "growth", "layers"):
        means.setdefault((row["matrix"], row["layer"]), []).append(float(row["self_mean"]))
    rise = {key: values[-1] - values[0] for key, values in means.items()}
    assert rise["value", "1"] > 0.15
    assert {value for key, value in rise.items() if key != ("value", "1")} == {0.0}


# --- a base and a fine-tuned model ------------------------------------------------------------------------------------


def test_the_one_head_that_fine_tuning_changed_leads_the_table(results: Path) -> None:
    first = rows_of(results, "tuning", "most-changed")[0]
    assert head_of(first) == ("value", 0, 3)
    assert float(first["weight_change"]) > 1
    for row in rows_of(results, "tuning", "changes"):
        changed = head_of(row) == ("value", 0, 3)
        assert (float(row["weight_change"]) > 1e-12) == changed
        assert float(row["input_angle_max"]) == pytest.approx(0, abs=1e-5), "W_V is what it was"
        assert (float(row["output_angle_mean"]) > 45) == changed


# --- models of different width ----------------------------------------------------------------------------------------


def test_models_of_different_width_stand_each_against_its_own_chance(results: Path) -> None:
    rows = {(row["model"], row["matrix"]): row for row in rows_of(results, "widths", "models")}
    chance = {key: float(row["self_mean_gaussian_mean"]) for key, row in rows.items()}
    # self by chance falls as 1 / sqrt(d)
    ratio = chance["grown@step16000", "qk"] / chance["wide", "qk"]
    assert ratio == pytest.approx((96 / 48) ** 0.5, rel=0.02)
    z = {key: float(row["self_mean_gaussian_z"]) for key, row in rows.items()}
    assert z["grown@step16000", "value"] > 2
    assert all(abs(value) < 2 for key, value in z.items() if key != ("grown@step16000", "value"))


def test_every_comparison_is_drawn_and_says_what_it_compares(results: Path) -> None:
    for comparison in COMPARISONS:
        place = results / f"comparison/{comparison['name']}/raw"
        facts: dict[str, Any] = json.loads((place / "comparison.json").read_text())["facts"]
        for matrix in ("value", "qk"):
            assert (place / f"{matrix}.png").stat().st_size > 10_000
            assert "attended token" in facts[matrix]["caption"]
