"""Compare a model with published numbers under each treatment: a table, a scatter, and a verdict, which is the record.

Spec: `model`, `reference` (name of the published numbers), `treatments`. `--tables` are their heads.csv in that order,
`--decompositions` their value and QK decompositions of the published layer: value of the first treatment, QK of the
first, value of the next, ... `--reference` are the files of published numbers.
"""

from collections.abc import Sequence

from headmaps.steps.command import arguments, step, write_made

FLAGS = (
    "--geometry", "--source", "--tables...", "--decompositions...", "--records...", "--reference...", "--table",
    "--figures...", "--record",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step. It succeeds whatever the verdict is; `headmaps.steps.verdict` tells it by its exit status."""
    with step("published"):
        given = arguments(__doc__, FLAGS, argv)
        from headmaps.figures import captions
        from headmaps.figures import published as scatter
        from headmaps.figures.style import save
        from headmaps.published import bias_candidates, compared, comparison_table, read_reference, value_rows
        from headmaps.records import read_arrays, read_json, write_record
        from headmaps.tables import write_csv
        from headmaps.verdict import verdict

        spec, reference = given.spec, read_reference(given.reference)
        found, biases = {}, {}
        for number, treatment in enumerate(spec["treatments"]):
            value, qk = (read_arrays(path) for path in given.decompositions[2 * number : 2 * number + 2])
            found[treatment] = compared(reference, value_rows(given.tables[number]), value, qk)
            biases[treatment] = bias_candidates(reference, {"value": value, "qk": qk})
        judged = verdict(spec["reference"], found, biases)
        write_csv(given.table, comparison_table(found))
        source, geometry = read_json(given.source), read_json(given.geometry)
        title = f"{spec['model']}: ours against the published numbers"
        sheet = scatter.draw(found, judged, title, f"{captions.identity(spec['model'], source)}.")
        save(sheet, given.figures)
        files = {path.name: path for path in (given.table, *given.figures)}
        facts = judged | {"caption": sheet.caption, "dtype": geometry["dtype"]}
        write_record(given.record, "published", spec, files, facts)
        small = [given.geometry, given.source, *given.records, *given.reference]
        write_made(given.record, "published", spec, small)


if __name__ == "__main__":
    main()
