"""Holds that every block of every page is true: it runs, and prints what the page shows."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docs.blocks import KINDS, ROOT, blocks, pages
from tests.docs.play import play
from tests.docs.shell import Shell

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in pages()}
BLOCKS = {page: list(blocks(page, text)) for page, text in PAGES.items()}
RUNNING = {"python", "sh", "console"}
FIRST = "README.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        # What is read first, in every run; the other pages where there is more time.
        pytest.param(page, marks=() if page == FIRST else pytest.mark.torture)
        for page, found in BLOCKS.items()
        if RUNNING & {each.kind for each in found}
    ],
)
def test_what_a_page_shows_is_what_happens(page: str, tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        for each in BLOCKS[page]:
            faults = list(play(each, shell, tmp_path))

            assert not faults, "\n\n".join(faults)


def test_every_block_says_what_it_is() -> None:
    unknown = [
        f"{each.page}:{each.line} {each.kind!r}"
        for found in BLOCKS.values()
        for each in found
        if each.kind not in KINDS
    ]

    assert unknown == []


def test_every_block_of_data_can_be_read() -> None:
    readers: dict[str, Callable[[str], object]] = {
        "toml": tomllib.loads,
        "json": json.loads,
        "yaml": YAML(typ="safe", pure=True).load,
    }
    data = [each for found in BLOCKS.values() for each in found if each.kind in readers]

    for each in data:
        assert readers[each.kind](each.content) is not None, f"{each.page}:{each.line}"


def test_the_blocks_that_are_only_shown_are_counted() -> None:
    counted = {page: sum(each.kind == "text" for each in found) for page, found in BLOCKS.items()}
    shown = {page: count for page, count in counted.items() if count}

    print(f"blocks that are shown and not run: {sum(shown.values())} {shown}")
    assert sum(shown.values()) < sum(len(found) for found in BLOCKS.values())


def test_the_readme_begins_with_six_lines_and_shows_the_example() -> None:
    first, shown = [each.content for each in BLOCKS["README.md"] if each.kind == "python"]
    example = (ROOT / "examples" / "ask.py").read_text("utf-8")

    assert body_of(shown).startswith("async def ask(")
    assert body_of(shown) in example
    assert len(list(filter(None, first.splitlines()))) <= 6


def body_of(code: str) -> str:
    """Return the functions of a block, without its imports and its last call."""
    return code.partition("\n\n\n")[2].rpartition("\n\n\n")[0]
