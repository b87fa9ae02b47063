"""docs/reading-the-figures.md: every kind of figure is there, with its picture and with how it misleads."""

import re
from pathlib import Path

import pytest

from headmaps.figures.names import FIGURES

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "reading-the-figures.md").read_text()
PICTURES = re.findall(r"!\[[^\]]+\]\((figures/[^)]+)\)", TEXT)


def test_every_figure_of_the_workflow_has_a_section():
    headings = " ".join(re.findall(r"(?m)^## (.*)$", TEXT)).lower()
    for name in FIGURES:
        words = {"heatmaps": "heat maps"}.get(name, re.sub(r"(\d)", r" \1", name))
        assert words in headings, name
    for more in ("rotary", "composition", "treatments", "comparison of models", "training"):
        assert more in headings


def test_every_section_says_how_its_figure_misleads():
    sections = re.split(r"(?m)^## ", TEXT)[1:]
    assert all(section.count("*Misleading:*") == 1 for section in sections)
    unseen = [section.splitlines()[0] for section in sections if "](figures/" not in section]
    assert unseen == ["Training and two checkpoints"], "the default models have no revisions to show"
    assert {Path(picture).stem for picture in PICTURES} >= set(FIGURES)


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_are_there_and_small(picture):
    path = DOCS / picture
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size < 200_000


def test_every_shown_picture_can_be_made_again_from_results():
    update = (DOCS / "figures/update.py").read_text()
    shown = {Path(picture).stem for picture in PICTURES}
    assert shown <= set(re.findall(r'(?m)^    "(\w+)": f?"', update))
