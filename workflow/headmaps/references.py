"""The published numbers that ship with the project: which there are, their files, and which head they are of.

Standard library only: the workflow reads it while it plans.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headmaps.errors import ConfigError

REFERENCES = "workflow/reference"
FILES = (
    "value_makeup.csv",
    "value_makeup_random.json",
    "sigma_value_*_*.csv",
    "sigma_qk_*_*.csv",
    "z_value_*_*_rows_*.csv",
    "z_value_*_*_diagonal.csv",
    "hist_value_*.csv",
    "bias_lines_*_*.csv",
)
"""Every reference has one file of each kind; numbers in names are the layer and the head."""


def reference_files(name: str, references: str | Path = REFERENCES) -> list[str]:
    """The files of a reference, in the order of `FILES`.

    Raises:
        ConfigError: there is no such reference, or it lacks a file.
    """
    root = Path(references)
    known = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if name not in known:
        what = f"there are no published numbers named {name!r}"
        raise ConfigError(what, where="published", expected=f"one of: {', '.join(known)}")
    found = []
    for pattern in FILES:
        matches = sorted((root / name).glob(pattern))
        if len(matches) != 1:
            what = f"the published numbers have {len(matches)} files {pattern}"
            raise ConfigError(what, where=str(root / name), expected="one")
        found.append(matches[0].as_posix())
    return found


def reference_head(name: str, references: str | Path = REFERENCES) -> tuple[int, int]:
    """(layer, head) of the one head whose singular values are published."""
    match = re.search(r"sigma_value_(\d+)_(\d+)\.csv$", "\n".join(reference_files(name, references)), re.MULTILINE)
    assert match, "reference_files found this file"
    return int(match.group(1)), int(match.group(2))


def check_references(models: Mapping[str, Any], references: str | Path = REFERENCES) -> None:
    """Refuse models that cannot be compared with the published numbers they name.

    Args:
        models: the entries of the configuration by name.

    Raises:
        ConfigError: the numbers do not exist, or the model lacks their layer or their matrices.
    """
    for model, entry in models.items():
        if entry.published is None:
            continue
        layer, _ = reference_head(entry.published, references)
        if layer not in entry.layer_numbers or not {"value", "qk"} <= set(entry.matrices):
            what = f"model {model!r} cannot be compared with the published numbers {entry.published!r}"
            expected = f"layer {layer} and the matrices value and qk"
            raise ConfigError(what, where="published", expected=expected, do="remove `published` from this model")
