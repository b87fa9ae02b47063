"""The workflow on a real SLURM cluster with accounting, through profiles/slurm, and all that can go wrong there."""

import os
import re
import shutil
import signal
from collections.abc import Callable

import numpy as np
import pytest

from slurm.cluster import ACCOUNT, CPUS, Cluster
from slurm.conftest import Submission
from support.checkpoints import LLAMA, llama_tensors, write_safetensors
from support.project import Project

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

LAYERS = 24
ONE_LAYER = {"baselines": {"kinds": [], "draws": 8, "pool": 4096, "seed": 0}}

Make = Callable[..., Project]
Submit = Callable[..., Submission]


@pytest.fixture(autouse=True)
def _own_jobs(accounting: Cluster) -> None:
    """Each test finds the queue empty and the node willing."""
    accounting.clear()


def local_results(project: Project, *targets: str) -> dict[str, bytes]:
    """What the same project gives without a cluster."""
    twin = project.duplicate(project.folder.parent / "local")
    for folder in ("results", ".snakemake", "logs"):
        shutil.rmtree(twin.folder / folder)
    twin.run(*targets)
    return twin.results()


def results_of(project: Project) -> dict[str, bytes]:
    """The results; a killed step may leave a hidden file, which nothing takes for one."""
    return {name: data for name, data in project.results().items() if not name.endswith(".part")}


def submitted(run_text: str) -> list[int]:
    """The SLURM ids of the jobs that a run submitted."""
    return [int(number) for number in re.findall(r"submitted with SLURM jobid (\d+)", run_text)]


def test_everything_comes_out_the_same_in_few_jobs(accounting: Cluster, project: Make, submit: Submit) -> None:
    """24 layers are at most 6 SLURM jobs, ask for what they use, and give the bytes of a run without a cluster."""
    made = project(LAYERS, baselines={"kinds": ["gaussian"], "draws": 8, "pool": 4096, "seed": 0})
    run = submit(made).finish()
    jobs = submitted(run.text)
    assert 1 <= len(jobs) <= 6
    assert made.results() == local_results(made)
    for job in jobs:
        peak, asked, cpus = accounting.memory(job)
        assert peak <= asked <= 2 * peak, (peak, asked)
        assert cpus == 1
    assert not list((made.folder / ".snakemake/pause").glob("network-*")), "a compute job used the network"


def test_logs_are_kept_and_named(accounting: Cluster, project: Make, submit: Submit) -> None:
    """A bundle's log is found by its rules, a step's by rule and wildcards; a second run has nothing to do."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions").finish()
    (job,) = submitted(run.text)
    (log,) = (made.folder / "logs/slurm").rglob("*.log")
    assert log.name == f"{job}.log"
    assert log.parent.name.startswith("group_layers-tiny")
    assert (made.folder / "logs/decompose/tiny/raw/qk/layer-00.log").is_file()
    assert (made.folder / "logs/extract_heads/tiny/layer-00.log").is_file()
    assert made.planned("decompositions") == {}


def test_a_failing_step_shows_its_last_words(accounting: Cluster, project: Make, submit: Submit) -> None:
    """A bad weight: the step's message is on the user's screen, with the paths of both logs, after one more try."""
    made = project(1, **ONE_LAYER)
    tensors = llama_tensors(LLAMA | {"num_hidden_layers": 1})
    tensors["model.layers.0.self_attn.v_proj.weight"][3, 4] = np.nan
    write_safetensors(made.folder / "checkpoints/tiny/model.safetensors", tensors)
    run = submit(made, "decompositions").finish(check=False)
    assert run.status != 0
    assert "model.layers.0.self_attn.v_proj.weight contains NaN or infinity" in run.text
    assert "logs/extract_heads/tiny/layer-00.log" in run.text
    assert len(submitted(run.text)) == 2


def test_a_cancelled_job_is_submitted_again(accounting: Cluster, project: Make, submit: Submit) -> None:
    """scancel from outside."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", PAUSED_STEP="decompose")
    run.wait_until_paused()
    (job,) = accounting.running()
    accounting.call("scancel", str(job))
    done = run.finish()
    assert f"JOB {job} ON {accounting.node} CANCELLED" in done.text
    assert len(submitted(done.text)) == 2
    assert results_of(made) == local_results(made, "decompositions")


