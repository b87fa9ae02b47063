"""Decompose one matrix kind of every head of one layer: sigma, Z, eigenvalues, gaps and bias lines."""

from collections.abc import Sequence

from headmaps.decomposition import METHODS, decompose_layer
from headmaps.errors import NumericError
from headmaps.geometry import read_geometry
from headmaps.heads import read_layer_heads
from headmaps.layer_norm import folding
from headmaps.precision import precision_arrays
from headmaps.records import write_arrays, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--heads", "--layer", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("decompose"):
        given = arguments(__doc__, FLAGS, argv)
        geometry = read_geometry(given.geometry)
        heads = read_layer_heads(given.heads, geometry)
        matrix, treatment = given.spec["matrix"], given.spec["layer_norm"]
        try:
            arrays = decompose_layer(heads, geometry, matrix, treatment)
        except NumericError as error:
            where = f"layer {given.layer}, {error.where} ({given.heads})"
            raise NumericError(error.what, where=where, expected=error.expected, do=error.do) from None
        arrays |= precision_arrays(heads, geometry, matrix, treatment, given.layer, arrays)
        write_arrays(given.output, arrays)
        facts = {
            "folded": list(folding(heads, geometry, treatment).notes),
            "methods": {name: int((arrays["method"] == code).sum()) for code, name in enumerate(METHODS)},
            "comparable": bool(arrays["comparable"]),
        }
        write_record(given.record, "decompose", given.spec, {"arrays": given.output}, facts)
        write_made(given.record, "decompose", given.spec, [given.geometry, given.heads.with_suffix(".json")])


if __name__ == "__main__":
    main()
