"""What the pages are made of, without a browser: packing, reading, assembling, the steps' messages."""

import base64
import json
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser.conftest import MODELS, SHAPE, TREATMENTS
from browser.synthetic import atlas_arguments, geometry_of, index_arguments, write_results
from headmaps.atlas import columns, packing, page
from headmaps.atlas.bands import NAMES, States, layer_bands
from headmaps.atlas.results import Grid, read_heads_csv
from headmaps.errors import ResultError
from headmaps.steps import atlas, atlas_index


def unpack(text: str, dtype: str) -> np.ndarray:
    """The inverse of the packing, written from its description."""
    data = zlib.decompress(base64.b64decode(text), -15)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(data, np.uint8).reshape(size, -1).T.copy().view(dtype).reshape(-1)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
def test_float64_columns_come_back_bit_by_bit(values):
    assert unpack(packing.pack_float64(np.array(values)), "<f8").tobytes() == np.array(values, "<f8").tobytes()


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_entries_of_Z_come_back_to_half_a_thousandth(values):
    zigzag = unpack(packing.pack_thousandths(np.array(values)), "<u2").astype(int)
    back = np.where(zigzag % 2, -(zigzag + 1) // 2, zigzag // 2) / 1000
    np.testing.assert_allclose(back, values, atol=0.0005000001)


def test_entries_of_Z_beyond_one_are_refused_and_missing_ones_kept():
    assert unpack(packing.pack_thousandths(np.array([np.nan])), "<u2").tolist() == [65535]
    with pytest.raises(ValueError, match=r"1\.5"):
        packing.pack_thousandths(np.array([0.2, 1.5]))


@given(st.lists(st.floats(1e-30, 1e30) | st.floats(-1e30, -1e-30), min_size=1, max_size=40))
def test_rounded_numbers_keep_four_digits(values):
    np.testing.assert_allclose(unpack(packing.pack_rounded(np.array(values)), "<f4"), values, rtol=1.7e-5)


def test_rounded_numbers_keep_what_is_not_finite():
    back = unpack(packing.pack_rounded(np.array([np.inf, -np.inf, np.nan])), "<f4")
    assert back[0] == np.inf
    assert back[1] == -np.inf
    assert np.isnan(back[2])


def test_a_column_that_follows_from_others_is_its_prediction_and_a_correction():
    rng = np.random.default_rng(0)
    own, mean = rng.normal(size=(2, 50))
    table = {"self_mean": own, "self_mean_rows_mean": mean}
    rule = columns.predicted("self_mean_rows_difference", ["rows"], table)
    assert rule == ("-", "self_mean", "self_mean_rows_mean")
    stored = own - mean
    stored[7] = np.nextafter(stored[7], 9)
    stored[8] = np.nan
    change = columns.correction(stored, rule, table)
    assert np.count_nonzero(change) == 2
    back = (change ^ (own - mean).view("<u8")).view("<f8")
    np.testing.assert_array_equal(back, stored)
    assert columns.predicted("self_mean_rows_p", ["rows"], table) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("self_mean", ("self_mean", "", "")),
        ("self_mean_gaussian_p_adjusted", ("self_mean", "gaussian", "p_adjusted")),
        ("self_mean_gaussian_mean", ("self_mean", "gaussian", "mean")),
        ("gaussian_draws", ("", "gaussian", "draws")),
        ("precision_self_mean", ("self_mean", "", "precision")),
        ("precision_sigma", ("precision_sigma", "", "")),
    ],
)
def test_columns_are_taken_apart(name, expected):
    assert columns.parts(name, ["gaussian"]) == expected


def test_equal_results_give_equal_bytes_and_the_page_asks_for_no_host(results, tmp_path):
    again = tmp_path / MODELS[0]
    write_results(again, SHAPE, TREATMENTS, 0)
    atlas.main(atlas_arguments(again, MODELS[0], TREATMENTS))
    text = (again / "atlas.html").read_bytes()
    assert text == (results / MODELS[0] / "atlas.html").read_bytes()
    own = text.replace(page.plotly_js().encode(), b"").decode()
    assert "default-src 'none'" in own
    assert "http://" not in own
    assert "https://" not in own
    assert str(tmp_path) not in own


