"""The same bytes: whatever the environment of a run, and the same numbers whatever the processor.

What must not matter on one machine are cores, threads, the run's place, the user's matplotlib settings, locale, time
zone and umask. What may matter in the last bits is the kernel that the linear algebra picks for a processor;
`exact: true` pins it.
"""

import csv
import datetime
import getpass
import io
import os
import platform
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from support.checkpoints import write_llama
from support.configs import SMALL_CONFIG
from support.project import Project

pytestmark = pytest.mark.slow

KERNELS = {"Nehalem": "sse4_2", "Sandybridge": "avx", "Haswell": "avx2", "SkylakeX": "avx512f"}
"""Kernels of OpenBLAS, and the processor's flag that each needs."""


def new_project(folder: Path, **changes: Any) -> Project:
    """A project in which nothing has run."""
    project = Project.copy_to(folder)
    write_llama(project.folder / "checkpoints/tiny")
    project.configure(SMALL_CONFIG | changes)
    return project


def different(a: Project, b: Project) -> list[str]:
    """The results that are not byte for byte the same in both."""
    left, right = a.results(), b.results()
    return [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]


def supported() -> list[str]:
    """The kernels that this processor can run."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    return [kernel for kernel, flag in KERNELS.items() if flag in flags]


# --- one machine ------------------------------------------------------------------------------------------------------


def test_cores_and_threads_do_not_matter(finished: Project, tmp_path: Path) -> None:
    project = new_project(tmp_path / "one core")
    threads = {f"{name}_NUM_THREADS": "2" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB")}
    project.run("--cores", "1", **threads)
    assert different(finished, project) == []


def test_the_user_s_settings_do_not_matter(finished: Project, tmp_path: Path) -> None:
    """Another matplotlibrc, home, locale, time zone, hash seed and umask, and a module of the user's in the way."""
    home = tmp_path / "home"
    (home / ".config/matplotlib").mkdir(parents=True)
    settings = "font.size: 20\naxes.grid: True\nsvg.hashsalt: mine\nsavefig.dpi: 40\nfigure.facecolor: red\n"
    (home / ".config/matplotlib/matplotlibrc").write_text(settings)
    (home / "matplotlibrc").write_text(settings)
    project = new_project(tmp_path / "elsewhere/with spaces and ünicode")
    (project.folder / "matplotlibrc").write_text(settings)
    environment = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "MATPLOTLIBRC": str(home / "matplotlibrc"),
        "MPLBACKEND": "svg",
        "LC_ALL": "C",
        "LANG": "de_DE.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYTHONHASHSEED": "123",
        "SOURCE_DATE_EPOCH": "1",
    }
    before = os.umask(0o077)
    try:
        project.run(**environment)
    finally:
        os.umask(before)
    assert different(finished, project) == []
    table = project.folder / "results/tiny/raw/tables/heads.csv"
    assert table.stat().st_mode & 0o777 == 0o600  # the umask is respected, and nothing else changes


def test_a_run_in_parts_gives_the_same_bytes(finished: Project, tmp_path: Path) -> None:
    """Part by part, with a result lost on the way."""
    project = new_project(tmp_path / "parts")
    project.run("heads")
    project.run("results/tiny/raw/decomposition/qk/layer-01.npz")
    project.run("tables")
    (project.folder / "results/tiny/raw/decomposition/value/layer-02.npz").unlink()
    (project.folder / "results/tiny/raw/decomposition/value/layer-02.json").unlink()
    project.run("figure2", "atlas")
    project.run()
    assert different(finished, project) == []


# --- across processors ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Project]:
    """Kernel -> a run with it, as other processors would make it."""
    projects = {}
    for kernel in supported():
        projects[kernel] = new_project(tmp_path_factory.mktemp(kernel) / "project")
        projects[kernel].run("tables", "figures", OPENBLAS_CORETYPE=kernel)
    return projects


@pytest.fixture(scope="module")
def kernel_pairs(by_kernel: dict[str, Project]) -> list[tuple[str, Project, Project]]:
    """The first kernel's run against each of the others."""
    (_, first), *others = by_kernel.items()
    assert others, "this processor runs one kernel only: nothing to compare"
    return [(kernel, first, other) for kernel, other in others]


