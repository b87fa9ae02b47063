"""Draw one figure, or one part of it, of one model and treatment.

The spec names the figure and what it draws (`figure`, `model`, `layer_norm`, `layers`, `matrices`, `heads`, `formats`,
and `histogram` or `baselines` where they matter). Decompositions are given by matrix, then by layer, in the spec's
order. `--states` and `--heads`, if given, hold for each layer the sampled hidden states (`input`, `output`) and the
folder of head matrices.
"""

from collections.abc import Sequence
from pathlib import Path

from headmaps.steps.command import arguments, step, write_made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("figure"):
        given = arguments(
            __doc__,
            [
                "--geometry", "--source", "--heads-csv...", "--decompositions...", "--states...", "--heads...",
                "--records...", "--outputs...", "--record",
            ],
            argv,
        )  # fmt: skip
        from headmaps.figures.drawing import Request, draw_all
        from headmaps.records import read_json, write_record

        request = Request.of(
            given.spec,
            read_json(given.geometry),
            read_json(given.source),
            table=next(iter(given.heads_csv), None),
            decompositions=given.decompositions,
            states=given.states,
            heads=given.heads,
            outputs=given.outputs,
        )
        facts = draw_all(request)
        write_record(given.record, "figure", given.spec, named(given.outputs), facts)
        small = [given.geometry, given.source, *given.heads_csv, *given.states, *given.records]
        small += [folder.with_suffix(".json") for folder in given.heads]
        write_made(given.record, "figure", given.spec, small)


def named(outputs: Sequence[Path]) -> dict[str, Path]:
    """File name -> path; a figure's files have distinct names."""
    return {path.name: path for path in outputs}


if __name__ == "__main__":
    main()
