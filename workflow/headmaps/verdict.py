"""Which treatment of the layer norm reproduces the published numbers: a judgement in numbers and in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headmaps.published import TOLERANCE, BiasCandidate, Compared


def verdict(
    reference: str, found: Mapping[str, Sequence[Compared]], biases: Mapping[str, Sequence[BiasCandidate]]
) -> dict[str, Any]:
    """Which treatment reproduces the published numbers, as plain JSON.

    Args:
        reference: the name of the published numbers.
        found: treatment -> what `compared` returned. biases: treatment -> what `bias_candidates` returned.
    """
    treatments = {name: _judged(found[name], biases[name]) for name in found}
    passed = [name for name, judged in treatments.items() if judged["reproduces"]]
    passed.sort(key=lambda name: float(treatments[name]["largest"]))
    return {
        "reference": reference,
        "tolerance": TOLERANCE,
        "reproduced_by": passed[0] if passed else None,
        "also_by": passed[1:],
        "under": list(found),
        "compared": list(next(iter(treatments.values()))["quantities"]),
        "treatments": treatments,
    }


def _judged(found: Sequence[Compared], biases: Sequence[BiasCandidate]) -> dict[str, Any]:
    quantities = {}
    for one in found:
        place = int(one.difference.argmax())
        quantities[f"{one.matrix} {one.quantity}"] = {
            "numbers": len(one.published),
            "largest": _finite(one.largest),
            "reproduced": one.reproduced,
            "at": {name: int(getattr(one, name)[place]) for name in ("layer", "head", "index")},
            "published": float(one.published[place]),
            "ours": _finite(float(one.ours[place])),
        }
    lines: dict[str, Any] = {}
    for candidate in biases:
        line = lines.setdefault(f"{candidate.matrix} {candidate.side}", {"matches": None, "candidates": {}})
        name = " + ".join(candidate.names)
        line["candidates"][name] = candidate.largest
        if candidate.matches and line["matches"] is None:
            line["matches"] = name
    return {
        "reproduces": all(one.reproduced for one in found),
        "largest": _finite(max(one.largest for one in found)),
        "quantities": quantities,
        "bias_lines": lines,
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def report(judged: Mapping[str, Any]) -> str:
    """A verdict in words: the largest difference of every quantity under every treatment, and the conclusion."""
    treatments = {name: judged["treatments"][name] for name in judged["under"]}
    width = max(len(name) for each in treatments.values() for name in each["quantities"])
    columns = {name: max(len(name), 12) for name in treatments}
    lines = [" ".join([f"{'largest difference':<{width}}", *(f"{name:>{w}}" for name, w in columns.items())])]
    for quantity in judged["compared"]:
        cells = [f"{_cell(treatments[name]['quantities'][quantity]):>{columns[name]}}" for name in treatments]
        lines.append(" ".join([f"{quantity:<{width}}", *cells]))
    lines += ["* beyond the tolerance", ""]
    lines += [line for name, each in treatments.items() for line in _bias_report(name, each["bias_lines"])]
    best = judged["reproduced_by"]
    if best is None:
        lines.append(f"{judged['reference']}: not reproduced under any of {', '.join(treatments)}")
    else:
        also = f" (and by {', '.join(judged['also_by'])})" if judged["also_by"] else ""
        largest = treatments[best]["largest"]
        lines.append(f"{judged['reference']}: reproduced by {best}{also}; the largest difference is {largest:.2g}")
    return "\n".join(lines)


def _cell(quantity: Mapping[str, Any]) -> str:
    largest = "no such" if quantity["largest"] is None else f"{quantity['largest']:.2e}"
    return f"{largest}{' ' if quantity['reproduced'] else '*'}"


def _bias_report(treatment: str, lines: Mapping[str, Any]) -> Iterator[str]:
    for place, line in lines.items():
        nearest = min(line["candidates"].items(), key=lambda item: item[1], default=None)
        if line["matches"]:
            yield f"bias line, {place} side, {treatment}: it is {line['matches']}"
        elif nearest:
            yield f"bias line, {place} side, {treatment}: none matches; nearest is {nearest[0]}, {nearest[1]:.2g} off"