def test_the_kernels_are_really_different_ones(by_kernel: dict[str, Project]) -> None:
    """Otherwise the tests below would compare a run with itself."""
    assert len({project.results()["tiny/raw/tables/vectors.parquet"] for project in by_kernel.values()}) > 1


def test_numbers_agree_across_kernels(kernel_pairs: list[tuple[str, Project, Project]]) -> None:
    """To 1e-9 of the largest singular value: every array of every decomposition."""
    compared = 0
    for kernel, first, other in kernel_pairs:
        for path in sorted((first.folder / "results/tiny/raw/decomposition").rglob("*.npz")):
            name = path.relative_to(first.folder)
            with np.load(path) as a, np.load(other.folder / name) as b:
                largest = a["sigma"].max()
                for key in a.files:
                    x, y = (values[key] for values in (a, b))
                    if x.dtype.kind in "biu":  # ranks, methods: the very same
                        assert np.array_equal(x, y), (kernel, name, key)
                        continue
                    if key == "eigenvalues":  # a set: equal up to order
                        x, y = np.sort_complex(np.round(x, 9)), np.sort_complex(np.round(y, 9))
                    assert np.nanmax(np.abs(x - y), initial=0.0) <= 1e-9 * max(largest, 1.0), (kernel, name, key)
                    compared += 1
    assert compared > 100


def test_tables_agree_across_kernels(kernel_pairs: list[tuple[str, Project, Project]]) -> None:
    for kernel, first, other in kernel_pairs:
        tables = (read_csv(project.results()["tiny/raw/tables/heads.csv"]) for project in (first, other))
        for row, (mine, theirs) in enumerate(zip(*tables, strict=True)):
            for column, value in mine.items():
                assert alike(value, theirs[column]), (kernel, row, column, value, theirs[column])


def read_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def alike(a: str, b: str) -> bool:
    """The same text, or numbers that differ in the last digits (z scores divide by small spreads)."""
    if a == b:
        return True
    x, y = float(a), float(b)
    return abs(x - y) <= 1e-8 * max(abs(x), abs(y), 1.0)


def test_figures_agree_across_kernels(kernel_pairs: list[tuple[str, Project, Project]]) -> None:
    """To the pixel, but for anti-aliasing: of a thousand pixels one may differ visibly."""
    for kernel, first, other in kernel_pairs:
        left, right = first.results(), other.results()
        names = [name for name in left if name.endswith(".png")]
        assert len(names) > 10
        for name in names:
            a, b = (np.asarray(Image.open(io.BytesIO(data[name])).convert("RGB"), int) for data in (left, right))
            assert a.shape == b.shape, (kernel, name)
            assert (np.abs(a - b).max(axis=2) > 8).mean() <= 1e-3, (kernel, name)


def test_exact_pins_the_kernel(tmp_path: Path) -> None:
    """Byte-equal on any x86-64 machine: what the machine would choose, or the environment says, is overruled."""
    targets = ("tables", "figure1", "figure2")
    runs = []
    for kernel in ("", *(kernel for kernel in supported() if kernel != "Haswell")):
        project = new_project(tmp_path / (kernel or "own"), exact=True)
        project.run(*targets, **({"OPENBLAS_CORETYPE": kernel} if kernel else {}))
        runs.append(project)
    assert len(runs) > 1
    assert [different(runs[0], other) for other in runs[1:]] == [[]] * (len(runs) - 1)


# --- what no result says ----------------------------------------------------------------------------------------------


def test_no_result_names_a_date_a_host_a_user_or_a_place(finished: Project) -> None:
    words = unwanted(finished)
    found = [
        (name, place, word)
        for name, data in finished.results().items()
        for place, text in texts(name, data)
        for word in words
        if word in text
    ]
    assert found == []


def test_sidecars_name_relative_places_only(finished: Project) -> None:
    words = unwanted(finished)
    sidecars = [*(finished.folder / "results").rglob("*.made.json"), finished.folder / "results/tiny/provenance.json"]
    assert len(sidecars) > 20
    dated = {"provenance.json"}
    for path in sidecars:
        text = path.read_bytes()
        for word in words:
            if not (path.name in dated and word.startswith(b"20")):
                assert word not in text, (path.name, word)


