"""Links, keys, back, theme, saving: how a reader moves through the atlas."""

import re

import pytest

from browser.conftest import MODELS, SHAPE
from browser.page import agrees, read_table

pytestmark = pytest.mark.browser

OVERVIEW = "Every head"


def test_a_click_on_a_cell_opens_that_head_and_back_returns(atlas):
    atlas.page.mouse.click(*atlas.point(OVERVIEW, 5, 2, ("xaxis2", "yaxis2")))  # third row: layer 3
    atlas.settle()
    assert atlas.heading() == "Head"
    assert atlas.hash() == "#/head?layer=3&head=5&matrix=qk"
    assert atlas.page.title().startswith("Layer 3, head 5")
    atlas.page.go_back()
    atlas.settle()
    assert atlas.heading() == "Overview"
    assert atlas.page.evaluate("document.activeElement.id") == "view-title"


def test_a_link_brings_back_what_it_was_copied_from(open_page, results):
    address = "#/table?q=ortho_mean&layer=4&head=3&matrix=qk&treatment=gain&sort=self_mean&down=yes&where=layer%3E%3D3"
    page = open_page(results / MODELS[0] / "atlas.html", address)
    assert (
        page.page.locator(".count").inner_text() == f"{2 * 2 * SHAPE.n_heads} of {2 * 4 * SHAPE.n_heads} head matrices"
    )
    assert page.page.locator("button[aria-pressed=true]").first.inner_text() == "gain"
    page.page.get_by_role("link", name="Overview").click()
    page.settle()
    assert page.page.get_by_label("Quantity").input_value() == "ortho_mean"
    assert page.page.locator(".cursor strong").inner_text() == "Layer 4, head 3"
    for key in ("q=ortho_mean", "layer=4", "head=3", "matrix=qk", "treatment=gain"):
        assert key in page.hash()


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("#/head?layer=2", "layer 2"),  # a layer of the model, but not looked at
        ("#/head?head=6", "head 6"),
        ("#/nowhere", "view nowhere"),
        ("#/overview?q=magic", "q magic"),
        ("#/overview?constructor=1", "constructor 1"),
        ("#/table?down=constructor", "down constructor"),
        ("#/table?sort=toString", "sort toString"),
    ],
)
def test_an_address_of_what_is_not_there_is_named(open_page, results, address, fault):
    page = open_page(results / MODELS[0] / "atlas.html", address)
    assert fault in page.page.get_by_role("alert").inner_text()
    page.page.get_by_role("link", name="Table", exact=True).click()
    page.settle()
    assert page.page.get_by_role("alert").is_hidden()


def test_arrow_keys_move_through_heads_and_layers(atlas, results):
    table = read_table(results / MODELS[0] / "raw" / "tables" / "heads.csv")
    atlas.press("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft")
    assert atlas.page.locator(".cursor strong").inner_text() == "Layer 3, head 1"
    value = re.search(r"Value ([\d.]+)", atlas.page.locator(".cursor").inner_text())
    assert value is not None
    assert agrees(value[1], table[3, 1, "value"]["self_mean"])
    atlas.press("Enter")
    assert atlas.hash() == "#/head?layer=3&head=1"
    atlas.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight")
    assert atlas.page.locator(".head-name").inner_text().startswith("Layer 4, head 2")
    atlas.page.go_back()  # moves between heads are one step
    atlas.settle()
    assert atlas.heading() == "Overview"


def test_arrow_keys_stay_with_a_field_that_has_the_focus(atlas):
    atlas.visit("#/head?layer=1&head=2")
    atlas.page.get_by_label("Layer", exact=True).focus()
    atlas.press("ArrowLeft")
    assert "head=2" in atlas.hash()


def test_everything_is_reachable_by_keyboard(open_page, results):
    atlas = open_page(results / MODELS[0] / "atlas.html")
    reached = []
    for _ in range(16):
        atlas.page.keyboard.press("Tab")
        reached.append(
            atlas.page.evaluate("(e => e.innerText || e.ariaLabel || e.tagName)(document.activeElement)").split("\n")[0]
        )
    wanted = ["Skip to the view", "raw", "Dark", "Overview", "Table", "All models", "Definition", "SVG", "PNG"]
    assert [name for name in wanted if name not in reached] == []
    outline = atlas.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_the_skip_link_moves_the_focus_and_not_the_address(open_page, results):
    atlas = open_page(results / MODELS[0] / "atlas.html")
    before = atlas.hash()
    atlas.press("Tab", "Enter")
    assert atlas.page.evaluate("document.activeElement.id") == "view-title"
    assert atlas.hash() == before


