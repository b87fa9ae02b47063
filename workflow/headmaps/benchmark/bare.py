"""One bare process that does what a run of the workflow did, step after step: `python -m headmaps.benchmark.bare FILE`.

FILE holds the steps' names and arguments as JSON. What the workflow adds to this is a Python start and its imports a
job, and the engine.
"""

import json
import sys
from importlib import import_module
from pathlib import Path


def main(file: Path) -> None:
    """Run every step in this process."""
    for name, arguments in json.loads(file.read_text(encoding="utf-8")):
        import_module(f"headmaps.steps.{name}").main(arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
