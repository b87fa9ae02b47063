"""A Hub on loopback for each test, and nothing else: no network, no cache, no token of the person who runs it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from headmaps.checkpoint import ranges
from hub.server import LocalHub
from support.project import Project, Run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """The server, with huggingface_hub pointed to it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HEADMAPS_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every pause between attempts, in seconds; none is really made."""
    made: list[float] = []
    monkeypatch.setattr(ranges, "pause", made.append)
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=made.append, time=time.time, monotonic=time.monotonic))
    return made


@pytest.fixture
def token(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Log in: a function that sets HF_TOKEN; its arguments are the gated repositories whose conditions are accepted."""

    def log_in(*accepted: str, value: str = "hf_abcdefghijklmnop") -> str:
        hub.tokens[value] = set(accepted)
        monkeypatch.setenv("HF_TOKEN", value)
        return value

    return log_in


@pytest.fixture
def weights() -> bytes:
    """Three million bytes, no two stretches alike."""
    return np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture
def model(hub: LocalHub, weights: bytes) -> str:
    """The full commit of `someone/model`, which has a config and weights."""
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": weights, "README.md": b"A model.\n"}
    return hub.repository("someone/model").add(files)


@dataclass(frozen=True)
class Online:
    """A project of its own whose runs know the local Hub and nothing of the person who runs the tests."""

    project: Project
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.project.folder

    def configure(self, *models: dict[str, Any], **sections: Any) -> None:
        """Write the configuration: these models, and few baselines."""
        few = {"baselines": {"kinds": ["gaussian"], "draws": 4, "pool": 4096, "seed": 0}}
        self.project.configure({"models": list(models), **few, **sections})

    def run(self, *arguments: str, check: bool = True, **environment: str) -> Run:
        """`snakemake`, by default for the checkpoints alone."""
        return self.project.run(*(arguments or ("checkpoints",)), check=check, **self.environment | environment)

    def checkpoint(self, model: str) -> Path:
        """The folder of a model's checkpoint."""
        return self.folder / "results" / model / "checkpoint"

    def layers(self, model: str) -> dict[str, bytes]:
        """The normal form of every layer."""
        return {path.name: path.read_bytes() for path in sorted(self.checkpoint(model).glob("layer-*.safetensors"))}


@pytest.fixture
def online(hub: LocalHub, tmp_path: Path) -> Online:
    """The workflow with the Hub of the test."""
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return Online(Project.copy_to(tmp_path / "project"), environment)
