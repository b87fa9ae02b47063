"""`snakemake` when the Hub, the network, the disk or the user gets in the way: what is said, and what is left."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from hub.builders import make_llama_repo
from hub.conftest import Online
from hub.server import LocalHub
from hub.test_workflow import hub_model, local_model

SLOW = {"kind": "slow", "path": "*.safetensors", "host": "cdn", "times": -1}


@pytest.fixture
def llama(hub: LocalHub, tmp_path: Path) -> Path:
    """A small Llama on the Hub as some/llama, in two shards."""
    folder = make_llama_repo(tmp_path / "llama", shards=2)
    hub.repository("some/llama").add_folder(folder)
    return folder


@pytest.mark.slow
def test_each_model_that_cannot_be_had_says_why_and_the_others_are_fetched(
    hub: LocalHub, online: Online, llama: Path
) -> None:
    for name in ("gated", "forbidden"):
        hub.repository(f"some/{name}").add_folder(llama)
    hub.repository("some/gated").gated = True
    hub.repository("some/empty").add({"README.md": b"nothing"})
    text = "Your fine-grained token lacks: repo.content.read"
    hub.fault("status", path="/some/forbidden/*", host="hub", times=-1, status=403, text=text)
    gone = "0123456789abcdef0123456789abcdef01234567"
    online.configure(
        hub_model("good", "some/llama"),
        hub_model("gated", "some/gated"),
        hub_model("forbidden", "some/forbidden"),
        hub_model("norepo", "some/lama"),
        hub_model("norevision", "some/llama", "step9"),
        hub_model("nocommit", "some/llama", gone),
        hub_model("nofile", "some/llama", file="x.gguf"),
        hub_model("noweights", "some/empty"),
        hub_model("toomany", "some/llama", layers=3),
        hub_model("gatedfull", "some/gated", fetch="full"),
    )
    run = online.run("checkpoints", check=False)
    assert run.status == 1
    assert len(online.layers("good")) == 2
    page = f"accept them at {hub.endpoint}/some/gated, then set HF_TOKEN"
    for message in (
        text,
        "the repository some/lama is not on",
        "some/llama has no branch, tag or pull request named step9",
        f"some/llama has no commit {gone}",
        "the file x.gguf is missing",
        "there are no weights in a format that is read here",
        "the configuration says `layers: 3`; the model has 2 layers with softmax attention",
        "write `layers: 2`",
    ):
        assert message in run.text, message
    assert run.text.count(page) >= 2
    assert "Traceback" not in run.text
    assert "check your" not in run.text
    assert {path.parent.parent.name for path in online.folder.glob("results/*/checkpoint/layer-*")} == {"good"}


@pytest.mark.slow
def test_without_a_network_and_without_the_files(hub: LocalHub, online: Online, llama: Path) -> None:
    online.configure(hub_model("llama", "some/llama"))
    hub.stop()
    run = online.run("checkpoints", check=False)
    assert f"there is no way to {hub.endpoint} from this machine" in run.text
    run = online.run("checkpoints", check=False, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE forbids asking the Hub" in run.text
    assert "hf download some/llama --revision main" in run.text
    assert "Traceback" not in run.text


@pytest.mark.slow
@pytest.mark.parametrize("fetch", ["tensors", "full"])
def test_offline_with_the_files_in_the_cache(hub: LocalHub, online: Online, llama: Path, fetch: str) -> None:
    cache = Path(online.environment["HF_HOME"]) / "hub"
    snapshot_download("some/llama", endpoint=hub.endpoint, cache_dir=cache)
    hub.stop()
    online.configure(hub_model("llama", "some/llama", fetch=fetch), local_model("local", llama))
    online.run("checkpoints", HF_HUB_OFFLINE="1")
    assert online.layers("llama") == online.layers("local")


@pytest.fixture
def small_disk(online: Online) -> Iterator[Path]:
    """The results lie on a disk of 400 kB."""
    results = online.folder / "results"
    results.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(results)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield results
    finally:
        subprocess.run(["umount", "-l", str(results)], check=True)


@pytest.mark.slow
def test_a_full_disk_says_so_and_the_run_goes_on_when_there_is_room(
    hub: LocalHub, online: Online, tmp_path: Path, small_disk: Path
) -> None:
    folder = make_llama_repo(tmp_path / "llama", d_model=256, d_head=64, layers=2)
    hub.repository("some/llama").add_folder(folder)
    online.configure(hub_model("llama", "some/llama"), hub_model("full", "some/llama", fetch="full"))
    run = online.run("checkpoints", check=False)
    assert run.status == 1
    assert "the disk is full (No space left on device)" in run.text
    assert "but the disk has" in run.text  # fetch: full knows its sizes before it begins
    assert "Traceback" not in run.text
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    online.configure(*online.project.config()["models"], local_model("local", folder))
    online.run("checkpoints")
    assert online.layers("llama") == online.layers("full") == online.layers("local")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
@pytest.mark.parametrize("fetch", ["tensors", "full"])
def test_a_run_that_is_interrupted_is_resumed_with_the_right_bytes(
    hub: LocalHub, online: Online, tmp_path: Path, number: signal.Signals, fetch: str
) -> None:
    folder = make_llama_repo(tmp_path / "llama", layers=3, d_model=768, d_head=192, width=64)
    hub.repository("some/llama").add_folder(folder)
    online.configure(hub_model("llama", "some/llama", layers=3, fetch=fetch), local_model("local", folder, layers=3))
    slow = hub.fault(**SLOW, after=600)
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "checkpoints"]
    environment = online.project.environment() | online.environment
    output = tmp_path / "output"
    with open(output, "w") as stream:
        process = subprocess.Popen(
            command, cwd=online.folder, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        begun = time.monotonic()
        while hub.sent("safetensors") < 2_500_000 and process.poll() is None and time.monotonic() - begun < 240:
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as a terminal does: every process of the run gets it
        process.wait(timeout=120)
    assert process.returncode
    received = hub.sent("safetensors")
    assert received >= 2_500_000, output.read_text()
    slow.times = 0
    if number == signal.SIGKILL:
        online.run("--unlock")
    online.run("checkpoints")
    assert online.layers("llama") == online.layers("local")
    leftovers = [
        path for path in online.checkpoint("llama").rglob("*") if re.search(r"\.part$|\.tmp|\.link$", path.name)
    ]
    assert leftovers == []
    if fetch == "full":  # nothing that had come was fetched again
        size = (folder / "model.safetensors").stat().st_size
        assert hub.sent("safetensors") < size + 3_000_000


def in_a_terminal(online: Online, *arguments: str) -> str:
    """What a person sees who runs snakemake in a terminal of 100 columns."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    environment = online.project.environment() | online.environment | {"COLUMNS": "100", "TERM": "xterm"}
    child, controller = pty.fork()
    if child == 0:
        os.chdir(online.folder)
        os.execve(sys.executable, command, environment)
    shown = b""
    while True:
        try:
            data = os.read(controller, 1 << 16)
        except OSError:  # the last process has closed the terminal
            break
        if not data:
            break
        shown += data
    os.close(controller)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown.decode()
    return shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("fetch", ["tensors", "full"])