def test_what_is_written_into_a_page_cannot_end_its_script():
    text = page.script_json({"notes": ["</script><script>alert(1)</script>", "<!--", "\u2028"]})
    assert "<" not in text
    assert json.loads(text)["notes"][0].startswith("</script>")
    assert page.escape('<b title="&">') == "&lt;b title=&quot;&amp;&quot;&gt;"


def test_a_template_is_filled_once_and_whole():
    assert page.fill("a {{x}} b", {"x": "{{y}}"}) == "a {{y}} b"
    with pytest.raises(KeyError):
        page.fill("a {{x}}", {})
    with pytest.raises(KeyError, match="y"):
        page.fill("a {{x}}", {"x": "", "y": ""})


GRID = Grid(("value",), (0, 2), 2, (4,))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0,0,value,1", "0,1,value,1", "2,0,value,1"], "3 different heads in 3 rows"),
        (["0,0,value,1", "0,0,value,1", "2,0,value,1", "2,1,value,1"], "3 different heads in 4 rows"),
        (["0,0,value,1", "0,1,value,1", "1,0,value,1", "2,1,value,1"], "line 4"),
        (["0,0,value,1", "0,2,value,1", "2,0,value,1", "2,1,value,1"], "line 3"),
        (["0,0,qk,1", "0,1,value,1", "2,0,value,1", "2,1,value,1"], "line 2"),
    ],
)
def test_a_table_of_other_heads_is_refused(tmp_path, rows, message):
    path = tmp_path / "heads.csv"
    path.write_text("\n".join(["layer,head,matrix,self_mean", *rows]) + "\n")
    with pytest.raises(ResultError, match=message):
        read_heads_csv(path, GRID)


