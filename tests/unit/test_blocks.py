"""Blocks of near-equal singular values: found where they are planted, and untouched by what single vectors suffer."""

import numpy as np
import pytest

from headmaps.blocks import block_labels, block_quantities, block_summary
from headmaps.quantities import HeadPairs

D = 20
SIGMA = np.array([5.0, 3.0, 3.0, 3.0, 1.0])
LABELS = [0, 1, 1, 1, 2]
EVERY = np.ones(5, dtype=bool)


@pytest.fixture
def frames() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    U, _ = np.linalg.qr(generator.normal(size=(D, 5)))
    V, _ = np.linalg.qr(generator.normal(size=(D, 5)) + U)
    return U, V


def rotated_in_the_block(vectors: np.ndarray) -> np.ndarray:
    Q, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))
    return np.hstack([vectors[:, :1], vectors[:, 1:4] @ Q, vectors[:, 4:]])


def test_singular_values_that_coincide_form_a_block() -> None:
    assert block_labels(SIGMA, EVERY, 0).tolist() == LABELS
    assert block_labels(SIGMA * (1 + 1e-16), EVERY, np.nan).tolist() == LABELS


def test_rounding_noise_joins_what_it_can_exchange() -> None:
    sigma = np.array([5.0, 4.9, 4.0, 3.95, 3.91])
    assert block_labels(sigma, EVERY, 0.01).tolist() == [0, 1, 2, 3, 4]
    assert block_labels(sigma, EVERY, 0.03).tolist() == [0, 1, 2, 2, 2]
    assert block_labels(np.stack([sigma, sigma]), np.stack([EVERY] * 2), [0.03, 0.06]).tolist() == [
        [0, 1, 2, 2, 2],
        [0, 0, 1, 1, 1],
    ]


def test_pairs_beyond_the_rank_are_in_no_block() -> None:
    mask = np.array([True, True, False])
    labels = block_labels(np.array([2.0, 1.0, 0.0]), mask, 0)
    assert labels.tolist() == [0, 1, -1]
    found = block_quantities(np.eye(3), labels)
    assert found["block_size"].tolist() == [1, 1, 0]
    assert np.isnan(found["block_overlap"][2])


def test_what_a_block_does_is_the_same_for_every_choice_of_its_vectors(frames: tuple[np.ndarray, np.ndarray]) -> None:
    U, V = frames
    U2, V2 = rotated_in_the_block(U), rotated_in_the_block(V)
    np.testing.assert_allclose(V2 * SIGMA @ U2.T, V * SIGMA @ U.T, atol=1e-12)  # the same matrix
    single, other = np.diagonal(V.T @ U), np.diagonal(V2.T @ U2)
    assert np.abs(single - other).max() > 0.05
    before, after = (block_quantities(Z, np.array(LABELS)) for Z in (V.T @ U, V2.T @ U2))
    for name in ("block_overlap", "block_captured"):
        np.testing.assert_allclose(before[name], after[name], atol=1e-12)


def test_block_values_are_their_definitions(frames: tuple[np.ndarray, np.ndarray]) -> None:
    U, V = frames
    Z = V.T @ U
    found = block_quantities(Z, np.array(LABELS))
    block = Z[1:4, 1:4]
    assert found["block_size"].tolist() == [1, 3, 3, 3, 1]
    np.testing.assert_allclose(found["block_overlap"], [Z[0, 0], *[np.trace(block) / 3] * 3, Z[4, 4]])
    np.testing.assert_allclose(found["block_captured"], [Z[0, 0] ** 2, *[np.sum(block**2) / 3] * 3, Z[4, 4] ** 2])


def test_resolved_pairs_are_blocks_of_their_own(frames: tuple[np.ndarray, np.ndarray]) -> None:
    U, V = frames
    pairs = HeadPairs(np.arange(5, 0, -1.0), V.T @ U)
    found = block_summary(pairs, block_labels(pairs.sigma, pairs.mask, 0))
    assert (found["blocks"], found["unresolved_pairs"]) == (5, 0)
    assert found["block_overlap_mean"] == pytest.approx(np.mean(pairs.overlap))
    assert found["block_captured_mean"] == pytest.approx(np.mean(pairs.self2))


def test_an_all_zero_head_has_no_blocks() -> None:
    pairs = HeadPairs(np.zeros((1, 3)), np.zeros((1, 3, 3)))
    found = block_summary(pairs, block_labels(pairs.sigma, pairs.mask, np.zeros(1)))
    assert found["blocks"].tolist() == [0]
    assert np.isnan(found["block_overlap_mean"]).all()
