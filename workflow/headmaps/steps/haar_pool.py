"""Draw the pool of random frames that the gaussian and spectrum baselines of one model share."""

from collections.abc import Sequence

from headmaps.geometry import read_geometry
from headmaps.haar import pool_arrays
from headmaps.records import write_arrays, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("haar_pool"):
        given = arguments(__doc__, FLAGS, argv)
        geometry = read_geometry(given.geometry)
        ranks = {geometry.rank_of(matrix) for matrix in geometry.matrices}
        arrays = pool_arrays(geometry.d_model, ranks, given.spec["draws"], given.spec["seed"])
        write_arrays(given.output, arrays)
        facts = {"d_model": geometry.d_model, "ranks": sorted(ranks)}
        write_record(given.record, "haar_pool", given.spec, {"arrays": given.output}, facts)
        write_made(given.record, "haar_pool", given.spec, [given.geometry])


if __name__ == "__main__":
    main()
