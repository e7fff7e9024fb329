"""Instants: whole microseconds since 1970 (UTC) inside, ISO 8601 outside."""

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

from msgspec import Struct

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    """Return the instant as a whole number of microseconds."""
    return (at - _EPOCH) // _MICROSECOND


def instant(stamp: int) -> datetime:
    """Return the instant of a number of microseconds."""
    return _EPOCH + timedelta(0, 0, stamp)


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


class Moment(Struct, frozen=True, kw_only=True, gc=False):
    """An instant as it was told: perhaps without an offset, perhaps only a day."""

    ms: int
    is_assumed: bool = False
    is_date: bool = False

    @property
    def last_ms(self) -> int:
        """Return the last millisecond it means: a day means all of it."""
        return self.ms + DAY - 1 if self.is_date else self.ms


def parse_iso8601(text: str) -> Moment | None:
    """Return the moment that a text spells; nothing if it spells none of the years 1 to 9999."""
    # What nobody writes is not remembered: it could be long.
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
    # An offset can lead out of the calendar, where no instant could be spelled any more.
    return Moment(ms=ms, is_assumed=offset is None) if _EARLIEST <= ms <= _LATEST else None


# Lists are resubmitted whole: the same few are read again and again.
_remembered: Final = lru_cache(maxsize=8192)(_parsed)


def _offset(spelled_offset: str | None) -> int:
    """Return the minutes that a local time is ahead of UTC."""
    if spelled_offset is None or spelled_offset == "Z":
        return 0
    digits = spelled_offset[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return -minutes if spelled_offset[0] == "-" else minutes


def instant_of(text: str) -> int:
    """Return the milliseconds of a timestamp that was judged before."""
    found = parse_iso8601(text)
    assert found is not None  # noqa: S101 — a fault of ours
    return found.ms


def format_iso8601(ms: int) -> str:
    """Return the one spelling we give instants: `YYYY-MM-DDThh:mm:ss.mmmZ`."""
    return f"{moment(ms).isoformat(timespec='milliseconds')[:-6]}Z"


def moment(ms: int) -> datetime:
    """Return the instant of a number of milliseconds."""
    return _EPOCH + timedelta(milliseconds=ms)


def milliseconds(at: datetime) -> int:
    """Return the instant in whole milliseconds; the rest is cut off."""
    return microseconds(at) // 1000


def truncate_to_ms(at: datetime) -> datetime:
    """Return the instant without what is less than a millisecond."""
    return moment(milliseconds(at))
