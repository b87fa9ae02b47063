"""Make heads.csv and vectors.parquet of one model under one norm treatment."""

from collections.abc import Sequence

from headmaps.geometry import read_geometry
from headmaps.records import write_record
from headmaps.steps.command import arguments, step, write_made
from headmaps.tables import write_tables

FLAGS = ("--geometry", "--decompositions...", "--baselines...", "--records...", "--heads-csv", "--vectors", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("tables"):
        given = arguments(__doc__, FLAGS, argv)
        facts = write_tables(
            read_geometry(given.geometry),
            given.spec["matrices"],
            given.spec["kinds"],
            given.decompositions,
            given.baselines,
            heads_csv=given.heads_csv,
            vectors=given.vectors,
        )
        files = {"heads.csv": given.heads_csv, "vectors.parquet": given.vectors}
        write_record(given.record, "tables", given.spec, files, facts)
        write_made(given.record, "tables", given.spec, [given.geometry, *given.records])


if __name__ == "__main__":
    main()
