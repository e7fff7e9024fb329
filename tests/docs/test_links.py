"""Holds that every link between our pages leads somewhere, down to the heading."""

import re
from pathlib import Path

from tests.docs.blocks import ROOT, pages

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def test_every_link_leads_somewhere() -> None:
    found = [fault for page in pages() for fault in broken(page, page.read_text("utf-8"))]

    assert found == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](b.md) [c](concepts.md#nothing) [d](concepts.md#the-nouns) [e](https://a.example)"

    assert broken(ROOT / "docs" / "a.md", text) == [
        "docs/a.md: b.md",
        "docs/a.md: concepts.md#nothing",
    ]


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere; addresses on the web are not followed."""
    where = page.relative_to(ROOT).as_posix()
    return [
        f"{where}: {target}"
        for target in LINK.findall(_without_code(text))
        if not target.startswith(("https://", "http://")) and not _leads(page, target)
    ]


def _leads(page: Path, target: str) -> bool:
    name, _, heading = target.partition("#")
    file = page.parent / name if name else page
    if not file.exists():
        return False
    return not heading or heading in _headings(file.read_text("utf-8"))


def _headings(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
