"""What a terminal may be shown."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.terminal import is_colored, is_terminal
from holdfast.domain.text import clean, escape_hidden, one_line
from tests.marks import each_case

FORBIDDEN = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
} - {"\n", "\t"}


class StandInTerminal(io.StringIO):
    """A stream at which a person sits."""

    def isatty(self) -> bool:
        return True


@each_case(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x9b31mx", "x"),
        ("\x9d0;title\x9cx", "x"),
        ("\x1bcx", "x"),
        ("\x1b(Bx", "x"),
        ("a\rb", "ab"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("\x1b[31", "31"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("a\u202eb\u2066c\u200fd", "abcd"),
        ("a\x00b\x07c\x08d\x7fe\x85f", "abcdef"),
        ("ein Bär, 熊, 🐻‍❄️", "ein Bär, 熊, 🐻‍❄️"),
        ("a\u200bb\u200cc\xadd\ufeffe\U000e0041", "abcde"),
        ("\u200c\u200c", ""),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
    ],
)
def test_what_steers_a_terminal_is_taken_out(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text(alphabet=st.one_of(st.sampled_from("\x1b[]0;m\x07\\\x9b\x9c"), st.characters())))
def test_no_text_keeps_a_character_that_steers(text: str) -> None:
    assert set(clean(text)) & FORBIDDEN == set()


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cf", "Cs"))))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@each_case(
    ("text", "shown"),
    [
        ("one\n\ttwo \\u0041", "one\n\ttwo \\u0041"),
        ("a\x1b[31mb\rc\x00", "a\\u001b[31mb\\u000dc\\u0000"),
        ("a\u202eb\u200bc\ufeffd\u3164", "a\\u202eb\\u200bc\\ufeffd\\u3164"),
        ("x\U000e0041", "x\\ue0041"),
        ("ein Bär, 熊", "ein Bär, 熊"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out_and_nothing_is_lost(text: str, shown: str) -> None:
    assert escape_hidden(text) == shown


@given(st.text())
def test_what_is_spelled_out_is_shown_as_it_stands(text: str) -> None:
    assert clean(escape_hidden(text)) == escape_hidden(text)


def test_one_line_is_short() -> None:
    assert one_line(" a\n b\tc ") == "a b c"
    assert one_line("abcdef", longest=4) == "abc…"


def test_a_closed_or_missing_stream_is_no_terminal() -> None:
    closed = StandInTerminal()
    closed.close()

    assert [is_terminal(each) for each in (StandInTerminal(), io.StringIO(), closed, None)] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("wish", "environment", "colored"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("never", {}, False),
        ("always", {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_are_a_matter_of_wish_and_terminal(
    wish: str, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert is_colored(StandInTerminal(), wish) is colored


def test_a_pipe_has_no_colours_by_itself() -> None:
    assert not is_colored(io.StringIO(), "auto")
