"""Puts a page together: templates, style sheet, scripts, plotly.js, the manifest and the blocks.

The blocks come last, so that a browser shows the first view of a large page while it still reads the rest.
"""

import importlib.resources
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headmaps.errors import ResultError
from headmaps.records import atomic_path

MODEL_SCRIPTS = (
    *("format.js", "blocks.js", "data.js", "state.js", "dom.js", "controls.js", "theme.js", "plots.js"),
    *("overview.js", "scatter.js", "histogram.js", "headmap.js", "headplots.js", "words.js", "head.js", "table.js"),
    *("making.js", "definitions.js", "main.js"),
)
INDEX_SCRIPTS = (
    *("format.js", "blocks.js", "dom.js", "theme.js", "plots.js"),
    *("models.js", "depth.js", "pairing.js", "index.js"),
)

_SPLIT = "{{blocks}}"


def asset(name: str) -> str:
    """Text of a file in `assets/`."""
    return (importlib.resources.files("headmaps.atlas") / "assets" / name).read_text(encoding="utf-8")


def assets() -> list[Path]:
    """All files of `assets/`, which go into the pages."""
    folder = Path(__file__).with_name("assets")
    return sorted(path for path in folder.iterdir() if path.is_file())


def plotly_js() -> str:
    """plotly.js as the plotly package ships it.

    Raises:
        ResultError: the package does not have it where it used to, or it cannot stand inside a page.
    """
    try:
        text = (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (OSError, ModuleNotFoundError) as error:
        what = f"the plotly package holds no plotly.min.js ({error})"
        raise ResultError(what, do="install the versions of envs/requirements.lock") from None
    if "</script" in text.lower() or "<!--" in text:
        raise ResultError("this version of plotly.js cannot be written into a page: it holds a script's end tag")
    return text


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: no `<`, equal text for equal values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace each `{{name}}` of a template, in one pass: what is inserted is not looked at again.

    Raises:
        KeyError: the template has a name without part, or a part has no place in it.
    """
    pieces = template.split("{{")
    filled = [pieces[0]]
    used = set()
    for piece in pieces[1:]:
        name, end, rest = piece.partition("}}")
        if not end:
            raise KeyError(name)
        used.add(name)
        filled += [parts[name], rest]
    if missing := set(parts) - used:
        raise KeyError(f"the template has no place for {', '.join(sorted(missing))}")
    return "".join(filled)


def write_page(
    path: Path, template: str, scripts: Iterable[str], manifest: Mapping[str, Any], blocks: Iterable[tuple[str, str]]
) -> None:
    """Write a page, whole or not at all; blocks are taken one at a time.

    Args:
        path: the .html file.
        template: name of the template in `assets/`.
        scripts: names of the script files, in the order in which they run.
        manifest: small facts, as JSON values; `model` becomes the title.
        blocks: (name, packed text).
    """
    before, after = asset(template).split(_SPLIT)
    parts = {
        "title": escape(str(manifest["model"])),
        "style": asset("style.css"),
        "manifest": script_json(manifest),
        "plotly": plotly_js(),
        # one function: the page's names do not become properties of `window`
        "scripts": "(() => {\n" + "\n".join(asset(name) for name in scripts) + "})();",
    }
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(fill(before, parts))
        for name, text in blocks:
            stream.write(f'<script type="text/plain" id="block-{escape(name)}">{text}</script>\n')
        stream.write(after)


def escape(text: str) -> str:
    """Text as HTML."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
