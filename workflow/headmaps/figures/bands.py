"""The brown band of figures 3 and 5: where sampled hidden states lie on a head's input and output vectors."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import decompose
from headmaps.errors import ResultError
from headmaps.figures.effect import QUANTILES
from headmaps.geometry import Geometry
from headmaps.heads import read_layer_heads
from headmaps.layer_factors import LayerFactors

Array = NDArray[np.float64]


def read_states(path: Path, d: int) -> Array:
    """Sampled hidden states (samples, d), float64.

    Raises:
        ResultError: the file is missing, has another shape, or holds NaN or infinity.
    """
    try:
        states = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError) as error:
        what = f"the sampled hidden states cannot be read ({error})"
        raise ResultError(what, where=str(path), expected=f"a .npy of shape (samples, {d})") from None
    if states.ndim != 2 or states.shape[1] != d or not len(states):
        what = f"the sampled hidden states have shape {states.shape}"
        raise ResultError(what, where=str(path), expected=f"(samples, {d})")
    if not np.isfinite(states).all():
        raise ResultError("the sampled hidden states hold NaN or infinity", where=str(path), do="sample them again")
    return states


def band(states: Array, vectors: Array) -> Array:
    """(2, r): the 0.01 and 0.99 quantiles of the states (samples, d) on each column of vectors (d, r)."""
    return np.asarray(np.quantile(states @ vectors, QUANTILES, axis=0))


def head_bands(
    directory: Path, geometry: Geometry, layer_norm: str, matrix: str, head: int, inputs: Path, outputs: Path
) -> tuple[Array, Array]:
    """The bands of one head, (2, r) on its input vectors and (2, r) on its output vectors.

    The vectors are those of the decomposition, signs included. Output vectors of the value matrix are written to the
    residual stream and take the states of `outputs`; those of a QK matrix belong to the key, which reads the normed
    stream as the query does, and take the states of `inputs`.

    Args:
        directory: the layer's folder of head matrices. layer_norm: the treatment of the decomposition.
        inputs: .npy (samples, d) of states as the head's matrix reads them: after the norm; under a treatment that
            folds the gain in, before the gain.
        outputs: .npy (samples, d) of states of the residual stream.
    """
    heads = read_layer_heads(directory, geometry)
    factors = LayerFactors(heads, geometry, matrix, layer_norm)
    A, B = factors.A(factors.input_index(head)), factors.B(factors.output_index(head))
    found = decompose(A, B)
    read = read_states(inputs, A.shape[0])
    written = read_states(outputs, A.shape[0]) if matrix == "value" else read
    return band(read, found.input_vectors(A)), band(written, found.output_vectors(B).T)
