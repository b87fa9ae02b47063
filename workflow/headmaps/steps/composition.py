"""Composition scores of every head of earlier layers with every head of one layer.

Spec: `layer_norm`, a treatment that folds gains. `--writers` are the head folders of all earlier layers, ascending.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from headmaps.composition import Writers, layer_composition, readers_of, writers_of
from headmaps.errors import ResultError
from headmaps.geometry import Geometry, read_geometry
from headmaps.heads import read_layer_heads
from headmaps.layer_norm import folding
from headmaps.records import write_arrays, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--heads", "--writers...", "--layer", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("composition"):
        given = arguments(__doc__, FLAGS, argv)
        geometry = read_geometry(given.geometry)
        treatment = given.spec["layer_norm"]
        earlier = [layer for layer in geometry.layers if layer < given.layer]
        if len(earlier) != len(given.writers):
            what = f"layer {given.layer} has {len(earlier)} earlier layers, but {len(given.writers)} were given"
            raise ResultError(what, where="--writers", expected="one folder for each earlier layer, ascending")
        heads = read_layer_heads(given.heads, geometry)
        writers = each_writer(dict(zip(earlier, given.writers, strict=True)), geometry, treatment)
        arrays = layer_composition(readers_of(heads, geometry, treatment), writers, geometry.n_heads)
        write_arrays(given.output, arrays)
        facts = {"folded": list(folding(heads, geometry, treatment).notes)}
        write_record(given.record, "composition", given.spec, {"arrays": given.output}, facts)
        records = [folder.with_suffix(".json") for folder in (*given.writers, given.heads)]
        write_made(given.record, "composition", given.spec, [given.geometry, *records])


def each_writer(folders: dict[int, Path], geometry: Geometry, treatment: str) -> Iterator[tuple[int, Writers]]:
    """(layer, what its heads write), one layer in memory at a time."""
    for layer, folder in folders.items():
        yield layer, writers_of(read_layer_heads(folder, geometry), geometry, treatment)


if __name__ == "__main__":
    main()