def test_a_person_sees_a_bar_and_the_log_stays_plain(hub: LocalHub, online: Online, tmp_path: Path, fetch: str) -> None:
    folder = make_llama_repo(tmp_path / "llama", layers=3, d_model=1024, d_head=256, width=64)
    hub.repository("some/llama").add_folder(folder)
    hub.fault(**SLOW, after=500)
    online.configure(hub_model("llama", "some/llama", layers=3, fetch=fetch))
    shown = in_a_terminal(online, "checkpoints")
    (tmp_path / "shown").write_text(shown)
    assert re.search(r"some/llama.*\d+%\|.*\d\.\d+M/\d+\.\d+M \[\d\d:\d\d<\d\d:\d\d, +\S+B/s\]", shown)
    drawn = [label for label, _ in groupby(re.findall(r"some/llama( layer \d)?: +\d+%", shown))]
    assert len(drawn) == len(set(drawn))  # two at a time are fetched, one at a time is drawn
    assert len(drawn) >= (1 if fetch == "full" else 2)
    name = "fetch_files/llama.log" if fetch == "full" else "fetch_layer/llama/layer-01.log"
    log = (online.folder / "logs" / name).read_text()
    assert "\r" not in log
    assert "%|" not in log
    assert re.search(r"some/llama.*: \d+\.\d MB received in \d+\.\d s", log)
