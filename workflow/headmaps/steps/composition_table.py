"""Make the table of the strongest pairs of heads of a model, and the figure of all pairs.

Spec: `model`, `layer_norm`, `pairs` (how many a way). `--compositions` are the composition step's arrays, one a layer,
ascending.
"""

from collections.abc import Sequence

from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--source", "--compositions...", "--records...", "--table", "--figures...", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("composition_table"):
        given = arguments(__doc__, FLAGS, argv)
        import numpy as np

        from headmaps.composition import COLUMNS, strongest, ways_of
        from headmaps.errors import ResultError
        from headmaps.figures import captions, composition
        from headmaps.figures.data import arrays
        from headmaps.figures.style import save
        from headmaps.geometry import Geometry
        from headmaps.records import read_json, write_record
        from headmaps.tables import write_csv

        plain, source = read_json(given.geometry), read_json(given.source)
        geometry = Geometry.from_json(plain)
        if len(given.compositions) != len(geometry.layers):
            what = f"{len(given.compositions)} files were given for {len(geometry.layers)} layers"
            raise ResultError(what, where="--compositions", expected="one for each layer, ascending")
        model, d = given.spec["model"], geometry.d_model
        files = dict(zip(geometry.layers, map(arrays, given.compositions), strict=True))
        ways = [way.name for way in ways_of(geometry)]
        pairs = {way: strongest(files.items(), d, way, given.spec["pairs"]) for way in ways}
        rows = [row for way in ways for row in pairs[way]]
        write_csv(given.table, {name: np.array([row[name] for row in rows]) for name in COLUMNS})
        pictures = [composition.picture(geometry.layers, files, d, way) for way in ways]
        frame = captions.frame(model, source, plain, given.spec["layer_norm"])
        sheet = composition.draw(pictures, pairs, geometry.layers, d, f"{model}: composition between heads", frame)
        save(sheet, given.figures)
        written = {path.name: path for path in (given.table, *given.figures)}
        write_record(given.record, "composition_table", given.spec, written, {"caption": sheet.caption})
        write_made(given.record, "composition_table", given.spec, [given.geometry, given.source, *given.records])


if __name__ == "__main__":
    main()
