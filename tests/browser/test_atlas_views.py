"""What each view shows, against heads.csv and the decompositions, in a real browser."""

import csv
import io
import random

import numpy as np
import pytest

from browser.conftest import MODELS, SHAPE
from browser.page import agrees, read_table
from browser.synthetic import MATRICES, PLANTED
from headmaps.haar import haar_means

pytestmark = pytest.mark.browser

LAYERS = SHAPE.layers
OVERVIEW = "Every head"
SCATTER = "Self, ortho and rotation of every head"
HISTOGRAM = "Overlaps of all heads of a layer"
MAP = "What it writes against what it reads"


@pytest.fixture
def table(results):
    return read_table(results / MODELS[0] / "raw" / "tables" / "heads.csv")


def some_heads(number: int) -> list[tuple[int, int, str]]:
    """Random heads, and the planted one."""
    chosen = random.Random(7)
    heads = [(chosen.choice(LAYERS), chosen.randrange(SHAPE.n_heads), chosen.choice(MATRICES)) for _ in range(number)]
    return [*heads, (PLANTED["layer"], PLANTED["head"], PLANTED["matrix"])]


def table_rows(page) -> list[list[str]]:
    """Layer, head and matrix of the rows of the table."""
    rows = page.page.locator("tbody tr").evaluate_all(
        """rows => rows.map(row => [...row.children].slice(0, 3)
            .map(cell => (cell.querySelector('a') ?? cell).firstChild.data))"""
    )
    return list(rows)


@pytest.mark.parametrize("column", ["self_mean", "frobenius_norm", "self_mean_gaussian_z", "gaussian_draws"])
def test_overview_holds_a_columns_number_of_every_head(atlas, table, column):
    if column == "gaussian_draws":  # the same for all heads: not offered
        options = atlas.page.locator("select option").evaluate_all("all => all.map(option => option.value)")
        assert column not in options
        assert {"self_mean", "ortho_mean_gaussian_p"} <= set(options)
        return
    atlas.page.get_by_label("Quantity").select_option(column)
    atlas.settle()
    for matrix, trace in zip(MATRICES, atlas.traces(OVERVIEW), strict=True):
        expected = [[float(table[layer, head, matrix][column]) for head in range(SHAPE.n_heads)] for layer in LAYERS]
        assert trace["z"] == expected
    assert ("zero in the middle" in atlas.page.locator("figcaption").inner_text()) == column.endswith("_z")


def test_overview_names_the_heads_at_both_ends(atlas):
    first = atlas.page.locator("ol.heads").first.locator("li").first
    assert first.inner_text().split("\n")[0] == f"Layer {PLANTED['layer']}, head {PLANTED['head']}"
    first.get_by_role("link").click()
    atlas.settle()
    assert atlas.hash() == f"#/head?layer={PLANTED['layer']}&head={PLANTED['head']}"


def test_head_page_shows_every_number_of_the_table(open_page, results, table):
    page = open_page(results / MODELS[0] / "atlas.html")
    for layer, head, matrix in some_heads(3):
        page.visit(f"#/head?layer={layer}&head={head}&matrix={matrix}")
        row = table[layer, head, matrix]
        shown = page.numbers()
        expected = {name for name in row if name.endswith(("_mean", "_z", "_p")) or "gaussian" not in name}
        assert set(shown) >= expected - {"layer", "head", "matrix"}
        wrong = [(name, text, row[name]) for name in shown for text in shown[name] if not agrees(text, row[name])]
        assert wrong == []
        assert f"Layer {layer}, head {head}" in page.page.locator(".head-name").inner_text()


def test_head_map_is_the_decompositions_Z_and_sigma(open_page, results):
    page = open_page(results / MODELS[0] / "atlas.html")
    for layer, head, matrix in some_heads(2):
        page.visit(f"#/head?layer={layer}&head={head}&matrix={matrix}")
        with np.load(results / MODELS[0] / "raw" / "decomposition" / matrix / f"layer-{layer:02d}.npz") as arrays:
            Z, sigma, eigenvalues = (arrays[name][head] for name in ("Z", "sigma", "eigenvalues"))
            bias = arrays["bias_output_b_O"][head]
        traces = page.traces(MAP)
        np.testing.assert_allclose(traces[0]["z"], Z, atol=0.00051)
        lines = {trace.get("name"): trace for trace in traces[1:] if trace.get("yaxis") == "y2"}
        np.testing.assert_allclose(lines["σ"]["y"], sigma, rtol=2e-5)
        np.testing.assert_allclose(lines["σ self"]["y"], sigma * np.abs(np.diagonal(Z)), rtol=5e-5)
        squares = sum(np.square(lines[f"σ {part}"]["y"]) for part in ("self", "ortho", "rotation"))
        np.testing.assert_allclose(squares, sigma**2, rtol=2e-4)
        output = [trace for trace in traces if trace.get("xaxis") == "x3" and trace["name"] == "b_O"]
        np.testing.assert_allclose(output[0]["x"], bias, rtol=2e-5, atol=1e-12)
        drawn = [complex(x, y) for t in page.traces("Eigenvalues") for x, y in zip(t["x"], t["y"], strict=True)]
        np.testing.assert_allclose(np.sort_complex(drawn), np.sort_complex(eigenvalues), rtol=1e-4, atol=1e-5)
        null = page.traces("Spectrum")[2]["y"]
        assert np.sum(np.square(null)) == pytest.approx(np.sum(sigma**2), rel=0.03)


