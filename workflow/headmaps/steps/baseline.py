"""Draw one kind of baseline for every head of one layer and evaluate the quantities on the draws."""

from collections.abc import Sequence

from headmaps.baselines import baseline_layer
from headmaps.geometry import read_geometry
from headmaps.heads import read_layer_heads
from headmaps.records import write_arrays, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--heads", "--layer", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("baseline"):
        given = arguments(__doc__, FLAGS, argv)
        spec = given.spec
        geometry = read_geometry(given.geometry)
        arrays = baseline_layer(
            read_layer_heads(given.heads, geometry),
            geometry,
            kind=spec["kind"],
            draws=spec["draws"],
            key=(spec["seed"], spec["model"], given.layer),
            matrices=spec["matrices"],
            treatment=spec["layer_norm"],
        )
        write_arrays(given.output, arrays)
        facts = {"draws": {name: int(values.shape[1]) for name, values in arrays.items()}}
        write_record(given.record, "baseline", spec, {"arrays": given.output}, facts)
        write_made(given.record, "baseline", spec, [given.geometry, given.heads.with_suffix(".json")])


if __name__ == "__main__":
    main()
