"""Make the interactive page of one model."""

from collections.abc import Sequence

from headmaps.atlas.data import Inputs, ModelData
from headmaps.atlas.facts import making
from headmaps.atlas.page import MODEL_SCRIPTS, write_page
from headmaps.geometry import read_geometry
from headmaps.records import read_json, write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = (
    *("--geometry", "--source", "--heads-csv...", "--vectors...", "--decompositions...", "--records..."),
    *("--output", "--record"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; files are given by treatment, then by matrix, then by layer."""
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
        )
        data = ModelData(inputs, making(inputs, read_json(given.source), given.spec))
        write_page(given.output, "model.html", MODEL_SCRIPTS, data.manifest(), data.blocks())
        write_record(given.record, "atlas", given.spec, {"page": given.output})
        write_made(given.record, "atlas", given.spec, [given.geometry, given.source, *given.records])


if __name__ == "__main__":
    main()
