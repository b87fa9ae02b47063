"""The rotary steps from head folders to table and figure."""

import csv
import json

import numpy as np
import pytest

from headmaps.geometry import Position, Rotary
from headmaps.steps import rotary, rotary_table
from support.small_model import LAYERS, H, call, heads_folders, small_geometry, small_layers, write_model

OFFSETS = [0, 1, 8]


def run(folder, geometry, model="small"):
    """Both steps; returns (npz files, table, figures, record)."""
    write_model(folder, geometry, small_layers(geometry))
    shape = folder / "heads/geometry.json"
    outputs = []
    for layer, heads in enumerate(heads_folders(folder)):
        outputs.append(folder / f"raw/rotary/qk/layer-{layer:02d}.npz")
        spec = {"matrix": "qk", "layer_norm": "raw", "rope_offsets": OFFSETS}
        call(
            rotary, spec, geometry=shape, heads=heads, layer=layer, output=outputs[-1],
            record=outputs[-1].with_suffix(".json"),
        )  # fmt: skip
    table, figures = folder / "rotary-qk.csv", [folder / "rotary-qk.svg", folder / "rotary-qk.png"]
    call(
        rotary_table, {"model": model, "layer_norm": "raw", "matrix": "qk"}, geometry=shape,
        source=folder / "checkpoint/source.json", decompositions=outputs, table=table, figures=figures,
        record=folder / "rotary-qk.json",
    )  # fmt: skip
    return outputs, table, figures, json.loads((folder / "rotary-qk.json").read_text())


def test_the_table_has_a_row_per_layer_head_and_distance(tmp_path):
    outputs, table, figures, record = run(tmp_path, small_geometry())
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == LAYERS * H * len(OFFSETS)
    assert [row["offset"] for row in rows[:3]] == ["0", "1", "8"]
    with np.load(outputs[1]) as arrays:
        at = next(row for row in rows if (row["layer"], row["head"], row["offset"]) == ("1", "2", "8"))
        assert float(at["self_mean"]) == arrays["q_self_mean"][2, 2]
        assert float(at["sigma_max"]) == arrays["sigma"][2, 2, 0]
    assert all(figure.stat().st_size > 5000 for figure in figures)
    assert record["facts"]["ortho_root_mean_square_moved"] < 1e-12
    caption = record["facts"]["caption"]
    assert "root mean square of ortho over a head's pairs cannot change" in caption
    assert "attended position" in caption
    assert "6 dimensions in half pairs" in caption


def test_equal_inputs_give_equal_bytes(tmp_path):
    first, second = (run(tmp_path / name, small_geometry()) for name in ("a", "b"))
    for one, two in zip([*first[0], first[1], *first[2]], [*second[0], second[1], *second[2]], strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert first[3] == second[3]


def test_a_model_without_rotation_says_so(tmp_path):
    _, table, _, record = run(tmp_path, small_geometry(position=Position("alibi", slopes=[0.5] * H)))
    assert "Here no distance changes anything." in record["facts"]["caption"]
    assert "ALiBi" in record["facts"]["caption"]
    rows = list(csv.DictReader(table.open()))
    assert rows[0]["self_mean"] == rows[1]["self_mean"] == rows[2]["self_mean"]


def test_a_missing_sequence_length_is_asked_for_without_a_traceback(tmp_path, capsys):
    scaling = {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
    position = Position("rotary", {"default": Rotary("half", 6, 100.0, scaling)})
    with pytest.raises(SystemExit):
        run(tmp_path, small_geometry(position=position))
    message = capsys.readouterr().err
    assert "sequence_length: 4096" in message
    assert "Traceback" not in message


def test_with_a_sequence_length_it_runs(tmp_path):
    scaling = {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
    position = Position("rotary", {"default": Rotary("half", 6, 100.0, scaling)})
    outputs, *_ = run(tmp_path, small_geometry(position=position, sequence_length=512))
    record = json.loads(outputs[0].with_suffix(".json").read_text())
    assert "scaling dynamic" in record["facts"]["positions"][0]
