"""Lines are counted by their bytes, and in whatever pieces they come the sum is the same."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.zones.lines import LineCount, LineReader, count_lines, is_blank, is_document
from tests.marks import each_case

# Unicode's White_Space, from the standard and not from the module under test.
WHITE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([each.encode() for each in WHITE]),
    st.sampled_from([b"\n", b"\r", b"{}", b"\xe2", b"\xe2\x80", b"\xc2", b"\x1c"]),
)
TEXTS = st.lists(PIECES, max_size=30).map(b"".join)


def counted(text: bytes) -> list[bytes]:
    """Return the lines that count, as the rule says it."""
    lines = text.split(b"\n")
    return [line for line in lines if line.decode("utf-8", "replace").strip(WHITE)]


@each_case("line", [b"", b" ", b"\r", b"\t\x0b\x0c", *(w.encode() for w in WHITE)])
def test_white_space_alone_is_blank(line: bytes) -> None:
    assert is_blank(line)


@each_case("line", [b"x", b"\x1c", b"\x1f", b"\xff", b"\xe2\x80", b"\xef\xbb\xbf"])
def test_separators_of_information_and_invalid_bytes_are_not(line: bytes) -> None:
    assert not is_blank(line)


@given(TEXTS, st.lists(st.integers(0, 80), max_size=8))
def test_counting_in_pieces_is_counting_the_whole(text: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    tally = LineCount()
    for start, end in itertools.pairwise(places):
        tally = count_lines(tally, text[start:end])

    assert tally == count_lines(LineCount(), text)
    assert tally.lines == len(counted(text))
    assert (tally.tail is not None) == (text != b"" and not text.endswith(b"\n"))
    assert len(tally.tail or b"") <= 2


@given(TEXTS, st.integers(1, 7), st.integers(0, 12), st.integers(0, 12))
def test_any_range_of_lines_is_read_from_any_part_before_it(
    text: bytes, size: int, start: int, count: int
) -> None:
    lines = counted(text)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    befores = [LineCount()]
    for part in parts:
        befores.append(count_lines(befores[-1], part))
    for number in range(len(parts)):
        if number and befores[number].ended >= start:
            break
        reader = LineReader(befores[number], start, start + count)
        for part in parts[number:]:
            reader.take(part)
            if reader.is_full:
                break
        reader.finish()

        assert reader.found == lines[start : start + count]


def test_a_range_ends_before_it_is_too_large_but_never_before_its_first_line() -> None:
    reader = LineReader(LineCount(), 0, 9, room=5)
    reader.take(b"123456\n1\n2\n")

    assert (reader.found, reader.is_full) == ([b"123456"], True)

    reader = LineReader(LineCount(), 0, 9, room=5)
    reader.take(b"12\n345\n6\n")

    assert reader.found == [b"12", b"345"]


def test_a_line_is_a_document_or_was_torn() -> None:
    assert [is_document(line) for line in (b'{"a":1}', b"1", b'{"a":', b"\xff", b"")] == [
        *(True, True, False, False, False)
    ]
    assert not is_document(b"[" * 100_000)
