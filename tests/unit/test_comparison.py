"""Comparisons of models, of training revisions, of two checkpoints and of norm treatments, with planted answers."""

import numpy as np
import pytest

from headmaps.comparison import (
    MAIN,
    Member,
    by_step,
    changes,
    layer_means,
    members,
    model_means,
    onsets,
    read_heads,
    shared_nulls,
    trajectories,
    treatment_changes,
)
from headmaps.errors import ConfigError, ResultError
from headmaps.geometry import Geometry, Norm, Position
from headmaps.training import training_step


def a_geometry(layers=3, n_heads=2, d_model=64, matrices=("value", "qk")):
    return Geometry(
        model_type="test", layout="separate", layers=list(range(layers)), n_layers=layers, d_model=d_model,
        n_heads=n_heads, n_kv_heads=n_heads, d_head=8, d_head_v=8, dtype="F32", scale=1.0, position=Position("none"),
        norm=Norm("rms", "pre"), matrices=list(matrices),
    )  # fmt: skip


def a_table(geometry, value=0.2, null=0.1, kind="gaussian"):
    """heads.csv of a model in which every quantity is `value` plus a hundredth of the head's number."""
    grid = [(m, layer, h) for m in geometry.matrices for layer in geometry.layers for h in range(geometry.n_heads)]
    matrix, layer, head = (np.array(column) for column in zip(*grid, strict=True))
    table = {"layer": layer, "head": head, "matrix": matrix}
    for name in MAIN:
        table[name] = value + head / 100
        if kind:
            table |= {
                f"{name}_{kind}_mean": np.full(len(head), null),
                f"{name}_{kind}_difference": table[name] - null,
                f"{name}_{kind}_ratio": table[name] / null,
                f"{name}_{kind}_z": (table[name] - null) / 0.01,
            }
    return table


def a_member(name, value=0.2, null=0.1, kind="gaussian", **shape):
    geometry = a_geometry(**shape)
    return Member(name, geometry, a_table(geometry, value, null, kind))


# --- models -------------------------------------------------------------------------------------------------------


def test_layers_of_models_of_different_depth_lie_on_one_scale():
    table = layer_means([a_member("shallow", layers=3), a_member("deep", layers=5)])
    rows = (table["model"] == "deep") & (table["matrix"] == "qk")
    np.testing.assert_allclose(table["depth"][rows], [0, 0.25, 0.5, 0.75, 1])
    rows = (table["model"] == "shallow") & (table["matrix"] == "qk")
    np.testing.assert_allclose(table["depth"][rows], [0, 0.5, 1])
    assert set(table["heads"]) == {2}


def test_each_model_stands_against_its_own_null():
    narrow, wide = a_member("narrow", value=0.3, null=0.2), a_member("wide", value=0.2, null=0.05, d_model=1024)
    table = model_means([narrow, wide])
    value = table["matrix"] == "value"
    np.testing.assert_allclose(table["self_mean_gaussian_difference"][value], [0.105, 0.155])
    np.testing.assert_allclose(table["self_mean_gaussian_ratio"][value], [0.305 / 0.2, 0.205 / 0.05])
    assert list(table["d_model"][value]) == [64, 1024]
    assert list(table["r"][value]) == [8, 8]


def test_only_nulls_that_all_models_have_are_compared():
    both = [a_member("a"), a_member("b", kind="rows")]
    assert shared_nulls(both) == []
    assert not any("gaussian" in name for name in layer_means(both))


def test_a_mean_leaves_out_heads_without_a_value():
    member = a_member("a")
    member.heads["self_mean"][0] = np.nan
    assert layer_means([member])["self_mean"][0] == pytest.approx(0.21)


def test_models_without_a_matrix_in_common_are_refused():
    one, two = a_geometry(matrices=("value",)), a_geometry(matrices=("qk",))
    with pytest.raises(ConfigError, match=r"no matrix in common \(a: value; b: qk\)"):
        members(["a", "b"], [one, two], [a_table(one), a_table(two)])


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("pythia-160m@step1000", 1000),
        ("pythia-160m@step0", 0),
        ("olmo@stage1-step50000-tokens210B", 50_000),
        ("m@checkpoint-500", 500),
        ("m@iter_0002000", 2000),
        ("m@1200", 1200),
        ("m@step12k", 12_000),
        ("m@runs%2Fstep300", 300),
        ("my-model-step64", 64),
    ],
)
def test_training_steps_are_read_from_names(name, step):
    assert training_step(name) == step


@pytest.mark.parametrize("name", ["m@main", "pythia-160m", "m@step1-step2", "m@v2", "m@stepwise3"])
def test_names_without_one_step_are_refused(name):
    with pytest.raises(ConfigError, match="training step"):
        training_step(name)


