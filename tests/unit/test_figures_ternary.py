"""Figure 2: shares, the fit line, and the enlarged triangle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headmaps.figures import ternary
from headmaps.figures.data import HeadsTable
from headmaps.figures.style import ordered_colors
from synthetic_figures import SyntheticModel

positive = arrays(float, (9, 3), elements=st.floats(0.01, 1.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SyntheticModel(tmp_path_factory.mktemp("model"), layers=4, heads=3)


@given(positive)
def test_shares_sum_to_one_and_keep_their_ratios(values):
    shares = ternary.normalised(*values.T)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(shares[:, 0] * values[:, 1], shares[:, 1] * values[:, 0])


@given(a=st.floats(0.3, 0.9), b=st.floats(-1.0, 0.2))
def test_points_on_a_line_give_that_line(a, b):
    own = np.linspace(0.01, 0.3, 20)
    ortho = a + b * own
    np.testing.assert_allclose(ternary.linear_fit(own, ortho, 1 - own - ortho), (a, b), atol=1e-9)


def test_the_fit_is_made_in_the_shares_and_not_in_the_means():
    own = np.linspace(0.01, 0.3, 20)
    ortho = 0.8 - 0.7 * own
    sizes = np.linspace(0.5, 1.7, 20)
    fitted = ternary.linear_fit(own * sizes, ortho * sizes, (1 - own - ortho) * sizes)
    np.testing.assert_allclose(fitted, (0.8, -0.7))


@given(positive)
def test_the_enlarged_triangle_holds_every_point(values):
    shares = ternary.normalised(*values.T)
    low, size = ternary.enlarged(shares)
    assert (shares >= low).all()
    assert (low >= 0).all()
    assert size == pytest.approx(1 - low.sum())


@given(a=st.floats(0.1, 1.0), b=st.floats(-1.5, 0.5), low=arrays(float, 3, elements=st.floats(0, 0.3)))
def test_the_fit_line_never_leaves_the_triangle(a, b, low):
    ends = ternary._line_ends((a, b), low)
    assert (ends >= low).all()
    np.testing.assert_allclose(ends[:, 1], a + b * ends[:, 0])


def test_a_table_gives_one_point_a_head_and_the_mean_of_its_random_draws(model):
    table = HeadsTable(model.root / "heads.csv")
    found = ternary.points(table, "qk", (0.1, 0.9, 0.4), "gaussian")
    assert sorted(found.layer) == sorted(list(range(4)) * 3)
    columns = table.of("qk", [f"{q}_gaussian_mean" for q in ternary.QUANTITIES])
    means = np.array([column.mean() for column in columns.values()])
    np.testing.assert_allclose(found.random, means / means.sum())
    np.testing.assert_allclose(found.closed_form, np.array([0.1, 0.9, 0.4]) / 1.4)


def test_without_a_random_baseline_there_is_no_circle_and_no_word_of_it(model):
    found = ternary.points(HeadsTable(model.root / "heads.csv"), "value", (0.1, 0.9, 0.4), None)
    assert found.random is None
    assert "circle" not in ternary.caption(found, "f.", None, {})


def test_all_zero_heads_have_no_point_and_are_counted(model, tmp_path):
    lines = (model.root / "heads.csv").read_text().splitlines()
    empty = lines[1].split(",")
    names = lines[0].split(",")
    empty = [cell if name in ("layer", "head", "matrix") else "" for name, cell in zip(names, empty, strict=True)]
    (tmp_path / "heads.csv").write_text("\n".join([lines[0], ",".join(empty), *lines[2:]]) + "\n")
    found = ternary.points(HeadsTable(tmp_path / "heads.csv"), "value", None, None)
    assert len(found.layer) == 11
    assert "1 all-zero heads have none" in ternary.caption(found, "f.", None, {})


@pytest.mark.parametrize("layers", [2, 24, 30, 80, 126])
def test_no_two_layers_share_a_colour_and_deeper_ones_are_lighter(layers):
    colors = ordered_colors(layers)
    assert len({tuple(color) for color in colors}) == layers
    assert (np.diff(colors[:, :3] @ [0.2126, 0.7152, 0.0722]) > 0).all()
