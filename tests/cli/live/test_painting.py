"""Markdown in the colours of a terminal."""

import re

import pytest

from holdfast.cli.live.painting import painted, wrapped

CODES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORTERM", raising=False)


def plain(markdown: str, width: int = 40) -> list[str]:
    """Return the lines that a person reads."""
    return CODES.sub("", painted(markdown, width)).rstrip("\n").split("\n")


@pytest.mark.parametrize(
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
        ("| a | b |\n|---|---|\n| 1 | 2 |", [" a  b", " ────", " 1  2"]),
        ("a \x1b[5mb\u202e", ["a b"]),
    ],
)
def test_all_that_was_said_can_be_read(markdown: str, lines: list[str]) -> None:
    assert plain(markdown) == lines


@pytest.mark.parametrize("width", [1, 10, 20, 80])
def test_lines_fit_into_the_terminal(width: int) -> None:
    text = f"A rather long sentence, {'熊' * 10}, with `code` and more.\n\n- and an item of a list"

    shown = plain(text, width)

    assert max(len(line) + line.count("熊") for line in shown) <= max(width, 10)


def test_plain_text_is_folded_and_each_line_has_its_style() -> None:
    assert wrapped("one two\tthree", 10, "dim") == ["\x1b[2mone two\x1b[0m", "\x1b[2mthree\x1b[0m"]
    assert wrapped("", 10) == [""]