def test_a_checkpoint_elsewhere_on_the_machine_is_not_placed_by_any_result(tmp_path: Path) -> None:
    project = new_project(tmp_path / "project")
    elsewhere = write_llama(tmp_path / "somebody/models/tiny")
    config = project.config()
    config["models"][0]["path"] = str(elsewhere)
    project.configure(config)
    project.run("figure2", "atlas", "results/tiny/provenance.json")
    for path in (project.folder / "results").rglob("*"):
        if path.is_file():
            assert b"somebody" not in path.read_bytes(), path
    findings = project.headmaps("verify", "--json", check=False).stdout
    assert '"altered"' not in findings
    assert '"stale"' not in findings


def unwanted(project: Project) -> list[bytes]:
    """Today in several spellings, and the names of this machine, its user and its folders."""
    today = datetime.datetime.now(datetime.UTC)
    dates = [today.strftime(form) for form in ("%Y-%m-%d", "%Y/%m/%d", "%d %b %Y", "%b %d %Y", "%Y%m%d", "%d.%m.%Y")]
    names = [platform.node(), getpass.getuser(), os.path.basename(os.path.expanduser("~"))]
    # a user named `root` or `vm` is part of many words
    known = {name for name in names if len(name) > 5}
    places = [str(project.folder), str(Path(os.__file__).parent), "/tmp/", "/home/", "/root/", "/Users/", ".venv"]
    return [word.encode() for word in (*dates, *known, *places)]


def texts(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """A result's bytes, and what is packed in them."""
    if name.endswith("atlas.html"):
        data = without_plotly(data)
    yield "bytes", data
    if name.endswith(".npz"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {entry.date_time for entry in archive.infolist()} <= {(1980, 1, 1, 0, 0, 0)}
            for entry in archive.infolist():
                yield entry.filename, entry.filename.encode() + entry.comment + entry.extra
    elif name.endswith(".parquet"):
        metadata = pyarrow.parquet.read_metadata(io.BytesIO(data))
        yield "metadata", repr(metadata.metadata).encode() + metadata.created_by.encode()
    elif name.endswith(".png"):
        for kind, chunk in png_chunks(data):
            assert kind != b"tIME"
            yield kind.decode(), unpacked(kind, chunk)


def without_plotly(data: bytes) -> bytes:
    """The page without the library it carries, whose licence and examples name dates and folders."""
    import plotly

    shipped = (Path(plotly.__file__).parent / "package_data/plotly.min.js").read_bytes()
    return data.replace(shipped, b"")


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        yield kind, data[place + 8 : place + 8 + length]
        place += length + 12


def unpacked(kind: bytes, chunk: bytes) -> bytes:
    """The text of a chunk, which may be compressed."""
    if kind == b"zTXt":
        key, _, rest = chunk.partition(b"\0")
        return key + zlib.decompress(rest[1:])
    if kind == b"iTXt" and chunk.partition(b"\0")[2][:1] == b"\1":
        return zlib.decompress(chunk.partition(b"\0")[2][2:].split(b"\0", 2)[2])
    return chunk if kind not in {b"IDAT", b"IHDR"} else b""


def test_the_scan_would_find_them(tmp_path: Path) -> None:
    """A PNG with a date in a compressed chunk is noticed: the scan is no formality."""
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("Creation Time", "2026-12-01 by somebody", zip=True)
    Image.new("RGB", (2, 2)).save(tmp_path / "dated.png", pnginfo=info)
    data = (tmp_path / "dated.png").read_bytes()
    assert b"somebody" not in data
    assert any(b"somebody" in text for _, text in texts("dated.png", data))


def test_git_does_not_matter(finished: Project, tmp_path: Path) -> None:
    """A project that is a checkout runs nothing again, and no result but provenance knows the commit."""
    project = finished.duplicate(tmp_path / "checkout")
    environment = project.environment() | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"],
    ):
        subprocess.run(["git", *command], cwd=project.folder, env=environment, check=True)
    assert not project.planned()
