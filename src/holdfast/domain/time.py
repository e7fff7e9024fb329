"""Times: whole microseconds since 1970 (UTC) internally, ISO 8601 externally."""

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


def microseconds(at: datetime) -> int:
    """Return the time as whole microseconds since the epoch."""
    return (at - EPOCH) // _MICROSECOND


def instant(stamp: int) -> datetime:
    """Return the time of a number of microseconds since the epoch."""
    return EPOCH + timedelta(0, 0, stamp)


DAY: Final = 86_400_000
_USUAL: Final = 40
_SPELLING: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:T([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:[.,]([0-9]+))?)?"
    r"(Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?)?"
)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_EARLIEST: Final = (1 - _FIRST_DAY) * DAY
_LATEST: Final = (date(9999, 12, 31).toordinal() + 1 - _FIRST_DAY) * DAY - 1


class Moment:
    """A time as it was given: possibly without an offset, possibly only a date.

    Not a struct, so that it can be the type of a member that is decoded from a text.
    """

    __slots__ = ("is_assumed", "is_date", "ms")

    def __init__(self, *, ms: int, is_assumed: bool = False, is_date: bool = False) -> None:
        self.ms = ms
        self.is_assumed = is_assumed
        self.is_date = is_date

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moment) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def last_ms(self) -> int:
        """Return its last millisecond; a date covers the whole day."""
        return self.ms + DAY - 1 if self.is_date else self.ms

    def _key(self) -> tuple[int, bool, bool]:
        return self.ms, self.is_assumed, self.is_date


def parse_iso8601(text: str) -> Moment | None:
    """Return the time in a text; `None` if it is not valid ISO 8601 in the years 1 to 9999."""
    # Unusually long texts are not cached, because they would take memory.
    return _remembered(text) if len(text) <= _USUAL else _parsed(text)


def _parsed(text: str) -> Moment | None:
    found = _SPELLING.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _FIRST_DAY
    except ValueError:
        return None
    if hour is None:
        return Moment(ms=days * DAY, is_assumed=True, is_date=True)
    minutes = int(hour) * 60 + int(minute) - _offset(offset)
    thousandths = int(second or 0) * 1000 + int(f"{fraction or '':0<3.3}")
    ms = days * DAY + minutes * 60_000 + thousandths
    # An offset can move the time out of the calendar, where it cannot be formatted.
    return Moment(ms=ms, is_assumed=offset is None) if _EARLIEST <= ms <= _LATEST else None


# Cached, because clients resend whole lists with the same times.
_remembered: Final = lru_cache(maxsize=8192)(_parsed)


def _offset(spelled_offset: str | None) -> int:
    """Return the offset of a local time from UTC in minutes."""
    if spelled_offset is None or spelled_offset == "Z":
        return 0
    digits = spelled_offset[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return -minutes if spelled_offset[0] == "-" else minutes


def instant_of(text: str) -> int:
    """Return the milliseconds of a timestamp that was validated before."""
    found = parse_iso8601(text)
    assert found is not None  # noqa: S101 — an internal error
    return found.ms


def format_iso8601(ms: int) -> str:
    """Return the time in the only output format: `YYYY-MM-DDThh:mm:ss.mmmZ`."""
    return f"{moment(ms).isoformat(timespec='milliseconds')[:-6]}Z"


def moment(ms: int) -> datetime:
    """Return the time of a number of milliseconds since the epoch."""
    return EPOCH + timedelta(milliseconds=ms)


def milliseconds(at: datetime) -> int:
    """Return the time in whole milliseconds, rounded down."""
    return (at - EPOCH) // _MILLISECOND


def truncate_to_ms(at: datetime) -> datetime:
    """Return the time truncated to milliseconds."""
    return moment(milliseconds(at))