def test_previous_and_next_buttons_and_lists(atlas):
    atlas.visit("#/head?layer=3&head=1")
    atlas.page.get_by_role("button", name="Next head").click()
    atlas.page.get_by_role("button", name="Previous layer").click()
    atlas.page.get_by_label("Head", exact=True).select_option("4")
    atlas.page.get_by_role("button", name="QK", exact=True).click()
    atlas.settle()
    assert atlas.hash() == "#/head?layer=1&head=4&matrix=qk"


@pytest.mark.parametrize(("kind", "start"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_a_figure_is_saved(atlas, kind, start):
    atlas.visit("#/head?layer=1&head=2")
    with atlas.page.expect_download() as waiting:
        atlas.page.get_by_role("button", name=f'Save "What it writes against what it reads" as {kind}').click()
    assert waiting.value.suggested_filename == f"first-layer-1-head-2-value-map.{kind.lower()}"
    assert waiting.value.path().read_bytes().startswith(start)


def test_the_theme_follows_the_system_until_it_is_chosen(open_page, results):
    page = open_page(results / MODELS[0] / "atlas.html", theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.page.evaluate(ground)
    paper = page.plot(OVERVIEW).evaluate("plot => plot.layout.paper_bgcolor")
    page.page.get_by_role("button", name="Switch to the light theme").click()
    page.settle()
    assert page.page.evaluate(ground) != dark
    assert page.plot(OVERVIEW).evaluate("plot => plot.layout.paper_bgcolor") != paper
    page.page.reload()
    page.settle()
    assert page.page.evaluate(ground) != dark


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_jumps_between_heads(open_page, results, width):
    page = open_page(results / MODELS[0] / "atlas.html", "#/head?layer=0&head=0", width=width)
    places = """[...document.querySelectorAll('.plot-box, .controls')]
        .map(element => element.getBoundingClientRect()).map(box => [box.top, box.height])"""
    before = page.page.evaluate(places)
    page.press("ArrowRight", "ArrowDown")
    assert page.page.evaluate(places) == before


def test_the_index_links_the_models_and_compares_them(open_page, results):
    import numpy as np

    page = open_page(results / "atlas.html")
    rows = page.page.locator("tbody tr")
    assert rows.count() == len(MODELS)
    medians = []
    for model, row in zip(MODELS, rows.all_inner_texts(), strict=True):
        table = read_table(results / model / "raw" / "tables" / "heads.csv")
        values = {key: float(cells["self_mean"]) for key, cells in table.items() if key[2] == "value"}
        medians.append(float(np.median(list(values.values()))))
        assert row.split("\t")[0] == model
        assert agrees(row.split("\t")[-1], repr(medians[-1]))
    assert page.traces("Distribution over heads")[2]["x"] == pytest.approx(medians, rel=1e-6)
    points = page.traces("Two models, head by head")[1]
    first, second = (read_table(results / model / "raw" / "tables" / "heads.csv") for model in MODELS)
    for (layer, head), x, y in zip(points["customdata"], points["x"], points["y"], strict=True):
        assert x == pytest.approx(float(first[layer, head, "value"]["self_mean"]), rel=1e-6)
        assert y == pytest.approx(float(second[layer, head, "value"]["self_mean"]), rel=1e-6)
    page.page.get_by_role("button", name="QK", exact=True).click()
    page.page.get_by_label("Quantity").select_option("ortho_mean")
    page.settle()
    depth = page.traces("Along the depth")[0]
    expected = [
        np.median([float(first[layer, head, "qk"]["ortho_mean"]) for head in range(SHAPE.n_heads)])
        for layer in SHAPE.layers
    ]
    assert depth["y"] == pytest.approx(expected, rel=1e-6)
    assert depth["x"] == pytest.approx([layer / 4 for layer in SHAPE.layers])
    page.page.get_by_role("link", name=MODELS[1]).click()
    page.page.locator("body[data-drawing=no]").wait_for()
    assert page.page.locator("h1").inner_text() == MODELS[1]
    page.page.get_by_role("link", name="All models").click()
    page.page.locator("body[data-drawing=no]").wait_for()
    assert page.page.locator("h1").inner_text() == "Attention heads"
