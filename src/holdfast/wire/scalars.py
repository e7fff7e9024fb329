"""Small types that many JSON forms share: ids, timestamps, limits, cursors, comma-separated lists.

Forms of one noun belong in that noun's module.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, UnsetType

from holdfast.domain.queries import decode_count, encode_count
from holdfast.domain.time import instant

NUMBER_MOST: Final = (1 << 53) - 1
Uuid = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
        extra_json_schema={"format": "uuid"},
    ),
]
Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(max_length=512)]
# The largest integer that every JSON parser reads exactly.
Number = Annotated[int, Meta(ge=0, le=NUMBER_MOST)]
ModelRef = Annotated[
    str,
    Meta(min_length=1, max_length=1024, description="A model's id, or its `provider:name`."),
]
Words = Annotated[str, Meta(max_length=1000)]


def is_given(value: object) -> bool:
    """Return whether a key was present in the body; null counts as present."""
    return not isinstance(value, UnsetType)


def format_time(at: datetime) -> str:
    """Return the instant as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
    utc = at if at.tzinfo is UTC else at.astimezone(UTC)
    return f"{utc.isoformat(timespec='microseconds')[:-6]}Z"


def format_microseconds(at: int) -> str:
    """Return the instant of a number of microseconds in the same format, for many of them."""
    second, rest = divmod(at, 1_000_000)
    return f"{_format_second(second)}.{rest:06d}Z"


# Cached, because consecutive rows are often written within a second.
@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    return instant(second * 1_000_000).isoformat()[:19]


def format_time_or_none(at: datetime | None) -> str | None:
    """Return the instant, if there is one."""
    return None if at is None else format_time(at)


def decode_cursor(cursor: str | None, *filters: object) -> int:
    """Return the number that a cursor continues after; 0 without a cursor."""
    found = decode_count(cursor, filters)
    return found[0] if found else 0


def encode_cursor(number: str | None, *filters: object) -> str | None:
    """Return the cursor that continues after a number."""
    return None if number is None else encode_count((int(number), ""), filters)


def split_commas(text: str | None) -> tuple[str, ...]:
    """Return the values of a comma-separated list, without duplicates."""
    return tuple(dict.fromkeys(text.split(","))) if text else ()


def parse_time(text: str) -> datetime:
    """Parse a time that `format_time` has formatted."""
    return datetime.fromisoformat(text)


def parse_time_or_none(text: str | None) -> datetime | None:
    """Parse a time, if there is one."""
    return None if text is None else parse_time(text)
