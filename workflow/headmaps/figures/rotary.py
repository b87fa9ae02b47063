"""The QK matrix at several distances: self against rotation, and the size of the matrix, by distance and layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from headmaps.errors import ResultError
from headmaps.figures.data import arrays
from headmaps.figures.panels import Panels
from headmaps.figures.style import Sheet, color_key, ordered_colors
from headmaps.quantities import REGISTRY

Float = NDArray[np.float64]
ALL_HEADS = "#000000"


@dataclass(frozen=True)
class Distances:
    """What `rotary/{matrix}/layer-LL.npz` holds, of all layers of a model.

    Attributes:
        layers: (L,). offsets: (n,) distances.
        scalars: quantity -> (L, n, H), the registry's. largest: (L, n, H) sigma_1. rank: (L, n, H).
        ortho_rms: (L, n, H) root mean square of ortho over a head's pairs, which a rotation cannot change.
    """

    layers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scalars: Mapping[str, Float]
    largest: Float
    rank: NDArray[np.int64]
    ortho_rms: Float

    @property
    def ortho_moved(self) -> float:
        """The largest change of the root mean square of ortho with distance, of all heads."""
        moved = self.ortho_rms.max(axis=1) - self.ortho_rms.min(axis=1)
        return float(np.nanmax(moved, initial=0.0))


def read(layers: Sequence[int], paths: Sequence[Path]) -> Distances:
    """Read one matrix's files, one for each layer in that order.

    Raises:
        ResultError: their number is wrong, or their distances differ.
    """
    if len(layers) != len(paths) or not paths:
        what = f"{len(paths)} files were given for {len(layers)} layers"
        raise ResultError(what, where="--decompositions", expected="one for each layer, ascending")
    found = [arrays(path) for path in paths]
    for path, layer in zip(paths, found, strict=True):
        if not np.array_equal(layer["offsets"], found[0]["offsets"]):
            raise ResultError("the distances differ between layers", where=str(path), do="run snakemake")
    rank = np.stack([layer["rank"] for layer in found])
    counts = np.arange(found[0]["sigma"].shape[-1]) < rank[..., None]
    ortho2 = np.where(counts, np.stack([layer["ortho"] for layer in found]) ** 2, 0.0).sum(axis=-1)
    return Distances(
        np.array(layers, dtype=np.int64),
        found[0]["offsets"],
        {name: np.stack([layer[f"q_{name}"] for layer in found]) for name in REGISTRY if f"q_{name}" in found[0]},
        np.stack([layer["sigma"][..., 0] for layer in found]),
        rank,
        np.sqrt(np.divide(ortho2, rank, out=np.full(ortho2.shape, np.nan), where=rank > 0)),
    )


def table(found: Distances, matrix: str) -> dict[str, NDArray[Any]]:
    """Columns of rotary-{matrix}.csv: one row per layer, head and distance."""
    L, n, H = found.largest.shape
    layer, head, place = (axis.ravel() for axis in np.meshgrid(range(L), range(H), range(n), indexing="ij"))
    columns: dict[str, NDArray[Any]] = {
        "layer": found.layers[layer],
        "head": head,
        "matrix": np.full(layer.size, matrix),
        "offset": found.offsets[place],
        "rank": found.rank[layer, place, head],
        "sigma_max": found.largest[layer, place, head],
        "ortho_root_mean_square": found.ortho_rms[layer, place, head],
    }
    return columns | {name: values[layer, place, head] for name, values in found.scalars.items()}


def caption(found: Distances, frame: str, notes: Sequence[str]) -> str:
    """What a line is, what cannot change, and what stands between the matrix and the score."""
    text = (
        f"{frame} At distance D (current minus attended position) the QK matrix is W_Q R(D) W_Kᵀ. A coloured line is "
        "the mean over one layer's heads, the black one the mean over all heads; distances are evenly spaced, not to "
        "scale. Norm and largest singular value are divided by each head's own at the first distance. "
    )
    if np.array_equal(found.largest[:, :1] * np.ones_like(found.largest), found.largest):
        text += "Here no distance changes anything. "
    text += (
        "A rotation turns what is read within its subspace and leaves both subspaces as they are: the root mean square "
        f"of ortho over a head's pairs cannot change with distance (here by {found.ortho_moved:.1g} at most, which is "
        "rounding), and what the mean square of self loses, that of rotation gains. "
    )
    return text + " ".join(f"{note[0].upper()}{note[1:]}." for note in notes)


def _mean(values: Float, axis: int | tuple[int, ...]) -> Float:
    there = np.isfinite(values)
    number = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.asarray(np.divide(total, number, out=np.full(np.shape(total), np.nan), where=number > 0))


def _relative(values: Float) -> Float:
    first = np.broadcast_to(values[:, :1], values.shape)
    return np.asarray(np.divide(values, first, out=np.full(values.shape, np.nan), where=first > 0))


def draw(found: Distances, title: str, frame: str, notes: Sequence[str]) -> Sheet:
    """Four panels: self, rotation, Frobenius norm and largest singular value against distance."""
    panels = Panels(4, height=1.75, right=0.52)
    sheet = Sheet(panels.total, title, caption(found, frame, notes))
    drawn = (
        ("self (mean)", found.scalars["self_mean"]),
        ("rotation (mean)", found.scalars["rotation_mean"]),
        ("Frobenius norm, relative", _relative(found.scalars["frobenius_norm"])),
        ("largest σ, relative", _relative(found.largest)),
    )
    colors = ordered_colors(len(found.layers))
    for number, (label, values) in enumerate(drawn):
        axes = panels.axes(sheet, number, label)
        for color, line in zip(colors, _mean(values, 2), strict=True):
            axes.plot(line, color=color, lw=0.8)
        axes.plot(_mean(values, (0, 2)), color=ALL_HEADS, lw=1.6, marker="o", ms=2.5)
        _distance_axis(axes, found.offsets)
    left, top = panels.place(1)
    key = sheet.axes(left + panels.width + 0.1, top, 0.09, panels.height)
    color_key(key, colors, [int(layer) for layer in found.layers], "layer")
    return sheet


def _distance_axis(axes: Axes, offsets: NDArray[np.int64]) -> None:
    axes.set_xticks(range(len(offsets)), [str(int(offset)) for offset in offsets])
    axes.set_xlabel("distance D (positions)")
