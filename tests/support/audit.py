"""Watch what the steps of a run open and import: a `sitecustomize.py` that Python loads by itself.

The steps run with `PYTHONPATH=workflow`, so a file of this name in a project's `workflow/` is imported by every one of
them before anything else. It writes one line of JSON a process.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from support.project import Project

WATCHER = """
import atexit, json, os, re, sys

words = sys.orig_argv
module = words[words.index("-m") + 1] if "-m" in words else ""
if module.startswith("headmaps.steps."):
    root = os.getcwd() + os.sep
    reads, writes, lists = set(), set(), set()

    def inside(path):
        if isinstance(path, (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(path))
            if path.startswith(root):
                return path[len(root):]
        return None

    def hook(event, arguments):
        if event == "open":
            path, _, flags = arguments
            if (path := inside(path)) is not None:
                (writes if flags & (os.O_WRONLY | os.O_RDWR) else reads).add(path)
        elif event in ("os.listdir", "os.scandir", "glob.glob"):
            if (path := inside(arguments[0])) is not None:
                lists.add(path)

    def report():
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        modules = sorted({path for file in files if file and (path := inside(file)) is not None})
        line = {
            "argv": words[words.index("-m") + 1:], "modules": modules, "reads": sorted(reads),
            "writes": sorted(writes), "lists": sorted(lists),
        }
        data = (json.dumps(line) + "\\n").encode()
        log = os.open(os.path.join(root, "audit.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, data)
        os.close(log)

    sys.addaudithook(hook)
    atexit.register(report)
"""


@dataclass(frozen=True)
class Watched:
    """One process of a step; all paths are relative to the project.

    Attributes:
        argv: the command line from the module's name on.
        modules: files of the modules that were loaded when it ended.
        reads, writes: files opened for reading, for writing.
        lists: folders listed.
    """

    argv: tuple[str, ...]
    modules: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    lists: frozenset[str]


def watch(project: Project) -> None:
    """Have every step of this project's runs report to `audit.jsonl`."""
    (project.folder / "workflow/sitecustomize.py").write_text(WATCHER)


def watched(project: Project) -> list[Watched]:
    """Every process of a step so far."""
    lines = Path(project.folder / "audit.jsonl").read_text().splitlines()
    found = []
    for line in map(json.loads, lines):
        sets = {key: frozenset(line[key]) for key in ("modules", "reads", "writes", "lists")}
        found.append(Watched(tuple(line["argv"]), **sets))
    return found
