"""Documents of the index: their numbers, the marks they are filtered by, and their words."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

from holdfast.domain.messages import Role, decode_parts
from holdfast.domain.search_texts import text_of, tool_of
from holdfast.domain.search_words import words_of
from holdfast.domain.times import microseconds
from holdfast.storage.database import Row

# A number is a key and, in the last bits, what is counted within it.
WIDTH: Final = 24
NUMBERS: Final = 1 << WIDTH
# Claims stand below everything that was said.
CLAIMS: Final = -(1 << 62)
LOWEST: Final = CLAIMS
HIGHEST: Final = (1 << 62) - 1
_DAY: Final = 86_400_000_000
_DIGITS: Final = 5
_LAST_DAY: Final = 10**_DIGITS - 1


class Origin(Struct, frozen=True):
    """Whose document it is, and of which agent and repository."""

    owner: str
    agent_id: str | None = None
    repo_id: str | None = None


def place_of(key: int, number: int) -> int:
    """Return the number of a document; below zero a key is that of an entity."""
    return key << WIDTH | number if key > 0 else CLAIMS + (-key << WIDTH | number)


def source_of(place: int) -> tuple[int, int]:
    """Return the key and the number within it that a document stands for."""
    if place >= 0:
        return place >> WIDTH, place & (NUMBERS - 1)
    return -((place - CLAIMS) >> WIDTH), (place - CLAIMS) & (NUMBERS - 1)


def message_words(origin: Origin, row: Row) -> str:
    """Return what the index holds of a message: role, microseconds, and encoded parts."""
    role, at, stored = row
    parts = decode_parts(stored)
    tool = tool_of(parts)
    marks = [*_marks(origin, at), role_mark(role)]
    return _joined(text_of(parts), marks if tool is None else [*marks, mark("t", tool)])


def text_words(origin: Origin, at: int, text: str) -> str:
    """Return what the index holds of a title or a claim."""
    return _joined(text, _marks(origin, at))


@lru_cache(maxsize=1_024)
def mark(kind: str, value: str) -> str:
    """Return a word that no text holds, for something that documents are filtered by."""
    # A dot is no part of any word, and is one to the index, because it is not of ASCII.
    return f"·{kind}{hashlib.blake2s(value.encode(), digest_size=6).hexdigest()}"


def role_mark(role: Role | str) -> str:
    """Return the mark of a role."""
    return mark("u", str(role))


def days(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return the first and the last day that may hold something; outside of time it is its end."""
    first = 0 if since is None else microseconds(since) // _DAY
    last = _LAST_DAY if until is None else microseconds(until) // _DAY
    return max(first, 0), min(last, _LAST_DAY)


def day_beginnings(first: int, last: int) -> list[str]:
    """Return marks, or beginnings of them, that together are those of the days from one to another.

    As few as there can be: whole tens, hundreds and so on by what they have in common.
    """
    found = []
    at = first
    while at <= last:
        size = 1
        while at % (size * 10) == 0 and at + size * 10 - 1 <= last and size < _LAST_DAY:
            size *= 10
        kept = _DIGITS - (len(str(size)) - 1)
        found.append(f"·d{at:0{_DIGITS}}"[: 2 + kept])
        at += size
    return found


def _marks(origin: Origin, at: int) -> list[str]:
    marks = [mark("o", origin.owner), f"·d{min(max(at // _DAY, 0), _LAST_DAY):0{_DIGITS}}"]
    if origin.agent_id is not None:
        marks.append(mark("a", origin.agent_id))
    if origin.repo_id is not None:
        marks.append(mark("r", origin.repo_id))
    return marks


def _joined(text: str, marks: Iterable[str]) -> str:
    # Sorted, so that the same text always makes the same index.
    return " ".join(sorted({*words_of(text), *marks}))
