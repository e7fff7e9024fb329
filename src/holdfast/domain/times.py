"""Instants as the store keeps them: whole microseconds since 1970, always UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    """Return the instant as a whole number of microseconds."""
    return (at - _EPOCH) // _MICROSECOND


def instant(stamp: int) -> datetime:
    """Return the instant of a number of microseconds."""
    return _EPOCH + timedelta(0, 0, stamp)
