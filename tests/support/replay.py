"""The article's own numbers in the form of our results, so that the comparison can be replayed and led astray."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headmaps.published import Reference, compared, read_reference
from headmaps.references import reference_files
from headmaps.verdict import verdict

ROOT = Path(__file__).resolve().parents[2]
NAME = "falcon-rw-1b"


def article() -> Reference:
    """The published numbers that ship with the project."""
    return read_reference([Path(file) for file in reference_files(NAME, ROOT / "workflow/reference")])


@dataclass
class Results:
    """What our tables and decompositions would hold: heads.csv's columns, and two decompositions of one layer."""

    heads: dict[str, np.ndarray]
    value: dict[str, np.ndarray]
    qk: dict[str, np.ndarray]


def results_like(reference: Reference) -> Results:
    """Results that give exactly the published numbers; what is not published is filled in to fit them."""
    heads = {
        "layer": reference.makeup["layer"].copy(),
        "head": reference.makeup["head"].copy(),
        "self_mean": reference.makeup["self"].copy(),
        "ortho_mean": reference.makeup["ortho"].copy(),
        "rotation_mean": reference.makeup["rotation"].copy(),
    }
    n_heads, r = len(reference.counts), len(reference.diagonal)
    value = {"sigma": np.ones((n_heads, r)), "Z": np.zeros((n_heads, r, r)), "rank": np.full(n_heads, r)}
    qk = {"sigma": np.ones((n_heads, r)), "Z": np.zeros((n_heads, r, r)), "rank": np.full(n_heads, r)}
    for head, counts in enumerate(reference.counts):
        centres = np.repeat(np.linspace(-0.99, 0.99, 100), counts)
        np.fill_diagonal(value["Z"][head][: len(centres), : len(centres)], centres)
        value["rank"][head] = len(centres)
    fill(value, reference, "value", np.sign(reference.diagonal))
    fill(qk, reference, "qk", np.ones(r))
    value["rank"][reference.head] = r
    value["Z"][reference.head][list(reference.rows)] = reference.Z
    return Results(heads, value, qk)


def fill(arrays: dict[str, np.ndarray], reference: Reference, matrix: str, signs: np.ndarray) -> None:
    """Give the published head its sigma and a Z of the published self and rotation."""
    published, r = reference.sigma[matrix], len(signs)
    Z = np.diag(signs * published["self"] / published["sigma"])
    Z[np.arange(r), (np.arange(r) + 1) % r] = published["rotation"] / published["sigma"]
    arrays["sigma"][reference.head], arrays["Z"][reference.head] = published["sigma"], Z


def judge(reference: Reference, ours: Results, **more: Results) -> dict[str, Any]:
    """The verdict on results under `raw`, and on more results under treatments of other names."""
    every = {"raw": ours} | more
    found = {name: compared(reference, each.heads, each.value, each.qk) for name, each in every.items()}
    return verdict(NAME, found, {name: [] for name in every})


def failing(judged: dict[str, Any], treatment: str = "raw") -> set[str]:
    """The quantities that are not reproduced."""
    quantities = judged["treatments"][treatment]["quantities"]
    return {name for name, found in quantities.items() if not found["reproduced"]}
