"""What `headmaps verify` finds: one thing that is not as it should be, its cause, and what to run."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["missing", "altered", "stale", "unknown"]
Cause = Literal["never made", "edited", "config", "code", "input", "environment", "not in this config", "left over"]

SHOWN = 40
_BY_NAME = 8
RUN = "snakemake --cores all"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        path: the file.
        state: missing, altered (bytes differ from the record), stale (made from something else), unknown.
        cause: why.
        detail: what exactly differs.
        rule: the rule that makes it again; empty for what no rule makes.
        target: the file to ask that rule for.
    """

    path: str
    state: State
    cause: Cause
    detail: str
    rule: str = ""
    target: str = ""

    @property
    def run(self) -> str:
        """The command that puts it right; empty where there is nothing to run."""
        if not self.rule:
            return ""
        if self.state == "missing":
            return RUN
        return f"{RUN} --forcerun {shlex.quote(self.target or self.rule)}"


def wrong(findings: Sequence[Finding]) -> list[Finding]:
    """Those that a verified run must not have; files that no rule makes do no harm."""
    return [finding for finding in findings if finding.state != "unknown"]


def report(findings: Sequence[Finding], *, everything: bool = False) -> str:
    """All findings in words, and what to run.

    Args:
        everything: every finding, not the first `SHOWN` of each state.
    """
    lines = [
        line for state in ("missing", "altered", "stale", "unknown") for line in _listed(findings, state, everything)
    ]
    return "\n".join([*lines, _conclusion(wrong(findings))])


def _listed(findings: Sequence[Finding], state: str, everything: bool) -> Iterator[str]:
    found = [finding for finding in findings if finding.state == state]
    if not found:
        return
    yield f"{state} ({len(found)})"
    for finding in found if everything else found[:SHOWN]:
        yield f"  {finding.path}\n    cause: {finding.cause}; {finding.detail}"
    if not everything and len(found) > SHOWN:
        yield f"  ... and {len(found) - SHOWN} more; --all prints them"
    yield ""


def _conclusion(found: Sequence[Finding]) -> str:
    if not found:
        return "verified: every result is what its recorded inputs, code and configuration give"
    counts = ", ".join(f"{count} {state}" for state, count in Counter(finding.state for finding in found).items())
    return f"not verified: {counts}\nrun:  {advice(found)}"


def advice(found: Sequence[Finding]) -> str:
    """One command that makes again what is wrong: file by file where they are few, else by rule.

    The engine sees what is missing by itself; what was altered or has lost its history it must be told of.
    """
    unseen = [finding for finding in found if finding.state != "missing" and finding.rule]
    if not unseen:
        return RUN
    names = list(dict.fromkeys(finding.target or finding.rule for finding in unseen))
    if len(names) > _BY_NAME:
        names = list(dict.fromkeys(finding.rule for finding in unseen))
    return f"{RUN} --forcerun {' '.join(map(shlex.quote, names))}"
