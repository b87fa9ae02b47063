"""The bias vectors whose projections on a head's input and output vectors are the bias lines of figures 3 and 5.

The article does not say which vector its line shows, so every candidate is stored by itself; projections are linear,
and the line of a sum (b_V W_O + b_O, say) is the sum of the lines.
"""

import numpy as np
from numpy.typing import NDArray

from headmaps.factor_quantities import head_biases
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
    b_input, b_output = head_biases(layer, head)
    beta = None if fold.shift is not None else extras.get("norm_bias")
    if beta is not None:
        vectors["norm_bias"] = beta = np.asarray(beta, dtype=np.float64)
    if layer.matrix == "value":
        if b_input is not None:
            vectors["b_V_W_O"] = b_input @ B
        if (b_O := extras.get("b_O")) is not None:
            vectors["b_O"] = fold.write(b_O)
        if beta is not None:
            vectors["norm_bias_W_V_W_O"] = (beta @ A) @ B
    elif layer.matrix == "qk":
        if b_input is not None:
            vectors["b_Q_W_K"] = b_input @ B
        if b_output is not None:
            vectors["b_K_W_Q"] = A @ b_output
        if beta is not None:
            vectors["norm_bias_W_Q_W_K"] = (beta @ A) @ B
            vectors["norm_bias_W_K_W_Q"] = A @ (B @ beta)
    return vectors
