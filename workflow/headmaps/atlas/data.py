"""What a model's page holds: a manifest of small facts, and blocks of packed numbers by name.

Blocks (decoded by `assets/blocks.js`; m, l number the matrices and layers of the grid, t the treatments):
    column-t-NAME   float64, one number per head matrix of the grid; of a column that follows from others, the bits
                    in which it differs from what they predict
    cloud-m         float32 (3, draws): self, ortho and rotation means of random heads
    spectrum-m      float32 (3, r): mean, 5th and 95th percentile of random spectra with sum of squares 1
    pairs-t-m-l     float32 (names, heads, r), names as in the manifest
    z-t-m-l         thousandths (heads, r, r)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headmaps.atlas import columns as words
from headmaps.atlas.bands import NAMES as BANDS
from headmaps.atlas.bands import States, layer_bands
from headmaps.atlas.packing import deflate, pack_float64, pack_rounded, pack_thousandths, planes
from headmaps.atlas.results import MATRICES, Float, Grid, grid_of, read_decomposition, read_heads_csv, read_pairs
from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.haar import gaussian_sigmas, haar_blocks, haar_means
from headmaps.records import sha256_of_file
from headmaps.seeds import generator

ROOM = 7_000_000
"""Entries of Z that fit beside the main treatment's before a page grows beyond 25 MB (768 heads of 64 x 64, twice)."""

CLOUD_DRAWS, SPECTRUM_DRAWS = 400, 200


@dataclass(frozen=True)
class Inputs:
    """The files of one model, in the order of the treatments.

    `decompositions` runs over the treatments, in each over the matrices, in each over the layers.
    """

    model: str
    treatments: tuple[str, ...]
    matrices: tuple[str, ...]
    geometry: Geometry
    heads_csv: tuple[Path, ...]
    vectors: tuple[Path, ...]
    decompositions: tuple[Path, ...]
    states: tuple[States, ...] = ()
    """Sampled hidden states by layer, if there are any."""

    def __post_init__(self) -> None:
        expected = len(self.treatments) * len(self.matrices) * len(self.geometry.layers)
        counts = {
            "--heads-csv": (len(self.heads_csv), len(self.treatments)),
            "--vectors": (len(self.vectors), len(self.treatments)),
            "--decompositions": (len(self.decompositions), expected),
            "--heads": (len(self.states), len(self.geometry.layers) if self.states else 0),
        }
        for flag, (found, needed) in counts.items():
            if found != needed:
                what = f"{flag} names {found} files"
                raise ResultError(what, expected=f"{needed}: treatments x matrices x layers, or one per treatment")

    def decomposition(self, treatment: int, matrix: int, layer: int) -> Path:
        """The file of a treatment, matrix and layer, each by its number."""
        return self.decompositions[(treatment * len(self.matrices) + matrix) * len(self.geometry.layers) + layer]