def test_a_killed_step_is_repeated(accounting: Cluster, project: Make, submit: Submit) -> None:
    """The step's process is killed in the middle of its writing: no half file stays, and the bundle runs again."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", PAUSED_STEP="decompose")
    os.kill(run.wait_until_paused(), signal.SIGKILL)
    done = run.finish()
    assert "Killed" in done.text
    assert len(submitted(done.text)) == 2
    assert results_of(made) == local_results(made, "decompositions")


def test_a_job_that_needs_more_memory_gets_it(accounting: Cluster, project: Make, submit: Submit) -> None:
    """SLURM ends a job that outgrows its request; the second attempt asks for half as much again."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", HUNGRY_STEP="decompose", HUNGRY_MB="350")
    done = run.finish()
    first, second = submitted(done.text)
    assert f"StepId={first}.1 exceeded memory limit" in done.text
    assert accounting.memory(second)[1] == pytest.approx(1.5 * accounting.memory(first)[1], rel=0.01)
    assert results_of(made) == local_results(made, "decompositions")


def test_a_drained_node_makes_it_wait(accounting: Cluster, project: Make, submit: Submit) -> None:
    """Nothing fails while the node takes no jobs; it goes on when the node does."""
    made = project(1, **ONE_LAYER)
    accounting.drain()
    run = submit(made, "decompositions")
    run.wait_for(lambda: any(state == "PENDING" for _, state in accounting.jobs()))
    accounting.resume()
    done = run.finish()
    assert len(submitted(done.text)) == 1
    assert results_of(made) == local_results(made, "decompositions")


def test_an_interrupted_run_cancels_its_jobs_and_resumes(accounting: Cluster, project: Make, submit: Submit) -> None:
    """Ctrl-C: SLURM's queue is empty afterwards, and the next run makes what is missing."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", PAUSED_STEP="decompose")
    run.wait_until_paused()
    run.end(signal.SIGINT)
    accounting.until_idle()
    again = submit(made, "decompositions")
    again.finish()
    assert results_of(made) == local_results(made, "decompositions")


def test_a_killed_run_resumes_beside_its_jobs(accounting: Cluster, project: Make, submit: Submit) -> None:
    """The submitting node dies while its job goes on: a second run ends with the same files all the same."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", PAUSED_STEP="decompose")
    run.wait_until_paused()
    run.end(signal.SIGKILL)
    assert len(accounting.running()) == 1
    again = submit(made, "decompositions")
    again.wait_for(lambda: len(accounting.jobs()) == 2)
    again.release()
    again.finish()
    accounting.until_idle()
    assert results_of(made) == local_results(made, "decompositions")
    assert made.planned("decompositions") == {}


def test_a_bundle_that_fits_no_node_is_refused(accounting: Cluster, project: Make, submit: Submit) -> None:
    """It would be pending for ever; the message says what fits."""
    made = project(1, **ONE_LAYER)
    run = submit(made, "decompositions", "--cores", "64").finish(check=False, seconds=60)
    assert run.status != 0
    assert f"the largest node of the default partition main has {CPUS}: it would wait for ever" in run.text
    assert f"--cores {CPUS}" in run.text
    assert accounting.jobs() == []
    assert "Traceback" not in run.text


def test_an_account_and_a_partition_can_be_named(accounting: Cluster, project: Make, submit: Submit) -> None:
    """As the profile's first lines say."""
    made = project(1, **ONE_LAYER)
    place = ("--default-resources", "slurm_partition=main", f"slurm_account={ACCOUNT}")
    run = submit(made, "heads", *place).finish()
    (job,) = submitted(run.text)
    assert accounting.call("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "partition,account").split() == [
        f"main|{ACCOUNT}"
    ]


def test_doctor_is_content(accounting: Cluster, project: Make) -> None:
    """It names the profile to use."""
    said = project(1).headmaps("doctor", "--offline").text
    assert "snakemake --profile profiles/slurm" in said
    assert "FAIL" not in said