def test_scatter_draws_shares_the_fit_and_the_random_point(atlas, table):
    atlas.page.get_by_role("link", name="Self, ortho, rotation").click()
    atlas.settle()
    means = np.array(
        [
            [float(table[layer, head, "value"][f"{part}_mean"]) for part in ("self", "ortho", "rotation")]
            for layer in LAYERS
            for head in range(SHAPE.n_heads)
        ]
    )
    shares = means / means.sum(axis=1, keepdims=True)
    cloud, points, line, reference, *_ = atlas.traces(SCATTER)
    np.testing.assert_allclose(np.stack([points["b"], points["a"], points["c"]], axis=1), shares, rtol=1e-9)
    b, a = np.polyfit(shares[:, 0], shares[:, 1], 1)
    np.testing.assert_allclose(line["a"], a + b * np.array(line["b"]), rtol=1e-6)
    shown = atlas.page.locator("#fit").inner_text().split()
    assert agrees(shown[2], repr(float(a)))
    assert agrees(shown[4], repr(abs(float(b))))
    own, rotation, ortho = haar_means(SHAPE.d_model, SHAPE.rank)
    assert [reference[axis][0] for axis in "bca"] == pytest.approx([own, rotation, ortho])
    assert np.mean(cloud["b"]) == pytest.approx(own, rel=0.05)
    assert len(cloud["b"]) == 400


def test_brushing_selects_heads_and_the_table_shows_them(atlas, table):
    atlas.visit("#/scatter?zoom=no")
    left, top, width, height = atlas.plot(SCATTER).evaluate(
        """plot => {
            const box = plot.querySelector('.plotbg path').getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }"""
    )
    start, end = (left + 0.45 * width, top + 0.9 * height), (left + 0.7 * width, top + 0.05 * height)
    inside = atlas.plot(SCATTER).evaluate(
        """(plot, [x0, y0, x1, y1]) => {
            const marks = [...plot.querySelectorAll('.trace')[1].querySelectorAll('.point')];
            return marks.filter(mark => {
                const box = mark.getBoundingClientRect();
                const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
                return x > x0 && x < x1 && y > y1 && y < y0;
            }).length;
        }""",
        [*start, *end],
    )
    atlas.page.mouse.move(*start)
    atlas.page.mouse.down()
    atlas.page.mouse.move(left + width / 2, top + height / 2, steps=4)
    atlas.page.mouse.move(*end, steps=4)
    atlas.page.mouse.up()
    atlas.settle()
    assert 3 < inside < len(LAYERS) * SHAPE.n_heads
    assert atlas.page.get_by_role("heading", name=f"Selected heads: {inside}").is_visible()
    assert atlas.hash().count(".") == inside
    # a smaller selection, as its address holds it
    atlas.visit("#/scatter?sel=3.5%2C1.2")
    assert atlas.page.get_by_role("heading", name="Selected heads: 2").is_visible()
    atlas.page.get_by_role("link", name="Show them in the table").click()
    atlas.settle()
    rows = table_rows(atlas)
    assert rows == [[layer, head, matrix] for layer, head in (("1", "2"), ("3", "5")) for matrix in MATRICES]
    atlas.page.go_back()
    atlas.settle()
    atlas.page.get_by_role("button", name="Clear the selection").click()
    atlas.settle()
    assert "sel" not in atlas.hash()


@pytest.mark.parametrize("weighted", [True, False])
def test_histogram_counts_the_pairs_of_the_layer_on_the_slider(atlas, results, weighted):
    atlas.visit(f"#/histogram?weighted={'yes' if weighted else 'no'}&range=one")
    slider = atlas.page.get_by_role("slider", name="Layer")
    slider.focus()
    atlas.press("End")
    assert slider.get_attribute("aria-valuetext") == f"layer {LAYERS[-1]}"
    with np.load(results / MODELS[0] / "raw" / "decomposition" / "value" / f"layer-{LAYERS[-1]:02d}.npz") as arrays:
        overlap = np.diagonal(arrays["Z"], axis1=1, axis2=2)
        values = arrays["sigma"] * overlap if weighted else overlap
    for head, trace in enumerate(atlas.traces(HISTOGRAM)[: SHAPE.n_heads]):
        counts, edges = np.histogram(values[head], bins=100, range=(-1, 1))
        middles = (edges[:-1] + edges[1:]) / 2
        drawn = dict(zip(np.round(trace["x"], 6), trace["y"], strict=True))
        assert drawn == {round(middle, 6): count for middle, count in zip(middles, counts, strict=True) if count}
    outside = int((np.abs(values) > 1).sum())
    assert f"not drawn: {outside} of {values.size} pairs" in atlas.page.locator("figcaption").inner_text()


