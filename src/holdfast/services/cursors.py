"""Cursors of listings: opaque to the caller, and good for the listing that gave them only."""

import base64
import binascii
import hashlib
from datetime import datetime
from typing import Final

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.times import instant, microseconds

Place = tuple[datetime, str]
# Where no time orders a listing: a number, and the name it counts within.
Count = tuple[int, str]
# Rows have numbers of 64 bits.
_BEYOND: Final = 1 << 63


def encode_cursor(place: Place | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor behind a place; nothing when there is nothing behind it."""
    return None if place is None else encode_count((microseconds(place[0]), place[1]), filters)


def decode_cursor(cursor: str | None, filters: tuple[object, ...]) -> Place | None:
    """Return the place a cursor stands for, or refuse a damaged or foreign one."""
    found = decode_count(cursor, filters)
    try:
        return None if found is None else (instant(found[0]), found[1])
    except (ValueError, OverflowError):
        raise _foreign() from None


def encode_count(place: Count | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor behind a place that is counted; nothing when nothing is behind it."""
    if place is None:
        return None
    content = [_mark(filters), *place]
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")


def decode_count(cursor: str | None, filters: tuple[object, ...]) -> Count | None:
    """Return the counted place a cursor stands for, or refuse a damaged or foreign one."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        decoded = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        mark, number, name = msgspec.json.decode(decoded, type=tuple[str, int, str])
        # With other filters the same place would skip rows in silence.
        if mark != _mark(filters):
            raise ValueError("a cursor of another listing")
        if abs(number) >= _BEYOND:
            raise ValueError("a number that no row has")
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError):
        raise _foreign() from None
    return number, name


def _foreign() -> Invalid:
    return Invalid(Code.INVALID_CURSOR, "The cursor does not belong to this listing; start anew.")


def _mark(filters: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(filters).encode()).hexdigest()[:16]
