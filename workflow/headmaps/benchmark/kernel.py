"""Ways to get sigma and Z of one head from its factors: the article's, the textbook's, the neighbours' and ours."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import decompose, in_bases, sigma_and_Z

Float = NDArray[np.float64]
Method = Callable[[Float, Float], Any]

SHAPES = ((576, 64), (2048, 64), (4096, 128), (8192, 128))
"""(d_model, d_head): SmolLM2-135M, falcon-rw-1b, Llama-8B, Llama-70B."""


def three_products(A: Float, B: Float) -> tuple[Float, Float, Float]:
    """`A^T A`, `B B^T` and `B A` alone: what no exact method that starts from Gram matrices can go below."""
    return A.T @ A, B @ B.T, B @ A


def ours(A: Float, B: Float) -> tuple[Float, Float]:
    """sigma and Z as the baselines' draws need them: no signs, no eigenvalues."""
    R_A, R_B, M = in_bases(A, B)
    return sigma_and_Z(R_A @ R_B.T, M)


def ours_complete(A: Float, B: Float) -> Any:
    """The whole decomposition of a head: sigma, Z with fixed signs, gaps, eigenvalues, maps to the vectors."""
    return decompose(A, B)


def by_qr(A: Float, B: Float) -> tuple[Float, Float]:
    """QR of both factors, SVD of the r x r core."""
    (Q_A, R_A), (Q_B, R_B) = np.linalg.qr(A), np.linalg.qr(B.T)
    return sigma_and_Z(R_A @ R_B.T, Q_B.T @ Q_A)


def factored_matrix(A: Float, B: Float) -> tuple[Float, Float]:
    """The algorithm of TransformerLens' FactoredMatrix.svd, restated in numpy: three SVDs, then U and Vh."""
    U_A, s_A, Vh_A = np.linalg.svd(A, full_matrices=False)
    U_B, s_B, Vh_B = np.linalg.svd(B, full_matrices=False)
    u, s, vh = np.linalg.svd((s_A[:, None] * Vh_A) @ (U_B * s_B), full_matrices=False)
    U, Vh = U_A @ u, vh @ Vh_B
    return s, Vh @ U


def transformer_lens(A: Float, B: Float) -> tuple[Float, Float]:
    """TransformerLens itself, in float64 (needs `pip install transformer-lens`)."""
    torch, FactoredMatrix = import_module("torch"), import_module("transformer_lens").FactoredMatrix
    U, s, Vh = FactoredMatrix(torch.from_numpy(A), torch.from_numpy(B)).svd()
    # what it calls Vh has the output vectors as columns in some versions, as rows in others
    rows = Vh if Vh.shape[0] == A.shape[1] else Vh.T
    return s.numpy(), (rows @ U).numpy()


def article(A: Float, B: Float) -> tuple[Float, Float]:
    """The article's code: the d x d matrix in float32, as checkpoints come, then scipy's sparse truncated SVD of it."""
    from scipy.sparse.linalg import svds

    W = A.astype(np.float32) @ B.astype(np.float32)
    u, s, vh = svds(W, k=A.shape[1], v0=np.random.default_rng(0).standard_normal(len(A)))
    order = np.argsort(-s)
    return s[order], vh[order] @ u[:, order]


def dense(A: Float, B: Float) -> tuple[Float, Float]:
    """The d x d matrix and its full SVD."""
    r = A.shape[1]
    u, s, vh = np.linalg.svd(A @ B)
    return s[:r], vh[:r] @ u[:, :r]


def methods() -> dict[str, Method]:
    """The methods by the name the table gives them, the floor first."""
    import scipy.sparse.linalg  # noqa: F401  here, so that no method's time has the import in it

    try:
        import_module("transformer_lens")
    except ImportError:
        lens: dict[str, Method] = {"TransformerLens' algorithm, in numpy": factored_matrix}
    else:
        lens = {"TransformerLens FactoredMatrix": transformer_lens}
    return {
        "the three products alone": three_products,
        "headmaps: sigma and Z": ours,
        "headmaps: all of a head": ours_complete,
        "QR of both factors": by_qr,
        **lens,
        "the article's svds, float32": article,
        "dense SVD": dense,
    }


EXPONENTS = {"the article's svds, float32": 2.0, "dense SVD": 3.0}
"""How the time of what is too slow to be run grows with d_model, from the last shape that was."""