def test_histogram_can_show_all_pairs(atlas, results):
    atlas.visit("#/histogram")
    atlas.page.get_by_role("button", name="all pairs").click()
    atlas.settle()
    assert "not drawn: 0 of" in atlas.page.locator("figcaption").inner_text()
    assert sum(sum(trace["y"]) for trace in atlas.traces(HISTOGRAM)[: SHAPE.n_heads]) == SHAPE.n_heads * SHAPE.rank


def test_table_sorts_filters_and_searches(atlas, table):
    atlas.visit("#/table")
    assert atlas.page.locator(".count").inner_text() == f"{len(table)} of {len(table)} head matrices"
    atlas.page.locator("[data-sort=self_mean]").click()
    atlas.settle()
    column = atlas.page.locator("tbody tr td:nth-child(4)").all_inner_texts()
    ordered = sorted((float(row["self_mean"]) for row in table.values()), reverse=True)
    assert len(column) == len(ordered)
    assert all(agrees(text, repr(value)) for text, value in zip(column, ordered, strict=True))
    assert atlas.page.locator("th[aria-sort=descending]").count() == 1

    atlas.page.get_by_label("Filter", exact=True).select_option("self_mean")
    atlas.page.get_by_label("Limit").fill("0.4")
    atlas.page.get_by_role("button", name="Add filter").click()
    atlas.settle()
    expected = sum(value >= 0.4 for value in ordered)
    assert atlas.page.locator(".count").inner_text() == f"{expected} of {len(table)} head matrices"
    atlas.page.get_by_role("button", name="Remove the filter self (mean) ≥ 0.4").click()

    atlas.page.get_by_label("Search").fill("3.5 qk")
    atlas.settle()
    assert table_rows(atlas) == [["3", "5", "qk"]]
    atlas.page.locator("tbody a").click()
    atlas.settle()
    assert atlas.heading() == "Head"
    assert "layer=3&head=5&matrix=qk" in atlas.hash()


def test_downloaded_table_is_heads_csv_to_the_last_bit(atlas, table):
    atlas.visit("#/table?find=layer+3")
    with atlas.page.expect_download() as waiting:
        atlas.page.get_by_role("button", name="Download these rows as CSV").click()
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert len(rows) == 2 * SHAPE.n_heads
    for row in rows:
        own = table[int(row["layer"]), int(row["head"]), row["matrix"]]
        assert list(row) == list(own)
        numbers = [(row[name], own[name]) for name in own if name != "matrix"]
        assert all(a == b == "" or float(a) == float(b) for a, b in numbers)


def test_weights_switch_shows_the_other_treatments_numbers(atlas, results):
    other = read_table(results / MODELS[0] / "gain" / "tables" / "heads.csv")
    atlas.visit("#/head?layer=4&head=3")
    atlas.page.get_by_role("button", name="gain", exact=True).click()
    atlas.settle()
    shown = atlas.numbers()
    assert all(agrees(text, other[4, 3, "value"]["self_mean"]) for text in shown["self_mean"])
    with np.load(results / MODELS[0] / "gain" / "decomposition" / "value" / "layer-04.npz") as arrays:
        np.testing.assert_allclose(atlas.traces(MAP)[0]["z"], arrays["Z"][3], atol=0.00051)


def test_the_page_says_how_it_was_made(atlas, results):
    from headmaps.records import sha256_of_file

    atlas.page.get_by_role("link", name="How this was made").click()
    atlas.settle()
    text = atlas.page.locator("#view").text_content()
    for words in ("0" * 40, "safetensors", "d_model", str(SHAPE.d_model), "numpy", "plotly.js", "gaussian"):
        assert words in text
    assert sha256_of_file(results / MODELS[0] / "raw" / "tables" / "heads.csv") in text
    assert "These numbers are made up <by a test>." in text


def test_every_column_of_the_overview_has_its_definition(atlas):
    from headmaps.quantities import REGISTRY

    atlas.page.get_by_role("link", name="Definition", exact=True).click()
    atlas.settle()
    assert atlas.page.locator(".entry.marked dt").inner_text() == REGISTRY["self_mean"].label
    assert REGISTRY["self_mean"].formula in atlas.page.locator(".entry.marked").inner_text()
