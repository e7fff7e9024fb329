"""Blocks of an answer: whole ones come out once, in whatever pieces the text comes in."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.chat.live_page import Block, BlockSplitter
from tests.marks import each_case


def cut(text: str, size: int = 1) -> list[Block]:
    """Return the blocks of a text that comes in pieces of a size."""
    blocks = BlockSplitter()
    found = []
    for start in range(0, len(text), size):
        found += blocks.add(text[start : start + size])
    return [*found, *blocks.finish()]


@each_case(
    ("text", "blocks"),
    [
        ("one\ntwo\n\nthree", [("one\ntwo", False), ("three", True)]),
        ("# head\ntext", [("# head", False), ("text", True)]),
        ("text\n# head", [("text", False), ("# head", True)]),
        ("- one\n- two\n\nthree", [("- one", False), ("- two", False), ("three", True)]),
        ("- one\n\n- two", [("- one", False), ("- two", True)]),
        ("- one\n  - inner\n- two", [("- one\n  - inner", False), ("- two", False)]),
        ("- one\n\n  more\n- two", [("- one\n\n  more", False), ("- two", False)]),
        ("- one\nlazy\n", [("- one\nlazy", False)]),
        ("text:\n- one", [("text:", False), ("- one", False)]),
        ("in\n1984. was", [("in\n1984. was", False)]),
        ("2. two\n3. three", [("2. two", False), ("3. three", False)]),
        ("```py\na\n\nb\n```\nc", [("```py\na\n\nb\n```", False), ("c", True)]),
        ("~~~~\n```\n~~~~\n", [("~~~~\n```\n~~~~", False)]),
        ("- a\n  ```\n  x\n  ```\n- b", [("- a\n  ```\n  x\n  ```", False), ("- b", False)]),
        ("```\nnever ends", [("```\nnever ends", False)]),
        ("| a |\n|---|\n| 1 |\n\nend", [("| a |\n|---|\n| 1 |", False), ("end", True)]),
        ("- one\n# head", [("- one", False), ("# head", True)]),
        ("\n\n\n", []),
        ("", []),
    ],
)
def test_a_text_is_cut_where_markdown_ends_something(
    text: str, blocks: list[tuple[str, bool]]
) -> None:
    assert cut(text) == [Block(*each) for each in blocks]


def test_a_paragraph_is_whole_with_its_blank_line_and_the_tail_is_the_rest() -> None:
    blocks = BlockSplitter()

    assert blocks.add("one\n") == []
    assert blocks.ending(9, 99) == "one\n"
    assert blocks.add("\ntw") == [Block("one", False)]
    assert blocks.ending(9, 99) == "tw"
    assert blocks.finish() == [Block("tw", True)]
    assert blocks.ending(9, 99) == ""


def test_of_a_long_tail_the_end_is_told_and_code_keeps_its_fence() -> None:
    blocks = BlockSplitter()

    blocks.add("```py\na\nb\nc")
    assert blocks.ending(1, 99) == "```py\nb\nc"
    assert blocks.ending(9, 2) == "```py\n\nc"
    blocks.add("\n```\nlong")
    assert blocks.ending(1, 2) == "ng"


LINES = st.sampled_from(
    ["text", "", "- item", "  more", "# head", "```", "1. one", "    code", "> q"]
)


@given(st.lists(LINES).map("\n".join), st.integers(1, 7))
def test_no_line_is_lost_whatever_the_pieces_are(text: str, size: int) -> None:
    found = cut(text, size)

    said = [line for block in found for line in block.text.split("\n") if line.strip()]
    assert said == [line for line in text.split("\n") if line.strip()]
    assert found == cut(text, len(text) + 1)
