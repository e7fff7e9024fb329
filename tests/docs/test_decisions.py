"""Holds the form of the decisions, and that every one the source points at exists."""

import re

from tests.docs.blocks import ROOT

FOLDER = ROOT / "docs" / "decisions"
LINES_MOST = 40
SECTIONS = ["Context", "Decision", "Cost", "What would change our mind"]

PAGES = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.iterdir())}


def test_decisions_are_numbered_without_a_hole() -> None:
    numbers = [int(re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", name)[1]) for name in PAGES]  # type: ignore[index]

    assert numbers == list(range(1, len(PAGES) + 1))


def test_a_decision_fits_on_a_page_and_says_what_it_costs() -> None:
    for name, text in PAGES.items():
        assert text.startswith(f"# {name[:4]} "), name
        assert len(text.splitlines()) <= LINES_MOST, name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS, name


def test_every_decision_that_is_pointed_at_exists() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named = {
        number
        for file in files
        for number in re.findall(r"[Dd]ecisions?[ /](\d{4})", file.read_text("utf-8"))
    }

    assert named <= {name[:4] for name in PAGES}
    assert "0007" in named
