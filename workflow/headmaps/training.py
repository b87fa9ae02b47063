"""The training step that a model's name tells. Standard library only: the configuration is checked with it."""

import re
from urllib.parse import unquote

from headmaps.errors import ConfigError

_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?)[-_ ]?0*(\d+)([km]?)(?![a-z0-9])", re.IGNORECASE)
_BARE = re.compile(r"0*(\d+)([km]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def training_step(name: str) -> int:
    """The training step in a model's or revision's name.

    The number after step, checkpoint, ckpt or iter (`pythia@step1000`, `stage1-step50k-tokens210B`), or a revision that
    is nothing but a number.

    Raises:
        ConfigError: there is none, or several that differ.
    """
    revision = unquote(name.partition("@")[2] or name)
    found = {int(number) * _UNITS[unit.lower()] for number, unit in _STEP.findall(revision)}
    bare = _BARE.fullmatch(revision)
    if not found and bare:
        found = {int(bare[1]) * _UNITS[bare[2].lower()]}
    if len(found) != 1:
        many = "more than one number" if found else "no number"
        raise ConfigError(
            f"the name {revision!r} has {many} that could be its training step",
            where="comparisons: kind: training",
            expected="a name such as step1000, checkpoint-500 or iter_0002000",
            do="compare models (kind: models) or choose revisions whose names have one",
        )
    return found.pop()
