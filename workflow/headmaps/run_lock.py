"""One run at a time in a project folder, with a lock that ends with its process, however that ends.

Snakemake's own lock is a file that a killed run leaves behind, and which somebody must then remove by hand
(`snakemake --unlock`); the default profile therefore turns it off.
"""

import fcntl
import os
from pathlib import Path

from headmaps.errors import ResultError

_held: list[int] = []


def hold(folder: str | Path = ".snakemake") -> None:
    """Hold the folder's lock until this process ends. Child processes do not inherit it.

    Raises:
        ResultError: another run holds it. Where the file system knows no locks, nothing is held.
    """
    path = Path(folder, "headmaps.lock")
    path.parent.mkdir(exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ResultError(
            "another snakemake is running in this folder",
            where=str(path.parent.resolve().parent),
            do="wait until it has finished, or stop it; nothing has to be unlocked",
        ) from None
    except OSError:
        os.close(lock)
    else:
        _held.append(lock)


def hold_or_exit(folder: str | Path = ".snakemake") -> None:
    """`hold` for the Snakefile: a run beside another ends with the message and no traceback."""
    try:
        hold(folder)
    except ResultError as error:
        raise SystemExit(str(error)) from None