class ModelData:
    """Everything of one model's page: `manifest()`, and `blocks()` one at a time, since Z does not fit in memory."""

    def __init__(self, inputs: Inputs, facts: Mapping[str, Any]) -> None:
        self.inputs, self.facts = inputs, facts
        self.grid: Grid = grid_of(inputs.geometry, inputs.matrices)
        self.tables = [read_heads_csv(path, self.grid) for path in inputs.heads_csv]
        entries = sum(len(self.grid.layers) * self.grid.n_heads * rank * rank for rank in self.grid.ranks)
        with_Z = max(1, ROOM // max(entries, 1))
        self.drawn = range(min(with_Z, len(inputs.treatments)))
        self.names = list(dict.fromkeys(name for numbers, _ in self.tables for name in numbers))
        self.kinds = words.kinds_of(self.names)
        self.comparable = [self._comparable(matrix) for matrix in range(len(self.grid.matrices))]
        self.pair_names = self._pair_names()

    def _comparable(self, matrix: int) -> bool:
        with np.load(self.inputs.decomposition(0, matrix, 0), allow_pickle=False) as arrays:
            return "comparable" not in arrays.files or bool(arrays["comparable"])

    def _pair_names(self) -> list[str]:
        lines = set(BANDS if self.inputs.states else ())
        for matrix in range(len(self.grid.matrices)):
            with np.load(self.inputs.decomposition(0, matrix, 0), allow_pickle=False) as arrays:
                lines |= {name for name in arrays.files if name.startswith(("bias_input_", "bias_output_"))}
        return [
            "sigma",
            "overlap",
            "rotation",
            "ortho",
            "gap",
            "eigenvalue_real",
            "eigenvalue_imaginary",
            *sorted(lines),
        ]

    def manifest(self) -> dict[str, Any]:
        """The small facts, as plain JSON values."""
        geometry = self.inputs.geometry
        return {
            "model": self.inputs.model,
            "treatments": [
                {"name": name, "columns": list(numbers), "words": words, "drawn": place in self.drawn}
                for place, (name, (numbers, words)) in enumerate(zip(self.inputs.treatments, self.tables, strict=True))
            ],
            "matrices": [
                {"name": name, "rank": rank, "comparable": comparable}
                | dict(zip(("label", "long", "input", "output"), MATRICES[name], strict=True))
                for name, rank, comparable in zip(self.grid.matrices, self.grid.ranks, self.comparable, strict=True)
            ],
            "layers": list(self.grid.layers),
            "n_heads": self.grid.n_heads,
            "d_model": geometry.d_model,
            "n_kv_heads": geometry.n_kv_heads,
            "notes": list(geometry.notes),
            "columns": [
                column | {"predicted": [self._rule(t, column["name"]) for t in range(len(self.tables))]}
                for column in words.describe_columns(self.names)
            ],
            "quantities": words.describe_quantities(self.names),
            "pairs": self.pair_names,
            "reference": [
                dict(zip(("self", "rotation", "ortho"), haar_means(geometry.d_model, rank), strict=True))
                for rank in self.grid.ranks
            ],
            "making": dict(self.facts),
        }

    def blocks(self) -> Iterator[tuple[str, str]]:
        """(name, packed text) of every block, those of the first view first."""
        for t, (numbers, _) in enumerate(self.tables):
            for name, values in numbers.items():
                rule = self._rule(t, name)
                packed = deflate(planes(words.correction(values, rule, numbers))) if rule else pack_float64(values)
                yield f"column-{t}-{name}", packed
        for m, rank in enumerate(self.grid.ranks):
            yield f"cloud-{m}", pack_rounded(random_means(self.inputs.geometry.d_model, rank))
            yield f"spectrum-{m}", pack_rounded(random_spectra(self.inputs.geometry.d_model, rank))
        for t in self.drawn:
            pairs = read_pairs(self.inputs.vectors[t], self.grid)
            for m in range(len(self.grid.matrices)):
                for l in range(len(self.grid.layers)):  # noqa: E741
                    yield from self._layer(t, m, l, {name: values[m][l] for name, values in pairs.items()})

    def _rule(self, t: int, name: str) -> tuple[str, str, str] | None:
        numbers = self.tables[t][0]
        return words.predicted(name, self.kinds, numbers) if name in numbers else None

    def _layer(self, t: int, m: int, l: int, pairs: dict[str, Float]) -> Iterator[tuple[str, str]]:  # noqa: E741
        path = self.inputs.decomposition(t, m, l)
        arrays = read_decomposition(path, pairs["sigma"])
        lines = dict(pairs)
        lines["eigenvalue_real"] = arrays["eigenvalues"].real
        lines["eigenvalue_imaginary"] = arrays["eigenvalues"].imag
        if self.inputs.states and self.comparable[m]:
            treatment, matrix = self.inputs.treatments[t], self.grid.matrices[m]
            lines |= layer_bands(self.inputs.states[l], self.inputs.geometry, treatment, matrix)
        empty = np.full(pairs["sigma"].shape, np.nan)
        stacked = np.stack([lines.get(name, arrays.get(name, empty)) for name in self.pair_names])
        yield f"pairs-{t}-{m}-{l}", pack_rounded(stacked)
        try:
            Z = arrays["Z"] if self.comparable[m] else np.full(arrays["Z"].shape, np.nan)
            yield f"z-{t}-{m}-{l}", pack_thousandths(Z)
        except ValueError as error:
            raise ResultError(f"Z: {error}", where=str(path), do=f"delete {path} and run snakemake") from None


def random_means(d: int, r: int) -> Float:
    """(3, draws): mean self, ortho and rotation of random heads of this shape, the cloud of the scatter."""
    Z = haar_blocks((generator("atlas", "cloud", d, r, draw) for draw in range(CLOUD_DRAWS)), d, r)
    overlap = np.diagonal(Z, axis1=1, axis2=2)
    inside = (Z**2).sum(axis=2)
    parts = (np.abs(overlap), np.sqrt(np.maximum(0, 1 - inside)), np.sqrt(np.maximum(0, inside - overlap**2)))
    return np.stack([part.mean(axis=1) for part in parts])


def random_spectra(d: int, r: int) -> Float:
    """(3, r): mean, 5th and 95th percentile of the spectra of random heads, their squares scaled to sum 1."""
    sigma = gaussian_sigmas((generator("atlas", "spectrum", d, r, draw) for draw in range(SPECTRUM_DRAWS)), d, r)
    sigma = sigma / np.linalg.norm(sigma, axis=1, keepdims=True)
    return np.stack([sigma.mean(axis=0), *np.quantile(sigma, [0.05, 0.95], axis=0)])


def files_read(inputs: Inputs) -> list[dict[str, str]]:
    """Name and sha256 of every results file that the page is made of (the name within the model's results)."""
    files = [*inputs.heads_csv, *inputs.vectors, *inputs.decompositions]
    return [{"file": "/".join(path.parts[-4:]), "sha256": sha256_of_file(path)} for path in files]
