"""Print the verdicts of models that are compared with published numbers; the exit status says whether all reproduce.

`--verdicts` are the records of the step `published`; none is an error, since then there is nothing to judge.
"""

from collections.abc import Sequence

from headmaps.errors import ConfigError
from headmaps.records import read_json
from headmaps.steps.command import arguments, step
from headmaps.verdict import report


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; exit status 1 if a model does not reproduce its published numbers under any treatment."""
    with step("published"):
        given = arguments(__doc__, ["--verdicts..."], argv)
        if not given.verdicts:
            what = "no model of this configuration says which published numbers it is compared with"
            do = "snakemake --cores all published --configfile config/paper.yaml"
            raise ConfigError(what, where="models: published", do=do)
        judged = [read_json(path) for path in given.verdicts]
    for record in judged:
        print(f"{record['spec']['model']}\n{report(record['facts'])}\n", flush=True)
    if any(record["facts"]["reproduced_by"] is None for record in judged):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