def test_revisions_come_in_the_order_of_training_not_of_names():
    models = [a_member(f"m@step{step}") for step in (1000, 0, 143000, 64)]
    assert [step for step, _ in by_step(models)] == [0, 64, 1000, 143000]


def test_revisions_of_two_models_are_not_one_trajectory():
    with pytest.raises(ConfigError, match="different shapes"):
        by_step([a_member("m@step1"), a_member("m@step2", d_model=32)])
    with pytest.raises(ConfigError, match="same training step"):
        by_step([a_member("a@step1"), a_member("b@step1")])


def grown(curve):
    """Revisions in which head 1 of layer 2's QK matrix follows a curve, and every other head stays at chance."""
    models = []
    for step, value in curve.items():
        member = a_member(f"m@step{step}", value=0.1)
        for name in MAIN:
            member.heads[name] = np.full(len(member.heads["head"]), 0.1)
        here = (member.heads["matrix"] == "qk") & (member.heads["layer"] == 2) & (member.heads["head"] == 1)
        member.heads["self_mean"][here] = value
        member.heads["self_mean_gaussian_z"] = (member.heads["self_mean"] - 0.1) / 0.01
        models.append(member)
    return models


def test_a_head_s_growth_is_dated():
    table = trajectories(grown({0: 0.1, 10: 0.11, 100: 0.35, 1000: 0.4, 10000: 0.5}))
    assert len(table["step"]) == 5 * 2 * 3 * 2
    found = onsets(table, "gaussian")
    at = np.flatnonzero((found["matrix"] == "qk") & (found["layer"] == 2) & (found["head"] == 1))
    assert len(at) == 1
    row = {name: values[at[0]] for name, values in found.items()}
    assert row["half_step"] == 100  # 0.35 is the first beyond 0.1 + (0.5 - 0.1) / 2
    assert (row["first"], row["last"], row["null"]) == (0.1, 0.5, 0.1)


def test_what_ends_at_chance_has_no_date():
    found = onsets(trajectories(grown({0: 0.1, 10: 0.4, 100: 0.11})), "gaussian")
    assert np.isnan(found["half_step"]).all()
    assert np.abs(found["z"]).max() == pytest.approx(1)


def test_a_growth_that_was_lost_again_does_not_count():
    found = onsets(trajectories(grown({0: 0.1, 10: 0.45, 100: 0.12, 1000: 0.4, 10000: 0.5})), "gaussian")
    assert np.nanmax(found["half_step"]) == 1000


def test_falling_below_chance_is_dated_as_well():
    found = onsets(trajectories(grown({0: 0.1, 10: 0.09, 100: 0.03, 1000: 0.02})), "gaussian")
    assert np.nanmax(found["half_step"]) == 100


# --- two checkpoints ----------------------------------------------------------------------------------------------


def test_changes_are_second_minus_first():
    table = changes(a_member("base", value=0.2), a_member("tuned", value=0.25))
    np.testing.assert_allclose(table["self_mean_change"], 0.05)
    np.testing.assert_allclose(table["self_mean_second"] - table["self_mean_first"], table["self_mean_change"])
    assert len(table["head"]) == 2 * 3 * 2


def test_only_checkpoints_of_one_shape_have_changes():
    with pytest.raises(ConfigError, match="n_heads: 2 and 4"):
        changes(a_member("base"), a_member("other", n_heads=4))


# --- treatments ---------------------------------------------------------------------------------------------------


def test_treatments_stand_below_one_another_for_each_head():
    geometry = a_geometry()
    table = treatment_changes(["raw", "gain"], [a_table(geometry, 0.2), a_table(geometry, 0.17)])
    assert list(table["treatment"][:4]) == ["raw", "gain", "raw", "gain"]
    assert list(table["head"][:4]) == [0, 0, 1, 1]
    np.testing.assert_allclose(table["self_mean_change"][:4], [0, -0.03, 0, -0.03])
    other = a_table(a_geometry(layers=2))
    with pytest.raises(ResultError, match="raw and gain have different rows"):
        treatment_changes(["raw", "gain"], [a_table(geometry), other])


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_table_is_read_with_its_types(tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text("layer,head,matrix,self_mean\n0,1,qk,0.25\n1,0,value,\n")
    table = read_heads(path)
    assert table["layer"].dtype == np.int64
    assert list(table["matrix"]) == ["qk", "value"]
    np.testing.assert_array_equal(table["self_mean"], [0.25, np.nan])


@pytest.mark.parametrize("text", ["", "layer,head\n0,1\n", "layer,head,matrix\n0,1\n"])
def test_a_broken_table_is_refused(tmp_path, text):
    path = tmp_path / "heads.csv"
    path.write_text(text)
    with pytest.raises(ResultError, match="unequal length"):
        read_heads(path)
    with pytest.raises(ResultError, match="missing"):
        read_heads(tmp_path / "none.csv")