def test_rows_may_come_in_any_order_and_cells_may_be_empty_or_words(tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text("matrix,head,layer,a,method\nvalue,1,2,4,qr\nvalue,0,2,,gram\nvalue,1,0,2,gram\nvalue,0,0,1,gram\n")
    numbers, words = read_heads_csv(path, GRID)
    np.testing.assert_array_equal(numbers["a"], [1, 2, np.nan, 4])
    assert words == {"method": ["gram", "gram", "gram", "qr"]}


def test_decompositions_in_the_wrong_order_are_noticed(results, tmp_path, capsys):
    given = atlas_arguments(results / MODELS[0], MODELS[0], TREATMENTS)
    first = given.index("--decompositions") + 1
    given[first], given[first + 1] = given[first + 1], given[first]
    given[given.index("--output") + 1] = str(tmp_path / "atlas.html")
    with pytest.raises(SystemExit):
        atlas.main(given)
    assert "not of the same run, layer or matrix" in capsys.readouterr().err
    assert not (tmp_path / "atlas.html").exists()


def test_a_missing_file_is_counted(results, tmp_path, capsys):
    given = atlas_arguments(results / MODELS[0], MODELS[0], TREATMENTS)
    del given[given.index("--vectors") + 1]
    with pytest.raises(SystemExit):
        atlas.main(given)
    assert "--vectors names 1 files" in capsys.readouterr().err
    given = index_arguments(results, MODELS)
    del given[given.index("--heads-csv") + 1]
    with pytest.raises(SystemExit):
        atlas_index.main(given)
    assert "1 tables of heads" in capsys.readouterr().err


@pytest.fixture
def states(tmp_path) -> list[States]:
    """Hidden states and head matrices of every layer, each state a multiple of one vector."""
    rng = np.random.default_rng(3)
    H, d, r = SHAPE.n_heads, SHAPE.d_model, SHAPE.rank
    found = []
    for layer in SHAPE.layers:
        folder = tmp_path / f"layer-{layer:02d}"
        folder.mkdir()
        for name, shape in {"W_Q": (H, d, r), "W_K": (H, d, r), "W_V": (H, d, r), "W_O": (H, r, d)}.items():
            np.save(folder / f"{name}.npy", rng.normal(size=shape).astype(np.float32))
        np.savez(folder / "extras.npz")
        for side in ("input", "output"):
            np.save(tmp_path / f"{side}-{layer}.npy", np.linspace(-1, 1, 101)[:, None] * rng.normal(size=d))
        found.append(States(tmp_path / f"input-{layer}.npy", tmp_path / f"output-{layer}.npy", folder))
    return found


@pytest.mark.parametrize("matrix", ["value", "qk"])
def test_the_band_holds_the_states_quantiles_on_the_singular_vectors(states, matrix):
    bands = layer_bands(states[0], geometry_of(SHAPE), "raw", matrix)
    assert set(bands) == set(NAMES)
    W = {name: np.load(states[0].heads / f"{name}.npy").astype(float) for name in ("W_Q", "W_K", "W_V", "W_O")}
    A, B = (W["W_V"][4], W["W_O"][4]) if matrix == "value" else (W["W_Q"][4], W["W_K"][4].T)
    U, _, Vh = np.linalg.svd(A @ B)
    read, written = (np.load(path)[-1] for path in (states[0].inputs, states[0].outputs))
    if matrix == "qk":
        written = read
    # multiples of one vector from -1 to 1: the quantiles are 0.98 times its size along each singular vector
    for side, size in (("input", np.abs(read @ U)[: SHAPE.rank]), ("output", np.abs(Vh @ written)[: SHAPE.rank])):
        np.testing.assert_allclose(bands[f"band_{side}_high"][4], 0.98 * size, rtol=1e-9)
        np.testing.assert_allclose(bands[f"band_{side}_low"][4], -0.98 * size, rtol=1e-9)


def test_states_of_another_width_are_refused(states, tmp_path):
    np.save(tmp_path / "input-0.npy", np.zeros((5, 3)))
    with pytest.raises(ResultError, match=r"shape \(5, 3\)"):
        layer_bands(states[0], geometry_of(SHAPE), "raw", "value")


def test_the_page_draws_the_band_where_states_are_given(results, states, tmp_path, capsys):
    given = atlas_arguments(results / MODELS[0], MODELS[0])
    given[given.index("--output") + 1] = str(tmp_path / "atlas.html")
    given[given.index("--record") + 1] = str(tmp_path / "atlas.json")
    files = [str(path) for layer in states for path in (layer.inputs, layer.outputs)]
    for layer in states:  # the workflow has the record of a layer's heads beside their folder
        layer.heads.with_suffix(".json").write_text("{}")
    atlas.main([*given, "--states", *files, "--heads", *(str(layer.heads) for layer in states)])
    assert '"band_input_low"' in (tmp_path / "atlas.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        atlas.main([*given, "--states", *files[:-1], "--heads", *(str(layer.heads) for layer in states)])
    assert "7 files of hidden states for 4 layers" in capsys.readouterr().err


def test_only_the_main_treatments_maps_are_kept_where_a_page_would_grow_too_large(results, monkeypatch):
    from headmaps.atlas import data

    def drawn(room: int) -> list[str]:
        monkeypatch.setattr(data, "ROOM", room)
        given = atlas_arguments(results / MODELS[0], MODELS[0], TREATMENTS)
        made = data.ModelData(inputs_of(given), {})
        names = [name for name, _ in made.blocks()]
        assert [t["drawn"] for t in made.manifest()["treatments"]] == [True, "z-1-0-0" in names]
        return names

    assert "z-1-0-0" in drawn(10**6)
    few = drawn(1)
    assert "z-0-0-0" in few
    assert "z-1-0-0" not in few
    assert "column-1-self_mean" in few


def inputs_of(given: list[str]):
    """The step's inputs from its command line."""
    from headmaps.atlas.data import Inputs
    from headmaps.geometry import read_geometry
    from headmaps.steps.command import arguments

    read = arguments("", atlas.FLAGS, given)
    return Inputs(
        read.spec["model"],
        tuple(read.spec["layer_norms"]),
        tuple(read.spec["matrices"]),
        read_geometry(read.geometry),
        tuple(read.heads_csv),
        tuple(read.vectors),
        tuple(read.decompositions),
    )


def test_every_script_parses_and_every_asset_is_used():
    assets = Path(page.__file__).parent / "assets"
    scripts = {path.name for path in assets.glob("*.js")}
    assert scripts == {*page.MODEL_SCRIPTS, *page.INDEX_SCRIPTS}
    assert {path.name for path in assets.iterdir()} - scripts == {"model.html", "index.html", "style.css"}
    node = shutil.which("node")
    if node is None:
        pytest.skip("node, which checks the syntax of the scripts, is not installed")
    for script in sorted(scripts):
        subprocess.run([node, "--check", assets / script], check=True, capture_output=True)
