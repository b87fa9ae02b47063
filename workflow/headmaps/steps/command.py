"""What every step shares: its flags, how it reports a problem, and the sidecar that says what made its results."""

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headmaps.errors import HeadmapsError
from headmaps.records import sha256_of_file, unplaced, write_json

PACKAGE = Path(__file__).resolve().parent.parent


def arguments(doc: str | None, flags: Sequence[str], argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a step's command line.

    Args:
        doc: the step's docstring, shown by --help.
        flags: flag names. `--spec` is always there and holds JSON; `--layer` is an int; a name that ends in
            `...` takes a list of paths (none allowed); one that ends in `?` may be left out; the rest are paths.
        argv: the arguments, `sys.argv[1:]` by default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=json.loads, required=True, help="the parameters of this step, as JSON")
    for flag in flags:
        name = flag.rstrip(".?")
        if name == "--layer":
            parser.add_argument(name, type=int, required=True)
        elif flag.endswith("..."):
            parser.add_argument(name, type=Path, nargs="*", default=[])
        else:
            parser.add_argument(name, type=Path, required=not flag.endswith("?"))
    return parser.parse_args(argv)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Run a step's body; a HeadmapsError becomes its message and exit status 1, any other error its traceback."""
    try:
        yield
    except HeadmapsError as error:
        print(f"headmaps {name}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    except OSError as error:
        traceback.print_exc()
        print(f"headmaps {name}: {error.strerror or error} ({error.filename})", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def write_made(
    record: Path, step_name: str, spec: dict[str, Any], inputs: Sequence[Path], assets: Sequence[Path] = ()
) -> None:
    """Write `<record stem>.made.json`: what made this result, for `headmaps verify`. No rule depends on it.

    Args:
        record: the step's record; its own hash enters, so that a sidecar of another run is noticed.
        inputs: the small files whose content decided the result (records, geometry, source).
        assets: files of the package that went into the result and are not Python.
    """
    copied = {path.resolve().relative_to(PACKAGE).as_posix(): sha256_of_file(path) for path in assets}
    made = {
        "step": step_name,
        "spec": unplaced(spec),
        "record": sha256_of_file(record),
        "inputs": {os.path.relpath(path): sha256_of_file(path) for path in sorted(inputs)},
        "code": imported_code() | copied,
        "packages": imported_packages(),
        "blas": os.environ.get("OPENBLAS_CORETYPE", ""),
    }
    write_json(record.with_name(f"{record.stem}.made.json"), made)


def imported_code() -> dict[str, str]:
    """The project's own modules loaded by this process: path relative to the package -> sha256."""
    code = {}
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
        if origin and origin.endswith(".py"):
            file = Path(origin).resolve()
            if file.is_relative_to(PACKAGE):
                code[file.relative_to(PACKAGE).as_posix()] = sha256_of_file(file)
    return code


def imported_packages() -> dict[str, str]:
    """Versions of the third-party packages loaded by this process that can change a number or a picture."""
    packages = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("numpy", "scipy", "pandas", "pyarrow", "matplotlib", "mpltern", "plotly", "gguf", "safetensors"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            packages[name] = str(version)
    return packages
