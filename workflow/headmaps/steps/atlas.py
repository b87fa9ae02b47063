"""Make the interactive page of one model."""

from collections.abc import Sequence
from pathlib import Path

from headmaps.atlas.bands import States
from headmaps.atlas.data import Inputs, ModelData
from headmaps.atlas.facts import making
from headmaps.atlas.page import MODEL_SCRIPTS, assets, write_page
from headmaps.errors import ResultError
from headmaps.geometry import read_geometry
from headmaps.records import read_json, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = (
    *("--geometry", "--source", "--heads-csv...", "--vectors...", "--decompositions...", "--states...", "--heads..."),
    *("--records...", "--output", "--record"),
)


def paired_states(states: Sequence[Path], heads: Sequence[Path]) -> tuple[States, ...]:
    """The sampled hidden states by layer: two files (input, output) and a folder of head matrices each, or nothing."""
    if len(states) != 2 * len(heads):
        what = f"{len(states)} files of hidden states for {len(heads)} layers"
        raise ResultError(what, expected="two files, input and output, for each layer's folder of head matrices")
    return tuple(States(states[2 * i], states[2 * i + 1], folder) for i, folder in enumerate(heads))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; files are given by treatment, then by matrix, then by layer, in the order of the spec."""
    with step("atlas"):
        given = arguments(__doc__, FLAGS, argv)
        inputs = Inputs(
            model=given.spec["model"],
            treatments=tuple(given.spec["layer_norms"]),
            matrices=tuple(given.spec["matrices"]),
            geometry=read_geometry(given.geometry),
            heads_csv=tuple(given.heads_csv),
            vectors=tuple(given.vectors),
            decompositions=tuple(given.decompositions),
            states=paired_states(given.states, given.heads),
        )
        data = ModelData(inputs, making(inputs, read_json(given.source), given.spec))
        write_page(given.output, "model.html", MODEL_SCRIPTS, data.manifest(), data.blocks())
        write_record(given.record, "atlas", given.spec, {"page": given.output})
        small = [given.geometry, given.source, *given.states, *given.records]
        small += [folder.with_suffix(".json") for folder in given.heads]
        write_made(given.record, "atlas", given.spec, small, assets())


if __name__ == "__main__":
    main()
