"""How far each quantity is determined by the precision of the stored weights.

A stored weight stands for every number that rounds to it. One other choice of those numbers is drawn, uniform within
half a rounding step of each, and decomposed; the change of each quantity is what the storage leaves open, to about its
order of magnitude. Singular values that move by more than their distance are one block for all that the file can say.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import decompose
from headmaps.layer_factors import LayerFactors
from headmaps.quantities import REGISTRY, HeadPairs, quantities
from headmaps.seeds import generator

if TYPE_CHECKING:
    from headmaps.geometry import Geometry
    from headmaps.heads import LayerHeads

Array = NDArray[Any]
Float = NDArray[np.float64]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format: `mantissa` stored bits, smallest normal exponent `least`."""

    mantissa: int
    least: int

    def step(self, W: Float, axis: int) -> Float:
        """Distance between neighbouring numbers of the format, at each weight (`axis` does not matter here)."""
        _, exponent = np.frexp(W)  # |W| = m 2^exponent with m in [1/2, 1)
        exponent = np.where(W == 0, self.least, np.maximum(exponent - 1, self.least))
        return np.asarray(np.ldexp(1.0, exponent - self.mantissa))


@dataclass(frozen=True)
class BlockFormat:
    """A quantised format: `block` neighbours of a row share a scale.

    The distance of its levels is the block's largest magnitude (`affine`: its range) over `levels`. Blocks are seen in
    the weights themselves, which is exact where the format places its outermost level on the largest weight.
    """

    block: int
    levels: int
    affine: bool = False

    def step(self, W: Float, axis: int) -> Float:
        """Distance between neighbouring levels, at each weight.

        Args:
            W: (m, n).
            axis: the axis along which the file stores a row.
        """
        rows = np.moveaxis(W, axis, -1)
        n = rows.shape[-1]
        padded = np.pad(rows, ((0, 0), (0, -n % self.block)), mode="edge")
        blocks = padded.reshape(len(rows), -1, self.block)
        size = blocks.max(axis=-1) - blocks.min(axis=-1) if self.affine else np.abs(blocks).max(axis=-1)
        return np.moveaxis(np.repeat(size / self.levels, self.block, axis=-1)[:, :n], -1, axis)


FORMATS: dict[str, FloatFormat | BlockFormat] = {
    "F64": FloatFormat(52, -1022),
    "F32": FloatFormat(23, -126),
    "F16": FloatFormat(10, -14),
    "BF16": FloatFormat(7, -126),
    "F8_E4M3": FloatFormat(3, -6),
    "F8_E5M2": FloatFormat(2, -14),
    "Q8_0": BlockFormat(32, 127),
    "Q5_0": BlockFormat(32, 16),
    "Q5_1": BlockFormat(32, 31, affine=True),
    "Q4_0": BlockFormat(32, 8),
    "Q4_1": BlockFormat(32, 15, affine=True),
    "Q6_K": BlockFormat(16, 32),
    "Q5_K": BlockFormat(32, 31, affine=True),
    "Q4_K": BlockFormat(32, 15, affine=True),
    "Q3_K": BlockFormat(16, 4),
    "Q2_K": BlockFormat(16, 3, affine=True),
}
"""By the names of safetensors and GGUF. Block sizes and levels as in ggml's block structures (ggml-common.h)."""


def formats_of(geometry: "Geometry") -> list[FloatFormat | BlockFormat]:
    """The formats that the attention weights were read from; none if one of them is not in the table."""
    names = (geometry.quantised or geometry.dtype).split("+")
    return [FORMATS[name] for name in names] if all(name in FORMATS for name in names) else []


class Perturbed:
    """Stored factors with rounding noise, made one at a time; stands in for the array (n, m, k) they come from.

    Args:
        stored: (n, m, k).
        formats: how they were stored; of several, the coarsest counts at each weight.
        axis: which axis of one factor is a row of the file.
        key: what the noise's random stream depends on, beside the factor's number.
    """

    def __init__(
        self, stored: Array, formats: list[FloatFormat | BlockFormat], axis: int, key: tuple[object, ...]
    ) -> None:
        self._stored, self._formats, self._axis, self._key = stored, formats, axis, key
        self.shape = stored.shape

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> Float:
        W = np.asarray(self._stored[index], dtype=np.float64)
        step = np.max([one.step(W, self._axis) for one in self._formats], axis=0)
        return np.asarray(W + step * generator(*self._key, index).uniform(-0.5, 0.5, W.shape))


def perturbed(layer: LayerFactors, geometry: "Geometry", number: int) -> LayerFactors:
    """The layer's factors with one draw of rounding noise, put in place before the norm treatment.

    Args:
        layer: fresh factors; they are changed.
        geometry: the model's geometry.
        number: the layer's number; with model type and matrix it fixes the noise.
    """
    formats = formats_of(geometry)
    key = ("precision", geometry.model_type, number, layer.matrix)
    # files store (out_features, in_features): rows run along d_model for W_Q, W_K, W_V, and along the head for W_O
    axis = 0 if layer.matrix == "value" else 1
    layer.inputs = Perturbed(layer.inputs, formats, 0, (*key, "input"))  # type: ignore[assignment]
    layer.outputs = Perturbed(layer.outputs, formats, axis, (*key, "output"))  # type: ignore[assignment]
    return layer


def precision_arrays(
    heads: "LayerHeads",
    geometry: "Geometry",
    matrix: str,
    treatment: str,
    number: int,
    arrays: dict[str, Array],
) -> dict[str, Float]:
    """What rounding of the stored weights leaves open, for one matrix of one layer.

    Args:
        heads: the layer as stored.
        geometry: the model's geometry.
        matrix, treatment: as in `decompose_layer`.
        number: the layer's number.
        arrays: what `decompose_layer` gave for the same.

    Returns:
        `precision_{quantity}` (H,): absolute change of each registered quantity; `precision_sigma` (H,): root mean
        square change of the singular values; `pair_precision_self` (H, r): absolute change of each pair's self. Empty
        where the storage format is not in `FORMATS`, or input and output are different streams.
    """
    if not formats_of(geometry) or not bool(arrays.get("comparable", True)):
        return {}
    layer = perturbed(LayerFactors(heads, geometry, matrix, treatment), geometry, number)
    made = [decompose(A, B, grams) for A, B, grams in layer]
    sigma, Z = np.stack([one.sigma for one in made]), np.stack([one.Z for one in made])
    eigenvalues = np.stack([one.eigenvalues for one in made])
    after = quantities(sigma, Z, eigenvalues, rank=np.array([one.rank for one in made]))
    stored = HeadPairs(arrays["sigma"], arrays["Z"], arrays["eigenvalues"], arrays["rank"])
    found = {f"precision_{name}": np.abs(after[name] - REGISTRY[name].compute(stored)) for name in REGISTRY}
    found["precision_sigma"] = np.sqrt(stored.mean((sigma - stored.sigma) ** 2))
    self_after = np.abs(np.diagonal(Z, axis1=-2, axis2=-1))
    found["pair_precision_self"] = np.where(stored.mask, np.abs(self_after - np.abs(stored.overlap)), np.nan)
    return found
