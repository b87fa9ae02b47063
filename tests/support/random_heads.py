"""Small layers and single heads for the numeric tests: random ones, and ones with a planted answer."""

import numpy as np

from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads


def a_geometry(d=48, H=4, KV=2, r=6, r_v=None, **changes):
    """A pre-norm model of one layer."""
    return Geometry(
        **{
            "model_type": "test", "layout": "separate", "layers": [0], "n_layers": 1, "d_model": d, "n_heads": H,
            "n_kv_heads": KV, "d_head": r, "d_head_v": r_v or r, "dtype": "F32", "scale": 1.0,
            "position": Position("none"), "norm": Norm("layer", "pre", bias=True),
        }
        | changes
    )  # fmt: skip


def a_layer(geometry, seed=0, dtype=np.float32):
    """Gaussian heads with every bias and norm vector."""
    rng = np.random.default_rng(seed)
    g = geometry
    d, H, KV, r, r_v = g.d_model, g.n_heads, g.n_kv_heads, g.d_head, g.d_head_v

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    extras = {
        "b_Q": normal(H, r), "b_K": normal(KV, r), "b_V": normal(KV, r_v), "b_O": normal(d),
        "norm_weight": normal(d), "norm_bias": normal(d),
    }  # fmt: skip
    return LayerHeads(normal(H, d, r), normal(KV, d, r), normal(KV, d, r_v), normal(H, r_v, d), extras)


def frame(rng, d, r):
    """(d, r) orthonormal columns, uniformly distributed."""
    Q, R = np.linalg.qr(rng.standard_normal((d, r)))
    return Q * np.sign(np.diagonal(R))


def conditioned(rng, r, condition):
    """(r, r) with singular values from 1 down to 1 / condition, evenly in the logarithm."""
    return frame(rng, r, r) * np.geomspace(1, 1 / condition, r) @ frame(rng, r, r).T
