"""Instants as both surfaces spell them: UTC, always with six digits."""

from datetime import UTC, datetime


def stamp(at: datetime) -> str:
    """Return the instant as `YYYY-MM-DDTHH:MM:SS.ffffffZ`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def stamp_or_none(at: datetime | None) -> str | None:
    """Return the instant, if there is one."""
    return None if at is None else stamp(at)
