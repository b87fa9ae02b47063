"""Describe what made a model's results: provenance.json, which is the record, and a Workflow Run RO-Crate.

`--records` are those of all the model's results, relative to its folder, in which `--record` is.
"""

from collections.abc import Sequence

from headmaps.crate import crate_of
from headmaps.provenance import provenance
from headmaps.records import describe_file, write_bytes, write_json
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--records...", "--lock", "--snakefile", "--workflow", "--crate", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; `--workflow` is the copy of the Snakefile in the crate."""
    with step("describe"):
        given = arguments(__doc__, FLAGS, argv)
        folder = given.record.parent
        records = [folder / name for name in given.records]
        known = provenance(given.spec, records, given.lock)
        write_bytes(given.workflow, given.snakefile.read_bytes())
        write_json(given.crate, crate_of(folder, known, records, given.snakefile))
        files = {path.name: {"path": path.name} | describe_file(path) for path in (given.workflow, given.crate)}
        write_json(given.record, known | {"files": files})
        write_made(given.record, "describe", given.spec, [given.lock, given.snakefile, *records])


if __name__ == "__main__":
    main()
