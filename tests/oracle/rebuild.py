"""A forward pass of attention from `.npy` files and `geometry.json` alone, written for reading, not for speed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.geometry import Geometry, Norm, QKNorm
from headmaps.heads import LayerHeads
from headmaps.positions import rotation

Array = NDArray[Any]
LATENT_EPSILON = 1e-6
"""DeepSeek's norms inside the low-rank paths have it fixed, whatever the config says."""


def normed(stream: Array, norm: Norm | QKNorm, weight: Array | None, bias: Array | None) -> Array:
    """A LayerNorm or RMS norm over the last axis."""
    if norm.kind == "layer":
        stream = stream - stream.mean(axis=-1, keepdims=True)
    out = stream / np.sqrt((stream**2).mean(axis=-1, keepdims=True) + norm.epsilon)
    if weight is not None:
        out = out * (weight + 1 if norm.plus_one else weight)
    return out if bias is None else out + bias


def read_by_attention(stream: Array, heads: LayerHeads, geometry: Geometry) -> Array:
    """What W_Q, W_K and W_V see of the residual stream."""
    return normed(stream, geometry.norm, heads.extras.get("norm_weight"), heads.extras.get("norm_bias"))


def projected(x: Array, W: Array, b: Array | None) -> Array:
    """(batch, heads, n, r)."""
    out = np.einsum("bnd,hdr->bhnr", x, W)
    return out if b is None else out + b[:, None, :]


def latent_divisor(x: Array, W_down: Array) -> Array:
    """MLA: the root mean square that divides inside a low-rank path, (batch, 1, n, 1)."""
    latent = x @ W_down
    return np.sqrt((latent**2).mean(axis=-1) + LATENT_EPSILON)[:, None, :, None]


def qk_normed(x: Array, geometry: Geometry, weight: Array, bias: Array | None) -> Array:
    """(batch, heads, n, r) through the norm on queries or keys; weight and bias (heads, r)."""
    norm = geometry.qk_norm
    assert norm is not None
    if norm.span == "head":
        return normed(x, norm, weight[:, None, :], None if bias is None else bias[:, None, :])
    batch, heads, n, r = x.shape
    wide = x.transpose(0, 2, 1, 3).reshape(batch, n, heads * r)
    return normed(wide, norm, weight.ravel(), None).reshape(batch, n, heads, r).transpose(0, 2, 1, 3)


def turned(x: Array, positions: Array, geometry: Geometry, layer: int) -> Array:
    """Queries or keys, each turned by its own position."""
    rotary = geometry.rotary_of(layer)
    if rotary is None:
        return x
    start = geometry.d_head - (geometry.d_head_rope or geometry.d_head)
    out = np.array(x)
    for n, position in enumerate(positions):
        R = rotation(rotary, int(position), x.shape[-1] - start, int(positions.max()) + 1)
        R[: rotary.rotary_dim] /= rotary.attention_factor  # R carries its square, for the pair of q and k
        out[:, :, n, start:] = x[:, :, n, start:] @ R
    return out


def queries_keys_values(
    x: Array, x_source: Array, positions: Array | None, heads: LayerHeads, geometry: Geometry, layer: int
) -> tuple[Array, Array, Array]:
    """q (batch, H, n, r), k and v (batch, KV, n, r) as they meet: normed, and turned unless positions are None."""
    extras = heads.extras
    q = projected(x, heads.W_Q, extras.get("b_Q"))
    k = projected(x_source, heads.W_K, extras.get("b_K"))
    v = projected(x_source, heads.W_V, extras.get("b_V"))
    if geometry.layout == "mla":
        nope = geometry.d_head - (geometry.d_head_rope or 0)
        if "W_Q_down" in extras:
            q = q / latent_divisor(x, extras["W_Q_down"])
        divisor = latent_divisor(x, extras["W_KV_down"])
        k = np.concatenate([k[..., :nope] / divisor, k[..., nope:]], axis=-1)
        v = v / divisor
    if geometry.clip is not None:
        q, k, v = (np.clip(value, -geometry.clip, geometry.clip) for value in (q, k, v))
    if geometry.qk_norm is not None:
        q = qk_normed(q, geometry, extras["q_norm"], extras.get("q_norm_bias"))
        k = qk_normed(k, geometry, extras["k_norm"], extras.get("k_norm_bias"))
    if positions is None:
        return q, k, v
    return turned(q, positions, geometry, layer), turned(k, positions, geometry, layer), v


def scores_of(q: Array, k: Array, heads: LayerHeads, geometry: Geometry, layer: int) -> Array:
    """(batch, H, n, m), before the mask and the softmax; ALiBi relative to the current position."""
    k = np.repeat(k, geometry.n_heads // geometry.n_kv_heads, axis=1)
    scores = np.einsum("bhnr,bhmr->bhnm", q, k) * geometry.scale_of(layer)
    if geometry.softcap is not None:
        scores = geometry.softcap * np.tanh(scores / geometry.softcap)
    n, m = scores.shape[2:]
    distance = np.arange(m)[None, :] - np.arange(n)[:, None]
    if geometry.position.scheme == "alibi":
        scores = scores + np.array(geometry.position.slopes)[:, None, None] * distance
    if geometry.position.relative is not None:
        buckets = relative_buckets(distance, **geometry.position.relative)
        scores = scores + heads.extras["relative_bias"][buckets].transpose(2, 0, 1)
    return scores


def relative_buckets(distance: Array, buckets: int, max_distance: int, bidirectional: bool) -> Array:
    """T5's bucket of each distance (attended minus current): exact up to half, then logarithmic (arXiv:1910.10683)."""
    first = np.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = buckets // 2
    growth = np.log(np.maximum(distance, 1) / exact) / np.log(max_distance / exact)
    far = np.minimum(exact + (growth * (buckets - exact)).astype(int), buckets - 1)
    return first + np.where(distance < exact, distance, far)


def visible(n: int, m: int, geometry: Geometry, layer: int) -> Array:
    """(n, m): which attended token each current token sees."""
    distance = np.arange(n)[:, None] - np.arange(m)[None, :]
    seen = distance >= 0 if geometry.causal else np.ones((n, m), bool)
    window = geometry.window_of(layer)
    return seen if window is None else seen & (distance < window)


def attention_output(scores: Array, v: Array, x: Array, seen: Array, heads: LayerHeads, geometry: Geometry) -> Array:
    """(batch, n, d), what attention adds to the stream, before any norm on it."""
    logits = np.where(seen, scores, -np.inf)
    if geometry.sinks:
        sinks = np.broadcast_to(heads.extras["sinks"][:, None, None], (*logits.shape[:3], 1))
        logits = np.concatenate([logits, sinks], axis=-1)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True))[..., : v.shape[2]]
    out = weights @ np.repeat(v, geometry.n_heads // geometry.n_kv_heads, axis=1)
    if geometry.gate == "sigmoid":
        out = out / (1 + np.exp(-projected(x, heads.extras["W_G"], heads.extras.get("b_G"))))
    written = np.einsum("bhnr,hrd->bnd", out, heads.W_O)
    return written + heads.extras["b_O"] if "b_O" in heads.extras else written
