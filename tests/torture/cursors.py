"""Cursors that readers may come with, each with what must come of it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """What a cursor can be about: a session's last number, and events by their ids."""

    last: int
    own: list[str]
    # Of another session, of another owner's, of a deleted one.
    foreign: list[str]


# Where a stream begins, if it does; otherwise how it is refused.
Expected = int | tuple[int, ...]
REFUSED = (400,)
AHEAD = (400, 409)
UNKNOWN = (400, 404)

NONSENSE = (
    *("-1", "-0", "+1", "1.0", "1e1", "0x1", "1_0", "1,2", "1;2", "1 2", "0b1", "NaN", "null"),
    *("none", "true", "soon", "NOW", "Now", "now ", "head", "latest", "*", "%", "'", '"', "--"),
    *("1'--", "1 OR 1=1", "1) OR (1=1", "${1}", "{{1}}", "../1", "1/2", "\\1", "$", "#", "?", "&"),
    *("٣", "１", "²", "Ⅷ", "൧", "１２", "é", "\u202e1", "\ufeff1", "1\u200b", "\u00a01", "1\u2028"),
    *("[1]", "(1)", "{1}", "{}", "[]", "()", "<1>", "1=1", "id: 1", "1:2", ":1", "1:", "data: 1"),
    *("0192f0c1", "0192f0c1-0000-7000-8000", "0192f0c1-0000-7000-8000-00000000dead-1", "g" * 36),
    *("{0192f0c1-0000-7000-8000-00000000dead}", "urn:uuid:0192f0c1-0000-7000-8000-00000000dead"),
    *("0192f0c100007000800000000000dead", "0" * 31, "1" * 31, "9" * 4000, "a" * 4000, "-" * 36),
)


def cursors(known: Known, luck: random.Random, count: int) -> Iterator[tuple[str, Expected]]:
    """Yield so many cursors; those that are taken begin behind a number of the session itself."""
    yield from [("", 0), ("0", 0), ("now", known.last), ("00", 0), ("0001", 1)]
    yield from ((text, REFUSED) for text in NONSENSE)
    yield from ((str(known.last + more), AHEAD) for more in (1, 2, 1000))
    yield from (
        (str((1 << bits) + more), AHEAD) for bits in (31, 32, 53, 63, 64) for more in (-1, 0)
    )
    yield from (("9" * digits, AHEAD) for digits in (18, 19, 20, 30))
    yield from ((text, number) for number, text in enumerate(known.own, start=1))
    yield from ((text, UNKNOWN) for text in known.foreign)
    yield from ((text.upper(), (400, 404)) for text in known.own[:3] if text.upper() != text)
    made = 5 + len(NONSENSE) + 3 + 10 + 4 + len(known.own) + len(known.foreign) + 3
    for _ in range(count - made):
        number = luck.randrange(known.last * 2)
        yield str(number), number if number <= known.last else AHEAD
