"""Markdown in the colours of a terminal."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.chat.live_page import render_markdown, wrap_text
from tests.marks import each_case

CODES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORTERM", raising=False)


def plain(markdown: str, width: int = 40) -> list[str]:
    """Return the lines that a person reads."""
    return CODES.sub("", render_markdown(markdown, width)).rstrip("\n").split("\n")


@each_case(
    ("markdown", "lines"),
    [
        ("# Title", ["Title"]),
        ("one\ntwo", ["one", "two"]),
        ("**bold** and `code`", ["bold and code"]),
        ("- item", [" • item"]),
        ("3. item", [" 3 item"]),
        ("```py\nx = 1\n\ny\n```", ["  x = 1", "", "  y"]),
        ("List<String> and <b>", ["List<String> and <b>"]),
        ("<details>\nhidden\n</details>", ["  <details>", "  hidden", "  </details>"]),
        ("[name](http://a.example)", ["name (http://a.example)"]),
        ('[name](http://a.example "more")', ['name (http://a.example "more")']),
        ("see ![a cat](cat.png) there", ["see a cat (cat.png) there"]),
        ("![](cat.png)", ["cat.png"]),
        ("[![a](b.png)](http://c)", ["a (b.png) (http://c)"]),
        ("[a]: http://a.example", ["[a]: http://a.example"]),
        ("[a]: http://a\n[b]: http://b", ["[a]: http://a", "[b]: http://b"]),
        ("- [a]: http://a.example", [" • [a]: http://a.example"]),
        ("```\n[a]: http://a.example\n```", ["  [a]: http://a.example"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |", [" a  b", " ────", " 1  2"]),
        ("a \x1b[5mb\u202e", ["a b"]),
    ],
)
def test_all_that_was_said_can_be_read(markdown: str, lines: list[str]) -> None:
    assert plain(markdown) == lines


@each_case("width", [1, 10, 20, 80])
def test_lines_fit_into_the_terminal(width: int) -> None:
    text = f"A rather long sentence, {'熊' * 10}, with `code` and more.\n\n- and an item of a list"

    shown = plain(text, width)

    assert max(len(line) + line.count("熊") for line in shown) <= max(width, 10)


def test_plain_text_is_folded_and_each_line_has_its_style() -> None:
    assert wrap_text("one two\tthree", 10, "dim") == [
        "\x1b[2mone two\x1b[0m",
        "\x1b[2mthree\x1b[0m",
    ]
    assert wrap_text("", 10) == [""]


WORDS = st.text("abcdefghij", min_size=1, max_size=30)
PIECES = WORDS | st.one_of(
    st.builds("![{} {}]({}.png)".format, WORDS, WORDS, WORDS),
    st.builds('[{}](http://{} "{}")'.format, WORDS, WORDS, WORDS),
    st.builds("**{}**".format, WORDS),
    st.builds("`{}`".format, WORDS),
)
TEXTS = st.lists(PIECES, min_size=1, max_size=6).map(" ".join)
TABLES = st.lists(TEXTS, min_size=1, max_size=6).map(
    lambda cells: f"|{'|'.join(cells)}|\n|{'---|' * len(cells)}\n|{'|'.join(cells)}|"
)
BLOCKS = TEXTS | TABLES | st.builds("- {}\n  - {}".format, TEXTS, TEXTS)
WIDTHS = st.integers(20, 100)


def letters(text: str) -> str:
    """Return a text without what was only drawn around it."""
    return re.sub(r"[^a-z]", "", text)


@given(text=TEXTS, width=WIDTHS)
def test_every_word_stands_on_the_screen_in_its_place(text: str, width: int) -> None:
    assert letters("".join(plain(text, width))) == letters(text)


@given(block=BLOCKS, width=WIDTHS)
def test_nothing_of_a_block_is_cut(block: str, width: int) -> None:
    shown = plain(block, width)

    assert Counter(letters("".join(shown))) == Counter(letters(block))
    assert max(map(len, shown)) <= width
