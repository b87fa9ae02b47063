"""The comparison and treatment steps from tables and head folders to tables and figures."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from headmaps.figures.names import COMPARISON_TABLES
from headmaps.records import read_json
from headmaps.steps import comparison, treatments
from support.small_model import LAYERS, H, call, heads_folders, small_geometry, small_layers, write_model, write_tables


def rows_of(path):
    return list(csv.DictReader(path.open()))


def a_model(folder, seed=0, kinds=("gaussian",), layers=None, **changes):
    geometry = small_geometry(**changes)
    write_model(folder, geometry, layers or small_layers(geometry, seed))
    write_tables(folder, kinds=kinds)
    return folder


def compare(folder, kind, members, **flags):
    """Run the comparison step; returns its tables, figures and record."""
    outputs = [folder / name for name in COMPARISON_TABLES[kind]]
    figures = [folder / f"{matrix}.svg" for matrix in ("value", "qk")]
    spec = {"name": "test", "kind": kind, "models": list(members), "layer_norm": "raw", "matrices": ["value", "qk"]}
    call(
        comparison, spec, geometries=[path / "heads/geometry.json" for path in members.values()],
        tables=[path / "raw/tables/heads.csv" for path in members.values()], outputs=outputs, figures=figures,
        record=folder / "comparison.json", **flags,
    )  # fmt: skip
    assert all(path.stat().st_size > 5000 for path in figures)
    return [rows_of(path) for path in outputs], figures, read_json(folder / "comparison.json")


def test_models_of_different_width_and_depth(tmp_path):
    members = {
        "narrow": a_model(tmp_path / "narrow"),
        "wide": a_model(tmp_path / "wide", d_model=64, layers=None, n_layers=LAYERS + 2),
    }
    (layers, models), _, record = compare(tmp_path / "out", "models", members)
    assert len(layers) == 2 * 2 * LAYERS
    assert {row["d_model"] for row in models} == {"32", "64"}
    heads = rows_of(members["narrow"] / "raw/tables/heads.csv")
    own = [float(row["self_mean_gaussian_z"]) for row in heads if (row["matrix"], row["layer"]) == ("qk", "1")]
    at = next(row for row in layers if (row["model"], row["matrix"], row["layer"]) == ("narrow", "qk", "1"))
    assert float(at["self_mean_gaussian_z"]) == pytest.approx(np.mean(own))
    assert record["facts"]["null"] == "gaussian"
    assert "to be compared by the middle and the right column" in record["facts"]["value"]["caption"]
    assert "attended token" in record["facts"]["qk"]["caption"]


def test_models_without_a_shared_null_are_told_so(tmp_path):
    members = {"a": a_model(tmp_path / "a", kinds=()), "b": a_model(tmp_path / "b", seed=1)}
    _, _, record = compare(tmp_path / "out", "models", members)
    assert record["facts"]["null"] is None
    assert "cannot be compared" in record["facts"]["value"]["caption"]


def copying(fraction, seed=0):
    """Layers whose head 2 of layer 1 writes what it reads, the more the larger the fraction."""
    geometry = small_geometry(n_kv_heads=H)
    layers = small_layers(geometry, seed)
    W_O = layers[1].W_O.copy()
    W_O[2] = (1 - fraction) * W_O[2] + fraction * layers[1].W_V[2].T
    layers[1] = replace(layers[1], W_O=W_O)
    return layers


def test_a_head_that_learns_to_copy_is_seen_along_training(tmp_path):
    growth = {0: 0.0, 10: 0.0, 100: 0.8, 1000: 1.0}
    members = {
        f"m@step{step}": a_model(tmp_path / str(step), layers=copying(fraction), n_kv_heads=H)
        for step, fraction in growth.items()
    }
    (_, curves, onsets), _, record = compare(tmp_path / "out", "training", members)
    assert len(curves) == 4 * 2 * LAYERS * H
    place = {"matrix": "value", "layer": "1", "head": "2"}
    own = [row for row in curves if row.items() >= place.items()]
    assert [int(row["step"]) for row in own] == list(growth)
    assert float(own[-1]["self_mean"]) == pytest.approx(1, abs=1e-6)
    assert next(float(row["half_step"]) for row in onsets if row.items() >= place.items()) == 100
    assert "4 revisions from step 0 to 1000" in record["facts"]["value"]["caption"]


def test_training_without_a_baseline_has_no_onset(tmp_path, capsys):
    members = {f"m@step{step}": a_model(tmp_path / str(step), kinds=()) for step in (0, 1)}
    with pytest.raises(SystemExit):
        compare(tmp_path / "out", "training", members)
    assert "kinds: [gaussian]" in capsys.readouterr().err


def test_the_head_that_fine_tuning_changed_is_found(tmp_path):
    base, tuned = a_model(tmp_path / "a", layers=copying(0.0), n_kv_heads=H), tmp_path / "b"
    a_model(tuned, layers=copying(1.0), n_kv_heads=H)
    folders = {"first": heads_folders(base), "second": heads_folders(tuned)}
    (changes, most), figures, _ = compare(tmp_path / "out", "pair", {"base": base, "tuned": tuned}, **folders)
    assert len(changes) == 2 * LAYERS * H
    assert (most[0]["matrix"], most[0]["layer"], most[0]["head"]) == ("value", "1", "2")
    assert float(most[0]["self_mean_second"]) == pytest.approx(1, abs=1e-6)
    assert float(most[0]["output_angle_mean"]) > 10
    assert float(most[0]["input_angle_max"]) < 1e-6
    assert all(float(row["weight_change"]) < 1e-12 for row in most[1:])
    first = [path.read_bytes() for path in figures]
    compare(tmp_path / "out", "pair", {"base": base, "tuned": tuned}, **folders)
    assert [path.read_bytes() for path in figures] == first


def test_a_pair_is_two_models(tmp_path, capsys):
    with pytest.raises(SystemExit):
        compare(tmp_path / "out", "pair", {"a": a_model(tmp_path / "a")})
    assert "has two models, not 1" in capsys.readouterr().err


def test_treatments_side_by_side(tmp_path):
    folder = a_model(tmp_path)
    names = ["raw", "gain", "gain_and_center", "gain_and_center_write"]
    tables = [folder / "raw/tables/heads.csv", *(write_tables(folder, name) for name in names[1:])]
    figures = [tmp_path / f"{matrix}.{form}" for matrix in ("value", "qk") for form in ("svg", "png")]
    call(
        treatments, {"model": "small", "treatments": names, "matrices": ["value", "qk"]},
        geometry=folder / "heads/geometry.json", source=folder / "checkpoint/source.json", tables=tables,
        table=tmp_path / "treatments.csv", figures=figures, record=tmp_path / "treatments.json",
    )  # fmt: skip
    rows = rows_of(tmp_path / "treatments.csv")
    assert len(rows) == 2 * LAYERS * H * 4
    assert [row["treatment"] for row in rows[:4]] == names
    heads = [rows_of(path) for path in tables]
    change = float(heads[1][0]["self_mean"]) - float(heads[0][0]["self_mean"])
    assert float(rows[1]["self_mean_change"]) == change != 0
    # a QK matrix has no writes: centring them changes nothing
    qk = [row for row in rows if row["matrix"] == "qk"]
    assert all(one["self_mean"] == two["self_mean"] for one, two in zip(qk[2::4], qk[3::4], strict=True))
    assert all(path.stat().st_size > 5000 for path in figures)
    facts = json.loads((tmp_path / "treatments.json").read_text())["facts"]
    assert "the next LayerNorm cannot see" in facts["value"]["caption"]
    assert "norm treatments raw, gain, gain_and_center and gain_and_center_write side by side" in facts["qk"]["caption"]
    assert "no norm folded in" not in facts["value"]["caption"]
