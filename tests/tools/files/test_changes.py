"""A change as it is shown: whole, true to the byte, and quick whatever is compared."""

from hypothesis import given
from hypothesis import strategies as some

from holdfast.tools.files.changes import diff, diff_of_new
from tests.marks import each_case

LINES = some.lists(some.sampled_from(["a\n", "b\n", "c\n", "\n", "-- x \n", "++ y \n"]))


@each_case(
    ("before", "after", "shown"),
    [
        (b"", b"a\n", "@@ -0,0 +1 @@\n+a"),
        (b"a\n", b"", "@@ -1 +0,0 @@\n-a"),
        (b"a\n", b"a\n", ""),
        (b"a", b"a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a"),
        (b"a\n", b"a\r\n", "@@ -1 +1 @@\n-a\n+a\\u000d"),
        (b"\ta\n", b"a\\\n", "@@ -1 +1 @@\n-\ta\n+a\\\\"),
        (b"\xff\n", b"a\n", "@@ -1 +1 @@\n-\\udcff\n+a"),
    ],
)
def test_a_change_is_shown_by_its_lines(before: bytes, after: bytes, shown: str) -> None:
    assert diff(before, after) == shown


def test_the_lines_around_a_change_are_shown_with_their_numbers() -> None:
    before = "".join(f"{number}\n" for number in range(1, 101))

    assert diff(before.encode(), before.replace("50\n", "fifty\n").encode()) == "\n".join(
        ["@@ -47,7 +47,7 @@", " 47", " 48", " 49", "-50", "+fifty", " 51", " 52", " 53"]
    )


@given(LINES, LINES)
def test_a_diff_says_what_any_other_would(before: list[str], after: list[str]) -> None:
    shown = diff("".join(before).encode(), "".join(after).encode())
    lines = shown.split("\n") if shown else []

    # Whoever applies it gets the new text, and whoever turns it round gets the old one back.
    assert applied(before, lines) == after
    assert len([each for each in lines if each[:1] == "+"]) >= len(after) - len(before)


def applied(before: list[str], lines: list[str]) -> list[str]:
    """Return what a unified diff makes of some lines."""
    result: list[str] = []
    at = 0
    for line in lines:
        if line.startswith("@@"):
            first, _, count = line.split()[1][1:].partition(",")
            start = int(first) - (count != "0")
            result += before[at:start]
            at = start
        elif line.startswith("+"):
            result.append(line[1:] + "\n")
        else:
            assert before[at] == line[1:] + "\n"
            result += [before[at]] * line.startswith(" ")
            at += 1
    return result + before[at:]


def test_a_large_change_is_shown_whole_instead_of_compared() -> None:
    before = "".join(f"{number}\n" for number in range(5000))
    after = before.replace("\n", "!\n")

    lines = diff(before.encode(), after.encode()).split("\n")

    assert lines[0] == "@@ -1,5000 +1,5000 @@"
    assert (lines[1], lines[5000], lines[5001], lines[-1]) == ("-0", "-4999", "+0!", "+4999!")


def test_new_text_is_marked_line_by_line() -> None:
    assert diff_of_new(b"a\n\nb") == "+a\n+\n+b\n\\ No newline at end of file"
    assert diff_of_new(b"") == ""
