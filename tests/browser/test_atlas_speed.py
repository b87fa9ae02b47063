"""The atlas of 768 heads: its size, and the times a reader waits."""

import os
from pathlib import Path

import numpy as np
import pytest

from browser.synthetic import Shape, atlas_arguments, write_results

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SLACK = float(os.environ.get("HEADMAPS_TIME_SLACK", "1"))
"""How many times the promised time a machine may take that does other things besides (CI)."""
HEADS = ((3, 7), (13, 7), (20, 31), (8, 0), (1, 16))
VISIT = """address => new Promise(resolve => {
    const start = performance.now();
    location.hash = address;
    const look = () => document.body.dataset.drawn === address && document.body.dataset.drawing === 'no'
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)))
        : setTimeout(look, 2);
    look();
})"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An atlas of the published model's dimensions."""
    from headmaps.steps import atlas

    folder = tmp_path_factory.mktemp("large")
    write_results(folder, Shape(tuple(range(24)), 32, 2048, 64))
    atlas.main(atlas_arguments(folder, "large"))
    return folder / "atlas.html"


def test_a_page_of_768_heads_is_at_most_25_megabytes(large):
    assert large.stat().st_size <= 25e6


def test_the_first_view_takes_less_than_three_seconds_and_a_head_less_than_300_milliseconds(open_page, large):
    firsts, heads = [], []
    for _ in range(3):  # the best of three: the machine may be busy with other things
        page = open_page(large)
        firsts.append(page.page.evaluate("performance.getEntriesByName('atlas-drawn')[0].startTime"))
        page.page.wait_for_timeout(1500)  # a reader looks before the first click
        times = [page.page.evaluate(VISIT, f"#/head?layer={layer}&head={head}") for layer, head in HEADS]
        heads.append(times)
    best = np.min(heads, axis=0)
    print(f"first view {min(firsts):.0f} ms; heads {np.round(best)} ms; {large.stat().st_size / 1e6:.1f} MB")
    assert min(firsts) < 3000 * SLACK
    assert best.max() < 300 * SLACK
