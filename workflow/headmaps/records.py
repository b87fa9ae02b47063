"""Files written whole or not at all, and the small records that let a later run see what changed.

A record is a JSON file beside the arrays of a step, written last. It names the spec that made them and
the sha256, shape and dtype of each, and nothing volatile: equal results have equal records, on any day
and any machine. What is volatile (the code, the packages, the inputs' hashes at the time) goes into a
sidecar `*.made.json` that no rule depends on; `headmaps verify` reads it to name the cause of a change.
"""

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headmaps.errors import ResultError

if TYPE_CHECKING:  # numpy is not needed to hash a file or to write a JSON record
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 1 << 20


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_array(array: "NDArray[Any]") -> str:
    """Hex sha256 of an array's elements in C order (neither shape nor dtype enter)."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it there when the block ends well, else remove it.

    The temporary name is unique, so two jobs that write the same file cannot mix their bytes, and it starts
    with a dot, so that no later run takes what an interrupted one left for a result.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; results are to be shared
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON with sorted keys: equal values give equal bytes. NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ResultError: the file is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError("a file that this step needs is missing", where=str(path), do="run snakemake") from None
    except ValueError as error:
        what = f"a file of the results is not valid JSON ({error})"
        raise ResultError(what, where=str(path), do=f"delete {path} and run snakemake") from None


def write_array(path: Path, array: "NDArray[Any]") -> None:
    """Write one array as .npy, C order, no pickles."""
    import numpy as np

    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)


def write_arrays(path: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays as an uncompressed .npz whose bytes depend on the arrays alone (sorted names, no dates)."""
    import numpy as np

    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getbuffer())


def read_arrays(path: Path) -> "dict[str, np.ndarray[Any, Any]]":
    """Read a .npz into memory; pickled objects are refused.

    Raises:
        ResultError: the file is missing or not a .npz of plain arrays.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ResultError("a file that this step needs is missing", where=str(path), do="run snakemake") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        what = f"a results file cannot be read as arrays ({error})"
        raise ResultError(what, where=str(path), do=f"delete {path} and run snakemake") from None


def describe_file(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file and, for .npy and .npz, dtype and shape of its arrays (from their headers alone)."""
    path = Path(path)
    description: dict[str, Any] = {"sha256": sha256_of_file(path), "size": path.stat().st_size}
    if path.suffix in {".npy", ".npz"}:
        description["arrays"] = _array_headers(path)
    return description


def _array_headers(path: Path) -> dict[str, dict[str, Any]]:
    import numpy as np

    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return {path.stem: {"dtype": array.dtype.str, "shape": list(array.shape)}}
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            headers[entry.removesuffix(".npy")] = {"dtype": dtype.str, "shape": list(shape)}
    return headers


def unplaced(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec as it may stand in a result: of the absolute path of a local checkpoint the last name alone.

    Where a checkpoint lies on somebody's machine is no part of a result, and its folders may name a person.
    """
    path = spec.get("path")
    named = {"path": os.path.basename(path.rstrip("/"))} if isinstance(path, str) and os.path.isabs(path) else {}
    return {**spec, **named}


def write_record(
    path: Path,
    step: str,
    spec: Mapping[str, Any],
    files: Mapping[str, Path],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write the record of a finished step; call it last.

    Args:
        path: where the record goes (`layer-00.json`).
        step: the step's name.
        spec: the parameters that entered the result, and only those.
        files: name -> path of each file the step wrote, hashed here; its path is kept relative to the record.
        facts: further small facts about the result (what was folded, which method); nothing volatile.
    """
    record: dict[str, Any] = {"step": step, "spec": unplaced(spec)}
    folder = Path(path).parent
    record["files"] = {
        name: {"path": os.path.relpath(file, folder)} | describe_file(file) for name, file in files.items()
    }
    if facts:
        record["facts"] = dict(facts)
    write_json(path, record)
