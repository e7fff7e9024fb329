"""Times: whole microseconds since 1970 (UTC) internally, ISO 8601 externally."""

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


def microseconds(at: datetime) -> int:
    """Return the time as whole microseconds since the epoch."""
    return (at - EPOCH) // MICROSECOND


def instant(stamp: int) -> datetime:
    """Return the time of a number of microseconds since the epoch."""
    return EPOCH + timedelta(0, 0, stamp)


DAY: Final = 86_400_000
_USUAL: Final = 40
# Calendar, week and ordinal dates, each extended or basic.
_DATE: Final = re.compile(
    r"(?P<year>[0-9]{4})(?:"
    r"(?P<dash>-?)(?P<month>[0-9]{2})(?P=dash)(?P<day>[0-9]{2})"
    r"|(?P<week_dash>-?)W(?P<week>[0-9]{2})(?P=week_dash)(?P<weekday>[1-7])"
    r"|-?(?P<ordinal>[0-9]{3}))"
)
# The last unit given may have a fraction.
_TIME: Final = re.compile(
    r"(?P<hour>[0-9]{2})"
    r"(?:(?P<colon>:?)(?P<minute>[0-5][0-9])(?:(?P=colon)(?P<second>[0-5][0-9]|60))?)?"
    r"(?:[.,](?P<fraction>[0-9]+))?"
    r"(?P<offset>Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
_HOUR: Final = 3_600_000
_MINUTE: Final = 60_000
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
    """Return the time in a text; `None` if it is not an ISO 8601 date or time of years 1 to 9999.

    A date must name a day: a year, a month or a week alone is refused.
    """
    # Unusually long texts are not cached, because they would take memory.
    return _remembered(text) if len(text) <= _USUAL else _parsed(text)


def _parsed(text: str) -> Moment | None:
    given_date, has_time, given_time = text.partition("T")
    days = _days(given_date)
    if days is None or not has_time:
        return None if days is None else Moment(ms=days * DAY, is_assumed=True, is_date=True)
    found = _TIME.fullmatch(given_time)
    if found is None:
        return None
    hour, minute, second = (int(found[each] or 0) for each in ("hour", "minute", "second"))
    thousandths = second * 1000 + _fraction(found)
    offset = _offset(found["offset"])
    # Hour 24 is only the end of a day, and a leap second is only the last one of a UTC day.
    if hour > 24 or (hour == 24 and (minute or thousandths)):
        return None
    if second == 60 and (hour * 60 + minute - offset) % 1440 != 1439:
        return None
    ms = days * DAY + hour * _HOUR + (minute - offset) * _MINUTE + thousandths
    # An offset can move the time out of the calendar, where it cannot be formatted.
    is_assumed = found["offset"] is None
    return Moment(ms=ms, is_assumed=is_assumed) if _EARLIEST <= ms <= _LATEST else None


def _days(text: str) -> int | None:
    """Return the days since the epoch of a date; None if the calendar has no such day."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    year = int(found["year"])
    try:
        if found["month"]:
            day = date(year, int(found["month"]), int(found["day"])).toordinal()
        elif found["week"]:
            day = date.fromisocalendar(year, int(found["week"]), int(found["weekday"])).toordinal()
        else:
            day = date(year, 1, 1).toordinal() + int(found["ordinal"]) - 1
            if date.fromordinal(day).year != year:
                return None
    except (ValueError, OverflowError):
        return None
    return day - _FIRST_DAY


def _fraction(found: re.Match[str]) -> int:
    """Return the milliseconds of a fraction of the smallest unit given, rounded down."""
    digits = found["fraction"]
    if digits is None:
        return 0
    unit = 1000 if found["second"] else _MINUTE if found["minute"] else _HOUR
    # Later digits are below a millisecond, and long integers take quadratic time to parse.
    return int(f"{digits:0<9.9}") * unit // 1_000_000_000


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
