"""The figure step: exactly the declared files, equal bytes each time, and readable at every size of model."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

from headmaps.decomposition import decompose_layer
from headmaps.figures import drawing, names
from headmaps.figures.style import wrap
from headmaps.geometry import write_geometry
from headmaps.records import write_array, write_arrays
from headmaps.steps import figure as step
from support.random_heads import a_geometry, a_layer
from synthetic_figures import SyntheticModel

FORMATS = ["svg", "png"]
KINDS = ("gaussian", "spectrum", "shuffle", "rows", "internal", "unpaired")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SyntheticModel(tmp_path_factory.mktemp("model"), layers=3, heads=4, d=40, r=8, biases=True, kinds=KINDS[:2])


def run(model, folder, figure, heads="auto", layers=None, formats=FORMATS, matrices=("value", "qk")):
    """Run the step for a figure; returns the files written, relative to the folder."""
    layers = list(range(model.layers)) if layers is None else layers
    matrices = names.matrices_of(figure, matrices)
    files = names.outputs(figure, layers, matrices, heads, formats, model.layers - 1)
    asked = {"figure": figure, "layers": layers, "matrices": matrices, "heads": heads, "formats": formats}
    step.main(model.command(asked, files, folder))
    return files


@pytest.mark.parametrize("figure", names.FIGURES)
def test_a_figure_writes_exactly_its_files_with_the_same_bytes_each_time(model, tmp_path, figure):
    matrix = "qk" if names.FIGURES[figure].side == "qk" else "value"
    asked = {"formats": ["svg", "png", "pdf"], "matrices": [matrix], "layers": [1], "heads": [[1, 2]]}
    files = run(model, tmp_path / "first", figure, **asked)
    run(model, tmp_path / "second", figure, **asked)
    written = {p.relative_to(tmp_path / "first").as_posix() for p in (tmp_path / "first").rglob("*") if p.is_file()}
    assert written == {*files, "record.json", "record.made.json"}
    for name in [*files, "record.json"]:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_all_heads_of_a_layer_are_the_pages_of_one_pdf(model, tmp_path):
    files = run(model, tmp_path / "a", "figure5", heads="all", layers=[1])
    run(model, tmp_path / "b", "figure5", heads="all", layers=[1])
    assert files == ["figures/figure5/layer-01.pdf"]
    data = (tmp_path / "a" / files[0]).read_bytes()
    assert len(re.findall(rb"/Type /Page\b", data)) == 4
    assert data == (tmp_path / "b" / files[0]).read_bytes()


def test_no_date_and_no_version_of_the_drawing_library_in_a_file(model, tmp_path):
    for name in run(model, tmp_path, "figure1", formats=["svg", "png", "pdf"], layers=[0]):
        data = (tmp_path / name).read_bytes()
        assert b"CreationDate" not in data
        assert b"dc:date" not in data
        assert b"matplotlib.org" not in data


def test_the_caption_travels_in_the_file_and_in_the_record(model, tmp_path):
    [svg] = run(model, tmp_path, "figure1", formats=["svg"], layers=[2])
    record = json.loads((tmp_path / "record.json").read_text())
    caption = record["facts"]["layer-02.svg"]["caption"]
    assert "commit 0123456789ab" in caption
    assert "sigma-weighted" in caption
    assert record["facts"]["layer-02.svg"]["pairs"] == 4 * 8
    assert "sigma-weighted" in (tmp_path / svg).read_text()


def test_roles_are_recorded_with_their_layer_and_head(model, tmp_path):
    run(model, tmp_path, "figure3", formats=["svg"])
    facts = json.loads((tmp_path / "record.json").read_text())["facts"]
    assert {"layer", "head"} <= set(facts["most-self.svg"])
    assert "largest mean self" in facts["most-self.svg"]["caption"]


def test_the_users_matplotlib_settings_do_not_matter(model, tmp_path):
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "matplotlibrc").write_text("axes.facecolor: pink\nfont.size: 30\nsvg.fonttype: none\nsavefig.dpi: 30\n")
    [name] = run(model, tmp_path / "here", "figure1", formats=["svg"], layers=[0])
    spec = {"figure": "figure1", "layers": [0], "matrices": ["value"], "formats": ["svg"]}
    command = model.command(spec, [name], tmp_path / "there")
    environment = {"MPLCONFIGDIR": str(settings), "PYTHONPATH": str(Path(step.__file__).parents[2])}
    subprocess.run([sys.executable, "-m", "headmaps.steps.figure", *command], env=environment, check=True)
    assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_a_head_that_the_model_does_not_have_is_named_and_nothing_is_left(model, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run(model, tmp_path, "figure3", heads=[[1, 9]], layers=[1])
    assert end.value.code == 1
    message = capsys.readouterr().err
    assert "no head 9 in layer 1" in message
    assert "heads 0 to 3" in message
    assert "Traceback" not in message
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_outputs_that_are_not_those_of_the_spec_are_refused(model, tmp_path, capsys):
    spec = {"figure": "figure1", "layers": [0], "matrices": ["value"], "formats": ["svg"]}
    with pytest.raises(SystemExit):
        step.main(model.command(spec, ["figures/figure1/layer-01.svg"], tmp_path))
    assert "figures/figure1/layer-00.svg" in capsys.readouterr().err


def test_a_damaged_decomposition_is_named(model, tmp_path, capsys):
    broken = tmp_path / "layer-00.npz"
    broken.write_bytes(model.decomposition("value", 0).read_bytes()[:500])
    spec = {"figure": "figure1", "layers": [0], "matrices": ["value"], "formats": ["svg"]}
    command = model.command(spec, ["figures/figure1/layer-00.svg"], tmp_path / "out")
    command[command.index(str(model.decomposition("value", 0)))] = str(broken)
    with pytest.raises(SystemExit):
        step.main(command)
    assert str(broken) in capsys.readouterr().err


def test_given_states_draw_the_band(tmp_path):
    geometry = a_geometry(matrices=["value"])
    heads = a_layer(geometry)
    folder = tmp_path / "heads" / "layer-00"
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        write_array(folder / f"{name}.npy", getattr(heads, name))
    write_arrays(folder / "extras.npz", heads.extras)
    folder.with_suffix(".json").write_text("{}")
    write_arrays(tmp_path / "layer-00.npz", decompose_layer(heads, geometry, "value"))
    write_geometry(tmp_path / "geometry.json", geometry)
    (tmp_path / "source.json").write_text("{}")
    for name in ("input", "output"):
        np.save(tmp_path / f"{name}-00.npy", np.random.default_rng(0).standard_normal((50, geometry.d_model)))
    spec = {"figure": "figure3", "model": "m", "layer_norm": "raw", "layers": [0], "matrices": ["value"]}
    spec |= {"heads": [[0, 3]], "formats": ["svg"]}
    output = tmp_path / "figures" / "figure3" / "layer-00-head-03.svg"
    command = [
        "--spec",
        json.dumps(spec),
        "--geometry",
        tmp_path / "geometry.json",
        "--source",
        tmp_path / "source.json",
    ]
    command += [
        "--decompositions",
        tmp_path / "layer-00.npz",
        "--outputs",
        output,
        "--record",
        tmp_path / "record.json",
    ]
    step.main([*map(str, command)])
    assert "left out" in json.loads((tmp_path / "record.json").read_text())["facts"][output.name]["caption"]
    command += ["--states", tmp_path / "input-00.npy", tmp_path / "output-00.npy", "--heads", folder]
    step.main([*map(str, command)])
    assert (
        "0.01 to 0.99 quantiles" in json.loads((tmp_path / "record.json").read_text())["facts"][output.name]["caption"]
    )


def sheets_of(model, figure, heads="auto"):
    layers = [0] if names.FIGURES[figure].per == "layer" else list(range(model.layers))
    matrices = names.matrices_of(figure, model.matrices)
    files = names.outputs(figure, layers, matrices, heads, ["svg"], model.layers - 1)
    spec = {"figure": figure, "layers": layers, "matrices": matrices, "heads": heads, "formats": ["svg"]}
    spec |= {"model": "a-model-with-quite-a-long-name.of-several-parts_and-a-step@step143000", "layer_norm": "raw"}
    request = drawing.Request.of(
        spec | {"baselines": list(model.kinds)},
        model.geometry,
        model.source,
        table=model.root / "heads.csv",
        decompositions=[model.decomposition(m, layer) for m in matrices for layer in layers],
        states=[],
        heads=[],
        outputs=[Path(file) for file in files],
    )
    return [drawn.sheet for drawn in drawing._DRAWERS[figure](request)]


def drawn_texts(sheet, monkeypatch):
    """(text, extent in pixels) of every text that a sheet really draws."""
    drawn = []
    original = Text.draw

    def draw(self, renderer, *args, **options):
        if self.get_visible() and self.get_text().strip():
            drawn.append(self)
        return original(self, renderer, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        sheet.figure.canvas.draw()
    return [(text.get_text(), text.get_window_extent()) for text in drawn]


SIZES = {
    "one layer, one head": (1, 1, 40, 8),
    "one dimension": (2, 2, 6, 1),
    "smollm2-135m": (30, 9, 96, 16),
    "falcon-rw-1b": (24, 32, 96, 16),
    "126 layers": (126, 4, 24, 4),
    "128 heads": (3, 128, 24, 4),
}
LARGE = ("smollm2-135m", "126 layers")
SLOW = pytest.mark.slow


@pytest.mark.parametrize("size", [pytest.param(name, marks=SLOW if name in LARGE else []) for name in SIZES])
def test_no_text_overlaps_another_or_leaves_the_page(size, tmp_path, monkeypatch):
    layers, heads, d, r = SIZES[size]
    model = SyntheticModel(tmp_path, layers, heads, d, r, biases=True, kinds=KINDS)
    for figure in names.FIGURES:
        for sheet in sheets_of(model, figure)[:1]:
            texts = drawn_texts(sheet, monkeypatch)
            page = sheet.figure.bbox
            for text, box in texts:
                inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1
                assert inside, f"{figure}: {text!r} leaves the page"
            for (one, a), (other, b) in combinations(texts, 2):
                wide = min(a.x1, b.x1) - max(a.x0, b.x0)
                high = min(a.y1, b.y1) - max(a.y0, b.y0)
                assert wide <= 1 or high <= 1, f"{figure}: {one!r} overlaps {other!r}"


@pytest.mark.parametrize("figure", names.FIGURES)
def test_cross_attention_says_why_there_is_nothing_to_draw(figure, tmp_path):
    model = SyntheticModel(tmp_path, 2, 2, 24, 4, stack="cross")
    lines = (tmp_path / "heads.csv").read_text().splitlines()
    keep = [lines[0].split(",").index(name) for name in ("layer", "head", "matrix")]
    emptied = [",".join(cell if i in keep else "" for i, cell in enumerate(line.split(","))) for line in lines[1:]]
    (tmp_path / "heads.csv").write_text("\n".join([lines[0], *emptied]) + "\n")
    for matrix in model.matrices:
        for layer in range(2):
            path = model.decomposition(matrix, layer)
            arrays = dict(np.load(path))
            np.savez(path, **{**arrays, "Z": 0 * arrays["Z"], "comparable": np.array([False])})
    for sheet in sheets_of(model, figure):
        assert "different spaces" in sheet.caption
        assert not sheet.figure.axes


def test_every_part_of_a_latent_qk_matrix_is_drawn(tmp_path):
    latent = {"d_head": 12, "d_head_v": 8, "d_head_rope": 4}
    model = SyntheticModel(tmp_path, 2, 2, 24, 8, matrices=("value", "qk_nope", "qk_rope"), **latent)
    titles = [sheet.title for sheet in sheets_of(model, "figure4")]
    assert "part without positions" in titles[0]
    assert "rotary part" in titles[1]
    assert len(sheets_of(model, "figure2")) == 3


def test_words_longer_than_a_line_are_broken():
    lines = wrap("a " + "x" * 400 + " b", 3.0, 7.0).split("\n")
    assert len(lines) > 3
    assert "".join(lines).replace(" ", "") == "a" + "x" * 400 + "b"


def test_large_models_become_pictures_inside_the_svg(tmp_path):
    model = SyntheticModel(tmp_path / "model", 40, 110, 12, 2)
    [name, _] = run(model, tmp_path, "nulls", formats=["svg"])
    assert (tmp_path / name).stat().st_size < 3_000_000


def test_the_style_is_not_changed_by_others():
    assert mpl.rcParams["svg.hashsalt"] == "headmaps"
