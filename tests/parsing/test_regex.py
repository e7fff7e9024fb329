"""Patterns of strangers: what they find, and what is refused."""

import time

import pytest

from holdfast.parsing.regex import LONGEST, PatternError, compile_pattern
from tests.marks import each_case


@each_case(
    ("pattern", "text", "is_in", "is_all"),
    [
        ("b+", "abbc", True, False),
        ("b+", "bbb", True, True),
        ("^a.c$", "abc", True, True),
        (r"\bnot\b", "knot", False, False),
        ("(?i)ÄRGER", "ärger", True, True),
        ("", "", True, True),
        (r"\pL\d", "ж7", True, True),
        ("a(b)(?P<name>c)", "abc", True, True),
        ("b", "a\ud800b", True, False),
    ],
)
def test_a_pattern_is_looked_for_in_a_text(
    pattern: str, text: str, is_in: bool, is_all: bool
) -> None:
    compiled = compile_pattern(pattern)

    assert (compiled.is_in(text), compiled.is_all_of(text)) == (is_in, is_all)


def test_bytes_are_matched_as_they_are() -> None:
    compiled = compile_pattern("caf.")

    assert compiled.is_in("un café".encode())
    assert compiled.is_all_of("café".encode())
    assert not compiled.is_in(b"caf\xff")


@each_case(
    "pattern",
    [
        "(",
        "[",
        "a{2000}",
        r"(a)\1",
        "(?=a)",
        "(?<!a)",
        "((a{100}){100}){100}",
        r"\pL{1000}",
        "\ud800",
    ],
)
def test_what_is_no_pattern_of_ours_is_refused(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PatternError, match="linear-time"):
        compile_pattern(pattern)

    assert capfd.readouterr() == ("", "")


def test_a_pattern_may_have_so_many_characters() -> None:
    assert compile_pattern("x" * LONGEST).is_in("x" * LONGEST)
    with pytest.raises(PatternError, match="4000 characters"):
        compile_pattern("x" * (LONGEST + 1))


def test_a_pattern_that_would_keep_others_busy_for_years_is_answered_at_once() -> None:
    begun = time.monotonic()

    assert not compile_pattern("(x+x+)+y").is_in("x" * 100_000)

    # A backtracking engine would need more steps than there are atoms.
    assert time.monotonic() - begun < 5
