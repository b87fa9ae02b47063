"""`headmaps reference`: print or write the configuration's schema and reference page."""

import argparse
from pathlib import Path

from headmaps.config_reference import reference, schema_text, with_reference
from headmaps.records import write_bytes

PAGE = Path("config/README.md")
SCHEMA = Path("config/schema.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    parser.add_argument("--write", action="store_true", help=f"update {PAGE} and {SCHEMA}")


def run(arguments: argparse.Namespace) -> int:
    """Print the reference, or update the two files."""
    if not arguments.write:
        print(reference())
        return 0
    write_bytes(PAGE, with_reference(PAGE.read_text(encoding="utf-8")).encode())
    write_bytes(SCHEMA, schema_text().encode())
    print(f"wrote {PAGE} and {SCHEMA}")
    return 0
