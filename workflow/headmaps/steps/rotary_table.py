"""Make the table and the figure of a model's QK matrices at several distances.

Spec: `model`, `layer_norm`, `matrix`. `--decompositions` are the rotary step's arrays, one a layer, ascending.
"""

from collections.abc import Sequence

from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--source", "--decompositions...", "--records...", "--table", "--figures...", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("rotary_table"):
        given = arguments(__doc__, FLAGS, argv)
        from headmaps.figures import captions, rotary
        from headmaps.figures.style import save
        from headmaps.geometry import Geometry
        from headmaps.positions import position_notes
        from headmaps.records import read_json, write_record
        from headmaps.tables import write_csv

        plain, source = read_json(given.geometry), read_json(given.source)
        geometry = Geometry.from_json(plain)
        model, treatment, matrix = (given.spec[name] for name in ("model", "layer_norm", "matrix"))
        found = rotary.read(geometry.layers, given.decompositions)
        write_csv(given.table, rotary.table(found, matrix))
        each = [position_notes(geometry, layer, matrix) for layer in geometry.layers]
        notes = list(dict.fromkeys(note for layer in each for note in layer))
        title = f"{model}: {captions.matrix_name(matrix)} at a distance"
        sheet = rotary.draw(found, title, captions.frame(model, source, plain, treatment, matrix), notes)
        save(sheet, given.figures)
        files = {path.name: path for path in (given.table, *given.figures)}
        facts = {"caption": sheet.caption, "positions": notes, "ortho_root_mean_square_moved": found.ortho_moved}
        write_record(given.record, "rotary_table", given.spec, files, facts)
        write_made(given.record, "rotary_table", given.spec, [given.geometry, given.source, *given.records])


if __name__ == "__main__":
    main()
