"""Make the page that links the models' atlases and compares the models."""

from collections.abc import Sequence

from headmaps.atlas.models import IndexData, Model
from headmaps.atlas.page import INDEX_SCRIPTS, assets, write_page
from headmaps.errors import ResultError
from headmaps.geometry import read_geometry
from headmaps.records import write_record
from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometries...", "--heads-csv...", "--records...", "--output", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; geometries and tables are given in the order of the spec's models."""
    with step("atlas_index"):
        given = arguments(__doc__, FLAGS, argv)
        listed = given.spec["models"]
        if not len(listed) == len(given.geometries) == len(given.heads_csv):
            what = f"{len(listed)} models, {len(given.geometries)} geometries, {len(given.heads_csv)} tables of heads"
            raise ResultError(what, expected="one geometry and one table for each model")
        models = [
            Model(
                name=model["name"],
                treatment=model["layer_norm"],
                matrices=tuple(model["matrices"]),
                geometry=read_geometry(geometry),
                heads_csv=heads_csv,
                page=model["page"],
            )
            for model, geometry, heads_csv in zip(listed, given.geometries, given.heads_csv, strict=True)
        ]
        data = IndexData(models)
        write_page(given.output, "index.html", INDEX_SCRIPTS, data.manifest(), data.blocks())
        write_record(given.record, "atlas_index", given.spec, {"page": given.output})
        write_made(given.record, "atlas_index", given.spec, [*given.geometries, *given.records], assets())


if __name__ == "__main__":
    main()
