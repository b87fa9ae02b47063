"""The workflow on a SLURM cluster that keeps no account of finished jobs."""

from collections.abc import Callable

import pytest

from slurm.cluster import Cluster
from slurm.conftest import Submission
from support.project import Project

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ONE_LAYER = {"baselines": {"kinds": [], "draws": 8, "pool": 4096, "seed": 0}}

Make = Callable[..., Project]
Submit = Callable[..., Submission]


@pytest.fixture(autouse=True)
def _own_jobs(no_accounting: Cluster) -> None:
    """Each test finds the queue empty."""
    no_accounting.clear()


def test_the_other_profile_is_refused_at_once(no_accounting: Cluster, project: Make, submit: Submit) -> None:
    """With sacct the executor would wait for ever; nothing is submitted, and the right profile is named."""
    run = submit(project(1, **ONE_LAYER), "decompositions").finish(check=False, seconds=60)
    assert run.status != 0
    assert "keeps no account of finished jobs" in run.text
    assert "--profile profiles/slurm-noacct" in run.text
    assert no_accounting.jobs() == []
    assert "Traceback" not in run.text


def test_too_long_between_questions_is_refused(no_accounting: Cluster, project: Make, submit: Submit) -> None:
    """squeue forgets finished jobs: the executor would turn to sacct."""
    slow = ("--slurm-init-seconds-before-status-checks", "200")
    run = submit(project(1, **ONE_LAYER), "decompositions", *slow, profile="slurm-noacct").finish(False, 60)
    assert run.status != 0
    assert "shows them for 300 s only" in run.text
    assert "--slurm-init-seconds-before-status-checks 100" in run.text


def test_its_own_profile_works(no_accounting: Cluster, project: Make, submit: Submit) -> None:
    """Finished jobs are seen finished, and a second run has nothing to do."""
    made = project(1, **ONE_LAYER)
    submit(made, "decompositions", profile="slurm-noacct").finish()
    assert made.planned("decompositions") == {}


def test_doctor_names_it(no_accounting: Cluster, project: Make) -> None:
    """Before anything is submitted."""
    said = project(1).headmaps("doctor", "--offline").text
    assert "profiles/slurm-noacct" in said
