"""The bias vectors whose projections on a head's input and output vectors are the bias lines of figures 3 and 5.

The article does not say which vector its line shows, so every candidate is stored by itself; projections are linear,
and the line of a sum (b_V W_O + b_O, say) is the sum of the lines.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.layer_factors import LayerFactors

Float = NDArray[np.float64]


def bias_vectors(layer: LayerFactors, head: int, A: Float, B: Float) -> dict[str, Float]:
    """The bias vectors (d,) of one head that the checkpoint has, by name.

    Value matrix: `b_V_W_O` (what the value bias writes), `b_O`, `norm_bias` (beta, which is read), `norm_bias_W_V_W_O`
    (what beta writes). QK matrix: `b_Q_W_K` (key side), `b_K_W_Q` (query side), `norm_bias`, `norm_bias_W_Q_W_K` (key
    side), `norm_bias_W_K_W_Q` (query side). Where the treatment folds the gain, beta is part of b: no line of its own.

    Args:
        layer: the layer's factors.
        head: query head.
        A: (d, r) its reading factor.
        B: (r, d) its writing factor.
    """
    extras, fold = layer.heads.extras, layer.fold
    vectors: dict[str, Float] = {}

    def inner(name: str, index: int, W: Any) -> Float | None:
        """Bias (r,) of a reading matrix with beta folded in where the treatment does so."""
        stored = extras.get(name)
        if stored is None and fold.shift is None:
            return None
        own = np.zeros(W.shape[1]) if stored is None else np.asarray(stored[index], dtype=np.float64)
        return own + fold.read_bias(W)

    i, j = layer.input_index(head), layer.output_index(head)
    beta = None if fold.shift is not None else extras.get("norm_bias")
    beta = None if beta is None else np.asarray(beta, dtype=np.float64)
    if beta is not None:
        vectors["norm_bias"] = beta
    if layer.matrix == "value":
        if (b_V := inner("b_V", i, layer.inputs[i])) is not None:
            vectors["b_V_W_O"] = b_V @ B
        if (b_O := extras.get("b_O")) is not None:
            vectors["b_O"] = fold.write(b_O)
        if beta is not None:
            vectors["norm_bias_W_V_W_O"] = (beta @ A) @ B
    elif layer.matrix == "qk":
        if (b_Q := inner("b_Q", i, layer.inputs[i])) is not None:
            vectors["b_Q_W_K"] = b_Q @ B
        if (b_K := inner("b_K", j, layer.outputs[j].T)) is not None:
            vectors["b_K_W_Q"] = A @ b_K
        if beta is not None:
            vectors["norm_bias_W_Q_W_K"] = (beta @ A) @ B
            vectors["norm_bias_W_K_W_Q"] = A @ (B @ beta)
    return vectors
