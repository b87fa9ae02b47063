"""The two factors of every head's matrix in a layer, under a norm treatment, in float64 and one at a time.

Grouped heads share a factor: it is folded, converted and factorised once, and never are a whole layer's factors held in
float64 (a layer of a 405B model would need 4 GB).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headmaps.geometry import Geometry
from headmaps.layer_norm import folding
from headmaps.linalg import Factor, factor_gram

if TYPE_CHECKING:
    from headmaps.heads import LayerHeads

Array = NDArray[Any]
Float = NDArray[np.float64]


def stored_factors(heads: "LayerHeads", geometry: Geometry, matrix: str) -> tuple[Array, Array]:
    """Views of the stored arrays that make a matrix: (inputs (n, d, r), outputs (m, r, d)), W of head h being
    `inputs[h // (H // n)] @ outputs[h // (H // m)]`.

    `value`: W_V, W_O. `qk`: W_Q, W_K^T. `qk_nope`, `qk_rope` (MLA): the columns of W_Q and W_K before and from the
    rotated part on; the rotated key is one for all heads.

    Raises:
        ArchitectureError: the model has no such matrix.
    """
    geometry.rank_of(matrix)  # an unknown matrix is refused here, with the known ones named
    if matrix == "value":
        return heads.W_V, heads.W_O
    W_Q, W_K = heads.W_Q, heads.W_K
    if matrix != "qk":
        cut = W_Q.shape[2] - (geometry.d_head_rope or 0)
        columns = slice(cut) if matrix == "qk_nope" else slice(cut, None)
        W_Q, W_K = W_Q[:, :, columns], W_K[: geometry.kv_heads_of(matrix), :, columns]
    return W_Q, W_K.transpose(0, 2, 1)


class LayerFactors:
    """The factors `A (d, r)` and `B (r, d)` of one matrix kind in one layer.

    Args:
        heads: the layer as stored; its arrays may be memory-mapped.
        geometry: the model's geometry.
        matrix: `value` | `qk` | `qk_nope` | `qk_rope`.
        treatment: a norm treatment (headmaps.layer_norm).

    Attributes:
        n_heads: query heads H.
        comparable: whether input and output vectors live in one stream, so that Z means something.
        notes: what the treatment folded.
    """

    def __init__(self, heads: "LayerHeads", geometry: Geometry, matrix: str, treatment: str = "raw") -> None:
        self.inputs, self.outputs = stored_factors(heads, geometry, matrix)
        self.matrix, self.heads, self.fold = matrix, heads, folding(heads, geometry, treatment)
        self.n_heads = geometry.n_heads
        self.comparable = geometry.stack != "cross" and geometry.d_source is None
        self.notes = list(self.fold.notes)

    @property
    def d_model(self) -> int:
        """Width of the stream on the input side."""
        return int(self.inputs.shape[1])

    @property
    def rank(self) -> int:
        """Inner dimension r."""
        return int(self.inputs.shape[2])

    def input_index(self, head: int) -> int:
        """Which of `inputs` a query head uses."""
        return head // (self.n_heads // len(self.inputs))

    def output_index(self, head: int) -> int:
        """Which of `outputs` a query head uses."""
        return head // (self.n_heads // len(self.outputs))

    def A(self, index: int) -> Float:
        """Reading factor (d, r) number `index`, treated, float64."""
        stored = self.inputs[index]
        if self.matrix == "value" and self.fold.only_queries:
            return np.array(stored, dtype=np.float64)
        return np.array(self.fold.read(stored), dtype=np.float64, copy=None)

    def B(self, index: int) -> Float:
        """Writing factor (r, d), or the key's transpose, number `index`, treated, float64."""
        stored = self.outputs[index]
        if self.matrix == "value":
            return np.array(self.fold.write(stored), dtype=np.float64, copy=None)
        return np.array(stored if self.fold.only_queries else self.fold.read(stored.T).T, dtype=np.float64, copy=None)

    def __iter__(self) -> Iterator[tuple[Float, Float, tuple[Factor, Factor]]]:
        """(A, B, their factors by the Gram method) for head 0, 1, ...; what a group shares is made once."""
        known_A = known_B = -1
        for head in range(self.n_heads):
            i, j = self.input_index(head), self.output_index(head)
            new_A, new_B = i != known_A, j != known_B
            if new_A:
                A, known_A = self.A(i), i
            if new_B:
                B, known_B = self.B(j), j
            made = iter(factor_gram(*([A] if new_A else []), *([B.T] if new_B else [])))
            if new_A:
                a = next(made)
            if new_B:
                b = next(made)
            yield A, B, (a, b)
