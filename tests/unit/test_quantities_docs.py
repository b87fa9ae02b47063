"""docs/quantities.md says what the registries say, and names every column that the tables can have."""

from pathlib import Path

import pytest

from headmaps.blocks import BLOCK_MEANS
from headmaps.errors import ResultError
from headmaps.factor_quantities import FACTOR_REGISTRY
from headmaps.haar import COSTLY_DRAWS
from headmaps.quantities import KINDS, REGISTRY
from headmaps.quantity_reference import main, reference, with_reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quantities.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_reference(text) == text, "run: python -m headmaps.quantity_reference docs/quantities.md"


def test_every_quantity_is_described_once() -> None:
    text = reference()
    for name in (*REGISTRY, *FACTOR_REGISTRY):
        assert text.count(f"**`{name}`**") == 1


def test_registry_names_do_not_collide() -> None:
    assert not set(REGISTRY) & set(FACTOR_REGISTRY)


@pytest.mark.parametrize("entry", [*REGISTRY.values(), *FACTOR_REGISTRY.values()], ids=lambda entry: entry.name)
def test_every_entry_says_what_a_reader_needs(entry: object) -> None:
    for field in ("label", "formula", "meaning", "range", "source"):
        assert getattr(entry, field).strip()
    assert getattr(entry, "meaning").endswith(".")  # noqa: B009


def test_counterparts_under_transposition_are_mutual() -> None:
    for entry in REGISTRY.values():
        assert REGISTRY[entry.counterpart()].counterpart() == entry.name


def test_the_prose_names_kinds_and_columns() -> None:
    prose = PAGE.read_text(encoding="utf-8").partition("<!-- generated")[0]
    for name in (
        *KINDS,
        *BLOCK_MEANS,
        "overlap_p",
        "precision_sigma",
        "unresolved_pairs",
        "gap_min",
        "factor_condition",
    ):
        assert f"`{name}`" in prose
    assert f"first {COSTLY_DRAWS} draws" in prose


def test_a_page_without_marks_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ResultError, match="marks"):
        main([str(page)])
    assert page.read_text() == "no marks"
