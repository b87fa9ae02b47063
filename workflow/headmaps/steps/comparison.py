"""Compare several models, the training revisions of one, or two related checkpoints, under one norm treatment.

Spec: `name`, `kind` (models | training | pair), `models` (their names, in the order of all lists of files),
`layer_norm`, `matrices` (those drawn). `--tables` are the models' heads.csv. A pair also needs `--first` and
`--second`: the two models' head folders, one a layer, ascending. `--outputs` are the tables of
`figures.names.COMPARISON_TABLES[kind]` in that order; `--figures` all formats of the first matrix, then of the next.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headmaps.steps.command import arguments, step, write_made

if TYPE_CHECKING:
    from headmaps.comparison import Columns, Member

FLAGS = (
    "--geometries...", "--tables...", "--records...", "--first...", "--second...", "--outputs...", "--figures...",
    "--record",
)  # fmt: skip

MOST_CHANGED = 50


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("comparison"):
        given = arguments(__doc__, FLAGS, argv)
        from headmaps.comparison import members, read_heads, shared_matrices, shared_nulls
        from headmaps.errors import ConfigError
        from headmaps.figures import captions, comparison
        from headmaps.figures.style import save
        from headmaps.geometry import read_geometry
        from headmaps.records import write_record
        from headmaps.tables import write_csv

        spec = given.spec
        models = members(
            spec["models"], list(map(read_geometry, given.geometries)), list(map(read_heads, given.tables))
        )
        if missing := [matrix for matrix in spec["matrices"] if matrix not in shared_matrices(models)]:
            what = f"not all models of comparison {spec['name']!r} have the matrix {missing[0]!r}"
            raise ConfigError(what, where="comparisons", do="compare models that share their matrices")
        kind = next(iter(shared_nulls(models)), None)
        tables = tables_of(spec["kind"], models, kind, spec["layer_norm"], given.first, given.second)
        for path, table in zip(given.outputs, tables, strict=True):
            write_csv(path, table)
        facts: dict[str, Any] = {"null": kind}
        formats = len(given.figures) // len(spec["matrices"])
        for number, matrix in enumerate(spec["matrices"]):
            title = f"{spec['name']}: {captions.matrix_name(matrix)}"
            opening = comparison.frame(spec["models"], matrix, spec["layer_norm"])
            if spec["kind"] == "pair":
                sheet = comparison.draw_pair(tables[0], matrix, title, opening)
            elif spec["kind"] == "training":
                sheet = comparison.draw_training(tables[1], tables[2], matrix, kind, title, opening)
            else:
                sheet = comparison.draw_models(tables[0], matrix, kind, title, opening)
            save(sheet, given.figures[number * formats : (number + 1) * formats])
            facts[matrix] = {"caption": sheet.caption}
        files = {path.name: path for path in (*given.outputs, *given.figures)}
        write_record(given.record, "comparison", spec, files, facts)
        write_made(given.record, "comparison", spec, [*given.geometries, *given.tables, *given.records])


def tables_of(
    wanted: str,
    models: "Sequence[Member]",
    null: str | None,
    layer_norm: str,
    first: Sequence[Path],
    second: Sequence[Path],
) -> "list[Columns]":
    """The tables of a kind of comparison, in the order of `COMPARISON_TABLES`.

    Raises:
        ConfigError: a pair is not two models; training revisions without a baseline have no onset.
    """
    from headmaps.comparison import layer_means, model_means, onsets, trajectories
    from headmaps.errors import ConfigError
    from headmaps.subspaces import pair_table, rows_of_largest

    if wanted == "models":
        return [layer_means(models), model_means(models)]
    if wanted == "training":
        if null is None:
            what = "a comparison along training needs a baseline that all revisions have"
            raise ConfigError(what, where="baselines: kinds", expected="kinds: [gaussian]", do="add it")
        table = trajectories(models)
        return [layer_means(models), table, onsets(table, null)]
    if len(models) != 2:
        what = f"a comparison of kind `pair` has two models, not {len(models)}"
        raise ConfigError(what, where="comparisons", do="name the base model first, then the fine-tuned one")
    table = pair_table(models[0], models[1], layer_norm, first, second)
    return [table, rows_of_largest(table, "weight_change", MOST_CHANGED)]


if __name__ == "__main__":
    main()
