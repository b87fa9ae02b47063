"""A Hub on loopback for each test, and nothing else: no network, no cache, no token of the person who runs it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from headmaps.checkpoint import ranges
from hub.server import LocalHub


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
