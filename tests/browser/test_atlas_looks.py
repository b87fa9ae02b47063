"""Every view at both widths, in both themes: axe finds no serious fault, nothing overflows; pictures are kept."""

from pathlib import Path

import pytest

from browser.conftest import MODELS

pytestmark = pytest.mark.browser

ARTEFACTS = Path(__file__).parents[1] / "artefacts" / "atlas"
VIEWS = {
    "overview": "#/overview?layer=3&head=2&sel=1.2%2C3.5",
    "scatter": "#/scatter?layer=3&head=2&sel=1.2%2C3.5",
    "histogram": "#/histogram?layer=3",
    "head": "#/head?layer=3&head=2",
    "table": "#/table?where=self_mean%3E%3D0.1",
    "making": "#/making",
    "definitions": "#/definitions?of=self_mean",
    "index": "#/",
}


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", VIEWS)
def test_view_is_accessible_and_fits(open_page, results, view, width, theme):
    from axe_core_python.sync_playwright import Axe

    folder = results if view == "index" else results / MODELS[0]
    page = open_page(folder / "atlas.html", VIEWS[view], width=width, theme=theme)
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=ARTEFACTS / f"{view}-{width}-{theme}.png", full_page=True)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page.page)
    faults = [
        f"{fault['id']}: {node['target']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert faults == []
    assert found["passes"], "axe looked at nothing"


def test_every_figure_has_a_caption_and_a_description(open_page, results):
    page = open_page(results / MODELS[0] / "atlas.html")
    for view in ("overview", "scatter", "histogram", "head"):
        page.visit(VIEWS[view])
        for figure in page.page.locator("figure").all():
            assert len(figure.locator("figcaption").inner_text()) > 60
            assert len(figure.locator(".plot-box").get_attribute("aria-label")) > 40
    page.visit(VIEWS["scatter"])
    assert page.page.locator("figcaption a[href^='#/definitions']").count() == 3
