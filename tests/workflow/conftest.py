"""A finished run on a small model, made once; tests that change something work on a copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import write_llama
from support.configs import SMALL_CONFIG
from support.project import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which the workflow ran to its end. Do not change it."""
    project = Project.copy_to(tmp_path_factory.mktemp("finished") / "project")
    write_llama(project.folder / "checkpoints/tiny")
    project.configure(SMALL_CONFIG)
    project.run()
    return project


@pytest.fixture
def changed(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, for one test to change."""
    return finished.duplicate(tmp_path / "project")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project in which nothing has run, with the given changes of the small configuration."""

    def make(**changes: Any) -> Project:
        project = Project.copy_to(tmp_path / "fresh")
        write_llama(project.folder / "checkpoints/tiny")
        project.configure(SMALL_CONFIG | changes)
        return project

    return make
