"""Verify the results of a configuration, which is the spec: what `headmaps verify` prints, and its exit status."""

from collections.abc import Sequence

from headmaps.config import read_config
from headmaps.findings import report, wrong
from headmaps.plan import Plan
from headmaps.steps.command import arguments, step
from headmaps.verification import verify


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step; nothing is made or changed."""
    with step("verify"):
        findings = verify(Plan.of(read_config(arguments(__doc__, [], argv).spec)))
        print(report(findings))
    if wrong(findings):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
