"""Time bounds of queries: `as_of` and time windows."""

from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.time import Moment, moment, parse_iso8601
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.validation import build_issue, value_issues


class AsOf(Struct, frozen=True, kw_only=True):
    """Visibility bounds by observation time and by ingestion time, both inclusive."""

    at: datetime | None = None
    at_ingested: datetime | None = None

    def shows(self, observed_at: datetime, created_at: datetime) -> bool:
        """Return whether a row with these times is visible."""
        return (self.at is None or observed_at <= self.at) and (
            self.at_ingested is None or created_at <= self.at_ingested
        )


EVERYTHING: Final = AsOf()


class TimeWindow(Struct, frozen=True, kw_only=True):
    """A time range in milliseconds, both ends inclusive."""

    start: int | None = None
    end: int | None = None

    def holds(self, ms: int) -> bool:
        """Return whether an instant lies in the window."""
        return (self.start is None or ms >= self.start) and (self.end is None or ms <= self.end)


ALWAYS: Final = TimeWindow()


def parse_as_of(at: Any = None, at_ingested: Any = None) -> AsOf:
    """Parse `as_of` bounds, or raise `Invalid`; a date includes the whole day."""
    issues = [*_faults("at", at), *_faults("at_ingested", at_ingested)]
    if issues:
        raise rejection(issues)
    return AsOf(at=_last(at), at_ingested=_last(at_ingested))


def parse_window(
    start_date: Any = None,
    end_date: Any = None,
    *,
    names: tuple[str, str] = ("start_date", "end_date"),
) -> TimeWindow:
    """Parse a time window, or raise `Invalid`; the end date includes the whole day.

    `names` are those of the two parameters, for errors.
    """
    first, last = names
    issues = [*_faults(first, start_date), *_faults(last, end_date)]
    if issues:
        raise rejection(issues)
    start, end = _moment(start_date), _moment(end_date)
    if start and end and start.ms > end.last_ms:
        raise rejection(
            (build_issue(end_date, (last,), f"gte: {first}", f"must not be before {first}"),)
        )
    return TimeWindow(start=start.ms if start else None, end=end.last_ms if end else None)


def _faults(name: str, value: Any) -> list[Issue]:
    return value_issues(name, Moment, value)


def _moment(text: str | None) -> Moment | None:
    return None if text is None else parse_iso8601(text)


def _last(text: str | None) -> datetime | None:
    found = _moment(text)
    if found is None:
        return None
    last = moment(found.last_ms)
    # Journal rows have microseconds; include all rows of this millisecond.
    return last.replace(microsecond=last.microsecond + 999)
