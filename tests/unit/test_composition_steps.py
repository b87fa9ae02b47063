"""The composition steps from head folders to table and figure."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from headmaps.figures import composition as figure
from headmaps.steps import composition, composition_table
from support.small_model import KV, LAYERS, D, H, R, call, heads_folders, small_geometry, small_layers, write_model


def planted():
    """Head 1 of layer 0 writes what the keys of head 3 (group 1) of layer 2 read, and nothing else is special."""
    geometry = small_geometry(n_kv_heads=H)
    layers = small_layers(geometry)
    W_K = layers[2].W_K.copy()
    # the reader sees the stream through its gain, so that W_K must undo it
    W_K[3] = layers[0].W_O[1].T / layers[2].extras["norm_weight"][:, None]
    layers[2] = replace(layers[2], W_K=W_K)
    return geometry, layers


def run(folder, geometry, layers):
    """Both steps; returns (npz files, table, figures, record)."""
    write_model(folder, geometry, layers)
    shape, folders = folder / "heads/geometry.json", heads_folders(folder)
    outputs = []
    for layer, heads in enumerate(folders):
        outputs.append(folder / f"gain/composition/layer-{layer:02d}.npz")
        call(
            composition, {"layer_norm": "gain"}, geometry=shape, heads=heads, writers=folders[:layer], layer=layer,
            output=outputs[-1], record=outputs[-1].with_suffix(".json"),
        )  # fmt: skip
    table, figures = folder / "composition.csv", [folder / "composition.svg", folder / "composition.png"]
    call(
        composition_table, {"model": "small", "layer_norm": "gain", "pairs": 7}, geometry=shape,
        source=folder / "checkpoint/source.json", compositions=outputs, table=table, figures=figures,
        record=folder / "composition.json",
    )  # fmt: skip
    return outputs, table, figures, json.loads((folder / "composition.json").read_text())


def test_the_planted_pair_leads_its_table(tmp_path):
    outputs, table, figures, record = run(tmp_path, *planted())
    rows = list(csv.DictReader(table.open()))
    assert [row["way"] for row in rows] == ["V"] * 7 + ["Q"] * 7 + ["K"] * 7
    first = next(row for row in rows if row["way"] == "K")
    assert [first[name] for name in ("writer_layer", "writer_head", "reader_layer", "reader_head")] == list("0123")
    assert float(first["overlap"]) == pytest.approx(1, abs=1e-6)
    with np.load(outputs[2]) as arrays:
        assert arrays["square_K"].shape == (2, H, H)
        assert arrays["square_K"][0, 1, 3] == float(first["square"])
    assert all(path.stat().st_size > 5000 for path in figures)
    assert "‖W₁W₂‖" in record["facts"]["caption"]
    assert json.loads(outputs[1].with_suffix(".json").read_text())["facts"]["folded"]


def test_equal_inputs_give_equal_bytes(tmp_path):
    first, second = (run(tmp_path / name, *planted()) for name in ("a", "b"))
    for one, two in zip([*first[0], first[1], *first[2]], [*second[0], second[1], *second[2]], strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_a_missing_writer_is_noticed(tmp_path, capsys):
    geometry = small_geometry()
    write_model(tmp_path, geometry, small_layers(geometry))
    folders = heads_folders(tmp_path)
    with pytest.raises(SystemExit):
        call(
            composition, {"layer_norm": "gain"}, geometry=tmp_path / "heads/geometry.json", heads=folders[2],
            writers=folders[:1], layer=2, output=tmp_path / "out.npz", record=tmp_path / "out.json",
        )  # fmt: skip
    assert "layer 2 has 2 earlier layers, but 1 were given" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_the_picture_has_a_cell_for_every_pair_and_none_for_later_writers(tmp_path):
    outputs, *_ = run(tmp_path, small_geometry(), small_layers(small_geometry()))
    files = {layer: dict(np.load(path)) for layer, path in enumerate(outputs)}
    excess = figure.picture(range(LAYERS), files, D, "V").excess
    there = np.isfinite(excess).reshape(LAYERS, H, LAYERS, H)
    for writer in range(LAYERS):
        for reader in range(LAYERS):
            assert there[writer, :, reader].all() == there[writer, :, reader].any() == (writer < reader)
    assert excess[1, 2 * H + 3] == np.sqrt(files[2]["square_V"][0, 1, 3]) - D**-0.5
    assert KV * R < D


@pytest.mark.parametrize("size", [5, 6, 7])
def test_a_picture_too_large_shows_the_largest_of_each_block(size):
    values = np.full((size, size), np.nan)
    values[1, 4] = 3.0
    values[0, 4] = 1.0
    pooled, k = figure.pooled(values, most=3)
    assert k == -(-size // 3)
    assert pooled[1 // k, 4 // k] == 3.0
    assert np.isnan(pooled).sum() == pooled.size - 1
    same, one = figure.pooled(values, most=size)
    assert one == 1
    np.testing.assert_array_equal(same, values)
