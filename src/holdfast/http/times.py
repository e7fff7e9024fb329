"""Instants as both surfaces spell them: UTC, always with six digits."""

from datetime import UTC, datetime


def stamp(at: datetime) -> str:
    """Return the instant as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
    told = at if at.tzinfo is UTC else at.astimezone(UTC)
    return f"{told.isoformat(timespec='microseconds')[:-6]}Z"


def stamp_or_none(at: datetime | None) -> str | None:
    """Return the instant, if there is one."""
    return None if at is None else stamp(at)
