"""Holds what is kept of an output: whole characters, beginning and end, and a true count."""

import random

import pytest

from holdfast.process.streams import OutputBuffer


def kept(content: bytes, most: int, *, step: int = 7) -> OutputBuffer:
    """Return what is kept of a content that comes in pieces."""
    output = OutputBuffer(most)
    for start in range(0, len(content), step):
        output.add(content[start : start + step])
    return output


def test_what_fits_is_kept_as_it_is() -> None:
    output = kept(b"one\ntwo\xff\x00three", 100)

    assert output.text() == "one\ntwo\ufffd\ufffdthree"
    assert output.whole() == b"one\ntwo\xff\x00three"
    assert output.dropped == 0


def test_an_output_that_just_fits_is_whole() -> None:
    assert kept(b"x" * 100, 100).text() == "x" * 100
    assert kept(b"x" * 101, 100).dropped == 1


def test_nothing_can_be_kept_at_all() -> None:
    output = kept(b"gone", 0)

    assert (output.text(), output.dropped, output.whole()) == (
        "\n[… 4 bytes left out …]\n",
        4,
        None,
    )


@pytest.mark.parametrize("character", ["ä", "€", "🙂"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_in_two(character: str, shift: int) -> None:
    content = b"-" * shift + character.encode() * 100

    text = kept(content, 50).text()

    assert "\ufffd" not in text
    head, _, tail = text.partition("\n[… ")
    left_out = int(tail.split()[0])
    tail = tail.partition("…]\n")[2]
    assert len(head.encode()) + len(tail.encode()) + left_out == len(content)


def test_what_is_no_text_is_cut_where_it_is() -> None:
    text = kept(b"\x80" * 100, 20).text()

    assert text.count("\ufffd") == 17


def test_every_byte_is_kept_or_counted() -> None:
    luck = random.Random(1)
    for _ in range(50):
        content = luck.randbytes(luck.randrange(3_000_000))
        output = kept(content, 1000, step=luck.choice([1000, 300_000]))

        assert output.dropped == max(0, len(content) - 1000)
        assert output.whole() == (content if len(content) <= 1000 else None)
