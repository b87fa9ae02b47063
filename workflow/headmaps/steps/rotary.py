"""Decompose the QK matrix of every head of one layer at several distances between current and attended token.

Spec: `matrix`, `layer_norm`, `rope_offsets`.
"""

from collections.abc import Sequence

from headmaps.geometry import read_geometry
from headmaps.heads import read_layer_heads
from headmaps.layer_norm import folding
from headmaps.positions import decompose_at, position_notes
from headmaps.records import write_arrays, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--heads", "--layer", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("rotary"):
        given = arguments(__doc__, FLAGS, argv)
        geometry = read_geometry(given.geometry)
        heads = read_layer_heads(given.heads, geometry)
        matrix, treatment = given.spec["matrix"], given.spec["layer_norm"]
        offsets = given.spec["rope_offsets"]
        write_arrays(given.output, decompose_at(heads, geometry, given.layer, offsets, treatment, matrix))
        facts = {
            "positions": position_notes(geometry, given.layer, matrix),
            "folded": list(folding(heads, geometry, treatment).notes),
        }
        write_record(given.record, "rotary", given.spec, {"arrays": given.output}, facts)
        write_made(given.record, "rotary", given.spec, [given.geometry, given.heads.with_suffix(".json")])


if __name__ == "__main__":
    main()
