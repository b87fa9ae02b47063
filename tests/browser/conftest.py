"""A browser, made-up results with their pages, and pages that fail a test when they complain or reach for a host."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser.page import AtlasPage
from browser.synthetic import Shape, atlas_arguments, index_arguments, write_results

MODELS = ("first", "first@step 2")
TREATMENTS = ("raw", "gain")
SHAPE = Shape(layers=(0, 1, 3, 4), n_heads=6, d_model=48, rank=8)
"""Layer 2 is left out, as in a hybrid: places and numbers of layers must not be confused."""

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Debian's chromium, headless; where it is absent the tests are skipped, or fail if the environment demands it."""
    program = shutil.which("chromium")
    if program is None:
        reason = "chromium is not installed (apt-get install chromium)"
        if os.environ.get("HEADMAPS_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two revisions of a made-up model, their atlases and the index page."""
    from headmaps.steps import atlas, atlas_index

    folder = tmp_path_factory.mktemp("results")
    for seed, model in enumerate(MODELS):
        write_results(folder / model, SHAPE, TREATMENTS, seed)
        atlas.main(atlas_arguments(folder / model, model, TREATMENTS))
    atlas_index.main(index_arguments(folder, MODELS))
    return folder


@pytest.fixture
def open_page(browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., AtlasPage]]:
    """Opens pages from disk; at the end none may have logged an error or asked for anything but itself."""
    opened: list[AtlasPage] = []

    def open_file(path: Path, address: str = "", *, width: int = 1280, theme: str = "light") -> AtlasPage:
        page = AtlasPage(browser, path, width=width, theme=theme)
        opened.append(page)
        page.visit(address)
        return page

    yield open_file
    for page in opened:
        page.context.close()
    assert [complaint for page in opened for complaint in page.complaints] == []
    assert [address for page in opened for address in page.foreign_requests] == []


@pytest.fixture(scope="session")
def shared_atlas(browser, results: Path) -> Iterator[AtlasPage]:
    page = AtlasPage(browser, results / MODELS[0] / "atlas.html", width=1280, theme="light")
    page.visit("#/overview")
    yield page
    page.context.close()


@pytest.fixture
def atlas(shared_atlas: AtlasPage) -> Iterator[AtlasPage]:
    """The first model's atlas at its overview; the page stays loaded between tests, its address says all it knows."""
    shared_atlas.visit("#/overview")
    shared_atlas.page.evaluate("document.activeElement.blur()")
    yield shared_atlas
    complaints, requests = list(shared_atlas.complaints), list(shared_atlas.foreign_requests)
    shared_atlas.complaints.clear()
    shared_atlas.foreign_requests.clear()
    assert complaints == []
    assert requests == []
