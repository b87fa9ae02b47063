"""Figures 1 and 4: what is counted, in which bin, and what is not left out."""

import csv
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headmaps.figures import histogram
from headmaps.figures.data import pairs_in_use

PUBLISHED = Path(__file__).resolve().parents[2] / "workflow" / "reference" / "falcon-rw-1b"


def published(name):
    with open(PUBLISHED / name, newline="") as stream:
        return list(csv.DictReader(stream))


def all_used(values):
    return np.ones(values.shape, dtype=bool)


def test_the_published_sigma_and_diagonal_of_layer_13_head_7_give_its_published_counts():
    sigma = np.array([[float(row["sigma"]) for row in published("sigma_value_13_7.csv")]])
    Z = np.diag([float(row["z_kk"]) for row in published("z_value_13_7_diagonal.csv")])[None]
    ours = histogram.count(histogram.overlaps(sigma, Z, all_used(sigma)))
    theirs = np.zeros(100, dtype=int)
    for row in published("hist_value_13.csv"):
        if row["head"] == "7":
            theirs[int(row["bin_index"])] = int(row["count"])
    np.testing.assert_array_equal(ours.counts[0], theirs)
    assert ours.outside == 0


def test_each_value_falls_in_the_bin_that_holds_it():
    middles = np.linspace(-0.99, 0.99, 100)
    np.testing.assert_array_equal(histogram.count(middles[None]).counts, np.ones((1, 100)))


def test_an_overlap_of_one_up_to_rounding_is_inside():
    found = histogram.count(np.array([[1.0, 1.0 + 1e-12, -1.0 - 1e-12]]))
    assert found.outside == 0
    assert found.counts[0, -1] == 2
    assert found.counts[0, 0] == 1


def test_values_outside_are_counted_by_head_and_side():
    found = histogram.count(np.array([[1.5, 0.0, -3.0, -1.2], [0.1, 2.0, 0.2, 0.3]]))
    np.testing.assert_array_equal(found.below, [2, 0])
    np.testing.assert_array_equal(found.above, [1, 1])
    assert found.outside == 4
    assert found.counts.sum() == 4


@given(arrays(float, (3, 7), elements=st.floats(-5, 5)))
def test_nothing_is_lost(values):
    found = histogram.count(values)
    assert found.total == values.size
    everything = histogram.whole(values, found)
    if everything is not None:
        assert everything.outside == 0
        assert everything.total == values.size


def test_pairs_beyond_the_rank_are_not_counted():
    decomposition = {"sigma": np.zeros((2, 4)), "Z": np.zeros((2, 4, 4)), "rank": np.array([4, 1])}
    values = histogram.overlaps(decomposition["sigma"], decomposition["Z"], pairs_in_use(decomposition))
    np.testing.assert_array_equal(histogram.count(values).counts.sum(axis=1), [4, 1])


def test_heads_between_two_streams_have_nothing_to_count():
    used = pairs_in_use({"sigma": np.ones((2, 4)), "rank": np.array([4, 4]), "comparable": np.array([False])})
    assert not used.any()


def test_unweighted_overlaps_leave_sigma_out():
    sigma, Z = np.array([[5.0, 0.5]]), np.diag([0.5, -0.5])[None]
    np.testing.assert_allclose(histogram.overlaps(sigma, Z, all_used(sigma)), [[2.5, -0.25]])
    np.testing.assert_allclose(histogram.overlaps(sigma, Z, all_used(sigma), weighted=False), [[0.5, -0.5]])


def drawn_bars(values):
    """The stacked bars as (head, left, bottom, top), read back from the drawing."""
    sheet = histogram.draw(values, "m", 0, "value", True, "frame.", {})
    axes = sheet.figure.axes[0]
    heads = [h for h in range(len(values)) if ((np.abs(values[h]) <= 1).any())]
    bars = []
    for head, path in zip(heads, axes.collections[0].get_paths(), strict=True):
        for corners in path.vertices.reshape(-1, 5, 2):
            bars.append((head, corners[0, 0], corners[0, 1], corners[2, 1]))
    return bars


def test_bars_are_stacked_with_head_0_at_the_bottom():
    values = np.array([[0.01, 0.01, 0.5], [0.01, -0.29, 0.01]])
    assert sorted((head, round(left, 2), low, high) for head, left, low, high in drawn_bars(values)) == [
        (0, 0.0, 0.0, 2.0),
        (0, 0.5, 0.0, 1.0),
        (1, -0.3, 0.0, 1.0),
        (1, 0.0, 2.0, 4.0),
    ]


def test_head_0_is_dark_and_the_last_head_light():
    colors = histogram.ordered_colors(32)
    lightness = colors[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) > 0).all()


def test_the_caption_tells_which_histogram_is_drawn_and_what_is_outside():
    values = np.array([[1.5, 0.1], [0.2, 0.3]])
    found = histogram.count(values)
    weighted = histogram.caption(found, histogram.whole(values, found), True, "frame.", {})
    assert "sigma-weighted" in weighted
    assert "1 lie outside [−1, 1] (head 0)" in weighted
    assert "range that holds all" in weighted
    plain = histogram.caption(histogram.count(values[1:]), None, False, "frame.", {})
    assert "unweighted" in plain
    assert "None lies outside" in plain


def test_a_second_panel_is_drawn_only_where_the_range_leaves_out_more_than_a_few():
    few = np.concatenate([np.full(99, 0.5), [3.0]])[None]
    assert histogram.whole(few, histogram.count(few)) is None
    assert len(histogram.draw(few, "m", 0, "value", True, "f.", {}).figure.axes) == 2  # bars and colour key
    assert len(histogram.draw(9 * few, "m", 0, "value", True, "f.", {}).figure.axes) == 3


def test_the_caption_counts_the_pairs_that_the_storage_leaves_open():
    sigma = np.array([[3.0, 2.99, 1.0], [3.0, 2.0, 1.0]])
    used = np.ones((2, 3), dtype=bool)
    noise = np.array([0.1, 0.1])
    mixed = histogram.unresolved_pairs({"sigma": sigma, "precision_sigma": noise}, used)
    assert mixed == 2
    assert histogram.unresolved_pairs({"sigma": sigma}, used) == 0
    few = np.full((2, 3), 0.1)
    text = histogram.caption(histogram.count(few), None, True, "frame.", {}, mixed)
    assert "2 of 6 singular values lie so close to a neighbour" in text
    assert "determined only up to rotations" not in histogram.caption(histogram.count(few), None, True, "frame.", {})
