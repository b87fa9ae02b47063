"""Blocks of near-equal singular values: what of overlap and rotation is defined where single vectors are not.

If sigma_i and sigma_j coincide, `(u_i, u_j)` and `(v_i, v_j)` are determined only up to one common rotation Q, under
which the block `Z_BB` becomes `Q^T Z_BB Q`: single overlaps change, `tr Z_BB` and `||Z_BB||_F` do not. Where two
singular values differ by no more than what rounding the stored weights moves them, they coincide for all that the
checkpoint can say.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.quantities.pairs import HeadPairs, ratio

Array = NDArray[Any]
Float = NDArray[np.float64]

RESOLUTION = 2.0
"""Neighbours closer than this many rounding noises form a block: to first order the vectors of two pairs mix by
noise / difference, so at 2 they turn by about half a radian."""

BLOCK_MEANS = ("block_overlap_mean", "block_captured_mean")


def block_labels(sigma: Array, mask: Array, noise: Array) -> NDArray[np.int64]:
    """Number the blocks of neighbours that are not resolved.

    Args:
        sigma: (..., r), descending.
        mask: (..., r) pairs that count (those within the rank).
        noise: (...) how far rounding moves a singular value, absolute; 0 or NaN where unknown, then only singular
            values that are equal to float64's rounding form a block.

    Returns:
        (..., r) 0, 1, 2 ... in order of falling sigma, -1 for pairs that do not count.
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    r = sigma.shape[-1]
    rounding = r * np.finfo(np.float64).eps * sigma[..., :1]
    limit = np.maximum(RESOLUTION * np.nan_to_num(np.asarray(noise, dtype=np.float64))[..., None], rounding)
    starts = np.ones(sigma.shape, dtype=np.int64)
    starts[..., 1:] = sigma[..., :-1] - sigma[..., 1:] > limit
    return np.where(mask, np.cumsum(starts, axis=-1) - 1, -1)


def unresolved(labels: Array) -> NDArray[np.int64]:
    """(...) how many pairs are in blocks of two or more, of labels (..., r) from `block_labels`."""
    same = (labels[..., :, None] == labels[..., None, :]) & (labels[..., :, None] >= 0)
    return np.asarray((same.sum(axis=-1) > 1).sum(axis=-1))


def block_quantities(Z: Array, labels: Array) -> dict[str, Array]:
    """What a pair's block does, for every pair.

    Args:
        Z: (..., r, r), rows output vectors.
        labels: (..., r) from `block_labels`.

    Returns:
        `block_size` (..., r): |B|, 0 for pairs that do not count;
        `block_overlap`: `tr Z_BB / |B|`, the overlap of a single vector if |B| = 1;
        `block_captured`: `||Z_BB||_F^2 / |B|`, its squared self. Both NaN for pairs that do not count.
    """
    same = (labels[..., :, None] == labels[..., None, :]) & (labels[..., :, None] >= 0)
    size = same.sum(axis=-1)
    Z = np.asarray(Z, dtype=np.float64)
    belongs = same.astype(np.float64)
    overlap = (belongs @ np.diagonal(Z, axis1=-2, axis2=-1)[..., None])[..., 0]
    captured = (belongs @ np.einsum("...ij,...ij->...i", belongs, Z**2)[..., None])[..., 0]
    return {"block_size": size, "block_overlap": ratio(overlap, size), "block_captured": ratio(captured, size)}


def block_summary(pairs: HeadPairs, labels: Array) -> dict[str, Array]:
    """Per head: how far its singular values are resolved, and what its blocks keep.

    Returns:
        `blocks` (...): number of blocks (the rank, if all pairs are resolved); `unresolved_pairs`: pairs in blocks of
        two or more; `block_overlap_mean`, `block_captured_mean`: plain means over the pairs, to be read beside
        overlap_mean and the mean of self^2; equal to them where every pair is resolved.
    """
    found = block_quantities(pairs.Z, labels)
    return {
        "blocks": labels.max(axis=-1, initial=-1) + 1,
        "unresolved_pairs": (found["block_size"] > 1).sum(axis=-1),
        **{name: pairs.mean(found[name.removesuffix("_mean")]) for name in BLOCK_MEANS},
    }
