"""The figures over all heads: heat maps, depth profiles, and every head against its nulls."""

import numpy as np
import pytest

from headmaps.errors import ResultError
from headmaps.figures import heatmaps, nulls, profiles
from headmaps.figures.data import HeadsTable, chosen_role, grid
from headmaps.figures.panels import MAIN
from synthetic_figures import SyntheticModel

FRAME = "frame."


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    model = SyntheticModel(tmp_path_factory.mktemp("model"), layers=5, heads=4, kinds=("gaussian", "internal"))
    return HeadsTable(model.root / "heads.csv")


def test_a_grid_has_a_row_a_layer_and_a_column_a_head_whatever_the_order():
    layers, values = grid(np.array([3.0, 0.0, 3.0]), np.array([1.0, 1.0, 0.0]), np.array([31.0, 1.0, 30.0]))
    np.testing.assert_array_equal(layers, [0, 3])
    np.testing.assert_array_equal(values, [[np.nan, 1.0], [30.0, 31.0]])


def test_heat_maps_show_every_main_quantity_with_layers_along_and_heads_up(table):
    sheet = heatmaps.draw(table, "qk", "m", [], FRAME, {})
    panels = [axes for axes in sheet.figure.axes if axes.get_xlabel() == "layer"]
    assert len(panels) == len(MAIN)
    for axes, name in zip(panels, MAIN, strict=True):
        columns = table.of("qk", ["layer", "head", name])
        np.testing.assert_array_equal(axes.images[0].get_array(), columns[name].reshape(5, 4).T)
        assert not axes.yaxis_inverted()


def test_signed_quantities_have_white_at_zero():
    assert heatmaps.limits("overlap_mean", np.array([-0.1, 0.4, np.nan])) == (-0.4, 0.4)
    assert heatmaps.limits("self_mean", np.array([0.1, 0.4, np.nan])) == (0.1, 0.4)


def test_profiles_draw_the_mean_of_each_layers_heads_and_the_bands_of_the_baselines(table):
    sheet = profiles.draw(table, "value", "m", ["gaussian", "internal"], FRAME, {})
    axes = sheet.figure.axes[0]
    columns = table.of("value", ["self_mean", "self_mean_gaussian_mean", "self_mean_gaussian_sd"])
    own, mean, sd = (values.reshape(5, 4).mean(axis=1) for values in columns.values())
    drawn = [line.get_ydata() for line in axes.lines]
    assert any(np.allclose(line, own) for line in drawn)
    assert any(np.allclose(line, mean) for line in drawn)
    outline = axes.collections[0].get_paths()[0].vertices
    assert outline[:, 1].max() == pytest.approx((mean + 2 * sd).max())


def test_a_baseline_that_a_quantity_is_not_compared_with_is_left_out(table):
    assert profiles.drawn_kinds(table, ["gaussian", "spectrum"], "self_mean") == ["gaussian"]


def test_layer_means_leave_out_heads_without_a_value():
    np.testing.assert_array_equal(profiles.layer_means(np.array([[1.0, np.nan], [np.nan, np.nan]])), [1.0, np.nan])


def test_heads_of_a_layer_stand_side_by_side_by_rising_self():
    place = nulls.spread(np.array([2.0, 2.0, 2.0, 5.0]), np.array([0.3, 0.1, 0.2, 0.9]))
    np.testing.assert_allclose(place, [2.4, 1.6, 2.0, 5.0])


def test_heads_beyond_their_own_null_and_the_ratio_to_it():
    one = nulls.Against("gaussian", *np.array([[0, 0, 1], [0.3, 0.1, 0.02], [0.1, 0.1, 0.1], [0.05, 0.05, 0.01]]))
    np.testing.assert_array_equal(one.beyond, [True, False, True])
    np.testing.assert_allclose(one.ratio, [3.0, 1.0, 0.2])
    layers, quartiles = nulls.quartiles(one)
    np.testing.assert_array_equal(layers, [0, 1])
    np.testing.assert_allclose(quartiles[1], [2.0, 0.2])


def test_nulls_have_a_panel_a_kind_and_one_of_the_ratios(table):
    sheet = nulls.draw(table, "value", "m", ["gaussian", "internal", "unpaired"], FRAME, {})
    titles = [axes.get_title(loc="left") for axes in sheet.figure.axes]
    assert [title.split(":")[0] for title in titles] == ["gaussian", "internal", "self over the mean of each null"]
    assert "no such draws: unpaired" in sheet.caption


def test_roles_are_the_largest_middle_and_smallest_mean_self(table):
    columns = table.of("value", ["layer", "head", "self_mean"])
    order = np.argsort(-columns["self_mean"])
    for role, place in (("most-self", 0), ("median-self", 9), ("least-self", 19)):
        expected = (columns["layer"][order[place]], columns["head"][order[place]])
        assert chosen_role(table, "value", role) == expected


def test_ties_go_to_the_earlier_head(tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text("layer,head,matrix,self_mean\n1,1,value,0.5\n1,0,value,0.5\n0,3,value,0.5\n")
    assert [chosen_role(HeadsTable(path), "value", role) for role in ("most-self", "median-self", "least-self")] == [
        (0, 3),
        (1, 0),
        (1, 1),
    ]


def test_no_head_with_a_self_has_no_role(tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text("layer,head,matrix,self_mean\n0,0,value,\n")
    assert chosen_role(HeadsTable(path), "value", "most-self") is None


def test_a_missing_table_or_column_is_named(tmp_path):
    with pytest.raises(ResultError, match="missing"):
        HeadsTable(tmp_path / "heads.csv")
    (tmp_path / "heads.csv").write_text("layer,head,matrix\n0,0,value\n")
    with pytest.raises(ResultError, match="self_mean"):
        HeadsTable(tmp_path / "heads.csv").of("value", ["self_mean"])
    (tmp_path / "heads.csv").write_text("layer,head,matrix,self_mean\n0,0,value,lots\n")
    with pytest.raises(ResultError, match="cannot be read"):
        HeadsTable(tmp_path / "heads.csv").of("value", ["self_mean"])
