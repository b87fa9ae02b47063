"""`headmaps plan` of models on the Hub: their headers are read, their tensors are not."""

import json
from pathlib import Path

import pytest

from headmaps.cli import main
from hub.builders import make_llama_repo
from hub.server import LocalHub


def test_bytes_to_fetch_are_exact(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two revisions alike the headers of one are read, and the bytes of both counted."""
    d_model, heads, kv, d_head, layers = 64, 4, 2, 16, 2
    commit = hub.repository("someone/llama").add_folder(make_llama_repo(tmp_path / "llama"))
    config = tmp_path / "config.yaml"
    entry = {"name": "m", "layers": 2, "source": "hub", "repo": "someone/llama", "revisions": [commit, "main"]}
    config.write_text(json.dumps({"models": [entry]}))
    assert main(["plan", "--json", "--configfile", str(config)]) == 0
    found = json.loads(capsys.readouterr().out)["models"]
    first, second = found.values()
    assert first == second
    assert first["fetch"] == layers * 2 * (d_model * d_head * 2 * (heads + kv) + d_model)  # bfloat16, with the gain
