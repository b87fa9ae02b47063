"""The `headmaps` command. Each subcommand is a module of `headmaps.commands` and is imported only when it runs."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from headmaps import __version__
from headmaps.errors import HeadmapsError

COMMANDS = {
    "entry": "print the config entry of a checkpoint",
    "plan": "bytes to fetch, disk, memory, jobs and time, before anything runs",
    "doctor": "what will and will not work on this machine",
    "verify": "recompute every hash: what is stale, altered, missing or unknown, and why",
    "lock": "write results.lock.json, the content hashes of a finished run",
    "diff": "compare two results folders or lock files",
    "where": "list where the results of the configuration are",
    "reference": "the configuration's schema and reference page",
    "benchmark": "speed against what one would otherwise use",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; a problem the user can act on is shown as its message, with exit status 1."""
    parser = argparse.ArgumentParser(
        prog="headmaps", description="What each attention head of a transformer does, read from its weights alone."
    )
    parser.add_argument("--version", action="version", version=f"headmaps {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    arguments_given = list(sys.argv[1:] if argv is None else argv)
    wanted = next((argument for argument in arguments_given if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == wanted:
            module = import_module(f"headmaps.commands.{name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    arguments = parser.parse_args(arguments_given)
    try:
        return int(arguments.run(arguments))
    except HeadmapsError as error:
        print(f"headmaps {arguments.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
