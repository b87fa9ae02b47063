"""Messages for mistakes in the configuration: what is wrong, in which file and key, what is allowed, what to paste."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headmaps.errors import ConfigError

_EXAMPLES = {
    "models": """models:
  - {name: mine, layers: 12, source: local, path: /data/my-checkpoint}
  - {name: falcon-rw-1b, layers: 24, source: hub, repo: tiiuae/falcon-rw-1b,
     revision: e4b9872bb803165eb22f0a867d4e6a64d34fce19}""",
    "layer_norm": "layer_norm: [raw]",
    "baselines": "baselines: {kinds: [gaussian], draws: 64, pool: 4096, seed: 0}",
    "figures": "figures: {formats: [svg, png], layers: all, heads: auto, histogram: weighted}",
    "rope_offsets": "rope_offsets: [0, 1, 2, 4, 16, 64, 256]",
    "composition": "composition: false",
    "comparisons": "comparisons:\n  - {name: two-models, models: [first, second], kind: models}",
    "exact": "exact: false",
}
_MOST = 5


def explain(error: ValidationError, raw: Mapping[str, Any], files: Sequence[str]) -> str:
    """All mistakes of a configuration as one text for its author."""
    problems = _one_per_field(error.errors(include_url=False), raw)
    texts = [_one(problem, keys, raw, files) for keys, problem in problems[:_MOST]]
    if len(problems) > _MOST:
        texts.append(f"... and {len(problems) - _MOST} more")
    sections = {str(keys[0]) if keys else _section_named_in(str(problem["msg"])) for keys, problem in problems[:_MOST]}
    for section in sorted(sections & _EXAMPLES.keys()):
        texts.append("To paste:\n" + "\n".join(f"    {line}" for line in _EXAMPLES[section].splitlines()))
    head = "The configuration has a mistake." if len(problems) == 1 else "The configuration has mistakes."
    return "\n\n".join([head, *texts])


def unreadable(file: str) -> ConfigError | None:
    """What keeps a file from being read as a configuration at all: no YAML, or no keys at its top level."""
    import yaml

    try:
        value = yaml.safe_load(Path(file).read_bytes())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        tab = "; YAML is indented with spaces, not tabs" if "\\t" in str(error.problem) else ""
        what = f"the configuration is not valid YAML: {error.problem}{tab}"
        return ConfigError(what, where=f"{file}{place}", do="correct this line or the one before it")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return ConfigError(f"the configuration is not valid YAML: {error}", where=file, expected="a UTF-8 text file")
    if isinstance(value, dict):
        return None
    found = "is empty" if value is None else f"is {_shown(value)}"
    return ConfigError(
        f"the configuration {found}", where=file, expected=f"keys at the top level, such as\n{_EXAMPLES['models']}"
    )


def _one_per_field(problems: list[ErrorDetails], raw: Mapping[str, Any]) -> list[tuple[list[str | int], ErrorDetails]]:
    """Each field once: one that may be of several types fails once for each, and the deepest failure tells most."""
    kept: dict[str, tuple[list[str | int], ErrorDetails]] = {}
    for problem in problems:
        keys = _path(problem, raw)
        field = _dotted(keys[:3] if keys[:1] in (["models"], ["comparisons"]) else keys[:2])
        if field not in kept or len(keys) > len(kept[field][0]):
            kept[field] = (keys, problem)
    return list(kept.values())


def _one(problem: ErrorDetails, keys: list[str | int], raw: Mapping[str, Any], files: Sequence[str]) -> str:
    section = str(keys[0]) if keys else _section_named_in(str(problem["msg"]))
    lines = [_what(problem, keys, raw)]
    lines.append(f"  where:    {_file_of(section, files)}, key `{_dotted(keys) or section or '(top level)'}`")
    if allowed := _allowed(problem, keys, raw):
        lines.append(f"  expected: {allowed}")
    return "\n".join(lines)


def _path(problem: ErrorDetails, raw: Mapping[str, Any]) -> list[str | int]:
    """The location in the user's own YAML: the branches pydantic tried (`hub`, `list[int]`) are left out."""
    keys: list[str | int] = []
    value: Any = raw
    for key in problem["loc"]:
        in_list = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if in_list or (isinstance(value, Mapping) and key in value):
            keys.append(key)
            value = value[key]
        elif isinstance(value, Mapping) and key == problem["loc"][-1] and problem["type"] == "missing":
            keys.append(key)
    return keys


def _what(problem: ErrorDetails, keys: Sequence[str | int], raw: Mapping[str, Any]) -> str:
    name = _dotted(keys)
    kind = problem["type"]
    if kind == "extra_forbidden":
        return f"`{name}` is not a key of the configuration"
    if kind == "missing":
        return f"`{name}` is missing"
    if kind == "union_tag_not_found":
        return f"`{name}` does not say its `source`"
    if kind == "union_tag_invalid":
        return f"`{name}` has an unknown source: {problem['ctx']['tag']!r}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return message
    return f"`{name}` is {_shown(_found(keys, raw))}: {message[0].lower() + message[1:]}"


def _allowed(problem: ErrorDetails, keys: Sequence[str | int], raw: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if keys[-1:] == ["layers"]:
        return "a number of layers, or `all`/a list of layer numbers" if keys[0] == "figures" else "a number, or a list"
    if kind == "extra_forbidden":
        known = _known_keys(keys, raw)
        close = difflib.get_close_matches(str(keys[-1]), known, 1)
        hint = f" (did you mean `{close[0]}`?)" if close else ""
        return "one of " + ", ".join(known) + hint
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        return "source: wheel, local or hub"
    if kind == "literal_error":
        return str(problem["ctx"]["expected"])
    if kind == "string_pattern_mismatch":
        return f"text of the form {problem['ctx']['pattern']}"
    return ""


def _known_keys(keys: Sequence[str | int], raw: Mapping[str, Any]) -> list[str]:
    from headmaps.config import Comparison, Config, HubModel, LocalModel, WheelModel

    if len(keys) == 1:
        return sorted(Config.model_fields)
    if keys[0] == "models":
        source = _found(keys[:2], raw).get("source")
        kinds: dict[str, type[BaseModel]] = {"wheel": WheelModel, "local": LocalModel, "hub": HubModel}
        return sorted(kinds[source].model_fields) if source in kinds else []
    if keys[0] == "comparisons":
        return sorted(Comparison.model_fields)
    section = Config.model_fields[str(keys[0])].annotation
    return sorted(getattr(section, "model_fields", {}))


def _found(keys: Sequence[str | int], raw: Any) -> Any:
    for key in keys:
        raw = raw[key]
    return raw


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _dotted(keys: Sequence[str | int]) -> str:
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _section_named_in(message: str) -> str:
    match = re.search(r"`(\w+)`", message)
    named = match.group(1) if match else ""
    if named in _EXAMPLES:
        return named
    return "comparisons" if "comparison" in message else "models" if "model" in message else ""


def _file_of(section: str, files: Sequence[str]) -> str:
    """The last config file that has this section at its top level."""
    for file in reversed(files):
        path = Path(file)
        if path.is_file() and re.search(rf"(?m)^[\"']?{re.escape(section)}[\"']?\s*:", path.read_text("utf-8")):
            return str(file)
    return " or ".join(map(str, files)) or "the configuration"
