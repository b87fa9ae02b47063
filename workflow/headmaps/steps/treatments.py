"""Put the norm treatments of one model side by side: a table of each quantity by head, and a figure a matrix.

Spec: `model`, `treatments` (two or more; the first is what the others are compared with), `matrices`. `--tables` are
their heads.csv in that order, `--figures` all formats of the first matrix, then of the next.
"""

from collections.abc import Sequence

from headmaps.steps.command import arguments, step, write_made

FLAGS = ("--geometry", "--source", "--tables...", "--table", "--figures...", "--record")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("treatments"):
        given = arguments(__doc__, FLAGS, argv)
        from headmaps.comparison import read_heads, treatment_changes
        from headmaps.figures import captions, treatments
        from headmaps.figures.style import save
        from headmaps.records import read_json, write_record
        from headmaps.tables import write_csv

        geometry, source = read_json(given.geometry), read_json(given.source)
        model, names, matrices = (given.spec[name] for name in ("model", "treatments", "matrices"))
        table = treatment_changes(names, [read_heads(path) for path in given.tables])
        write_csv(given.table, table)
        formats = len(given.figures) // len(matrices)
        facts = {}
        for number, matrix in enumerate(matrices):
            title = f"{model}: norm treatments, {captions.matrix_name(matrix)}"
            opening = treatments.frame(model, source, geometry, names, matrix)
            sheet = treatments.draw(table, matrix, title, opening)
            save(sheet, given.figures[number * formats : (number + 1) * formats])
            facts[matrix] = {"caption": sheet.caption}
        files = {path.name: path for path in (given.table, *given.figures)}
        write_record(given.record, "treatments", given.spec, files, facts)
        write_made(given.record, "treatments", given.spec, [given.geometry, given.source, *given.tables])


if __name__ == "__main__":
    main()
