"""The brown band of the head's map: where sampled hidden states lie on a head's input and output vectors."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import decompose
from headmaps.errors import ResultError
from headmaps.geometry import Geometry
from headmaps.heads import read_layer_heads
from headmaps.layer_factors import LayerFactors

Float = NDArray[np.float64]

QUANTILES = (0.01, 0.99)
NAMES = ("band_input_low", "band_input_high", "band_output_low", "band_output_high")


@dataclass(frozen=True)
class States:
    """Sampled hidden states of one layer, and its head matrices.

    Attributes:
        inputs: .npy (samples, d) as the matrices read them.
        outputs: .npy (samples, d) of the residual stream.
        heads: the layer's folder of head matrices.
    """

    inputs: Path
    outputs: Path
    heads: Path


def layer_bands(states: States, geometry: Geometry, treatment: str, matrix: str) -> dict[str, Float]:
    """Bands of a layer's heads, name -> (heads, r): quantiles of the states on each u_j and each v_i.

    What a value matrix writes is compared with the residual stream; the key side of a QK matrix, like its query side,
    with what the matrices read.

    Raises:
        ResultError: the states are missing or of another width.
    """
    read = _read(states.inputs, geometry.d_model)
    written = _read(states.outputs, geometry.d_model) if matrix == "value" else read
    layer = LayerFactors(read_layer_heads(states.heads, geometry), geometry, matrix, treatment)
    rows = []
    for head in range(geometry.n_heads):
        A, B = layer.A(layer.input_index(head)), layer.B(layer.output_index(head))
        found = decompose(A, B)
        sides = (read @ found.input_vectors(A), written @ found.output_vectors(B).T)
        rows.append(np.concatenate([np.quantile(side, QUANTILES, axis=0) for side in sides]))
    stacked = np.stack(rows)
    return {name: stacked[:, i] for i, name in enumerate(NAMES)}


def _read(path: Path, d: int) -> Float:
    try:
        states = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError) as error:
        what = f"the sampled hidden states cannot be read ({error})"
        raise ResultError(what, where=str(path), expected=f"a .npy of shape (samples, {d})") from None
    if states.ndim != 2 or states.shape[1] != d or not len(states) or not np.isfinite(states).all():
        what = f"the sampled hidden states have shape {states.shape}, or hold NaN or infinity"
        raise ResultError(what, where=str(path), expected=f"finite numbers of shape (samples, {d})")
    return states
