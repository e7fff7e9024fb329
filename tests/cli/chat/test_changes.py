"""Changes that nobody was asked about."""

from typing import Any

from holdfast.cli.chat.screen import SHOWN_MOST, change_lines
from tests.marks import each_case


@each_case(
    ("name", "arguments", "lines"),
    [
        ("edit_file", {"old": "a\nb", "new": "a\nc"}, [" a", "-b", "+c"]),
        ("write_file", {"content": "one\ntwo\n"}, ["+one", "+two"]),
        ("write_file", {"path": "x"}, []),
        ("read_file", {"path": "x"}, []),
    ],
)
def test_a_change_is_told_line_by_line(
    name: str, arguments: dict[str, Any], lines: list[str]
) -> None:
    assert change_lines(name, arguments) == lines


def test_a_long_one_is_cut() -> None:
    lines = change_lines("write_file", {"content": "x\n" * 50})

    assert lines == ["+x"] * SHOWN_MOST + ["… 20 more lines"]
