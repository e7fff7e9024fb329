"""What a listing asks for: filters, an order, a place to start, a limit."""

import base64
import binascii
import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.domain.agents import AgentStatus
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, Owner, RepoId, SessionId, SessionKey
from holdfast.domain.messages import Message, Role
from holdfast.domain.sessions import Status
from holdfast.domain.time import instant, microseconds

T = TypeVar("T")
LIMIT_MOST: Final = 1_000
MESSAGES_MOST: Final = 10_000


class SessionOrder(StrEnum):
    """Newest first, by which time."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a listing, and where the next part starts."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class AgentQuery(Struct, frozen=True, kw_only=True):
    """Which agents; `before` pages by key, so that new rows shift nothing."""

    owner: Owner
    status: AgentStatus | None = AgentStatus.ACTIVE
    tags: tuple[str, ...] = ()
    text: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 100


class StatusFilter(Struct, frozen=True, kw_only=True):
    """A status, where it matters only together with whether the last turn ended in an error."""

    status: Status
    has_failed: bool | None = None


class SessionQuery(Struct, frozen=True, kw_only=True):
    """Which sessions, in which order; filters combine with AND."""

    owner: Owner
    agent_id: AgentId | None = None
    repo_id: RepoId | None = None
    # With a repository, whichever; those without are of no interest to some surfaces.
    is_bound: bool = False
    statuses: tuple[Status, ...] = ()
    wishes: tuple[StatusFilter, ...] = ()
    tags: tuple[str, ...] = ()
    text: str | None = None
    forked_from: SessionId | None = None
    order: SessionOrder = SessionOrder.CREATED_AT
    # A key beside the offset: sessions that open while somebody pages then shift nothing.
    before: tuple[datetime, str] | None = None
    offset: int = 0
    limit: int = 100


class MessageQuery(Struct, frozen=True, kw_only=True):
    """Which rows of a session, by number; with `before`, the last ones before it."""

    after: int = 0
    before: int | None = None
    roles: tuple[Role, ...] = ()
    turn: int | None = None
    limit: int = MESSAGES_MOST

    def __post_init__(self) -> None:
        require_limit(self.limit, most=MESSAGES_MOST)
        if self.after < 0 or (self.before is not None and self.before < 1):
            raise Invalid(Code.INVALID_CURSOR, "A message number is a whole number from 1 on.")

    @property
    def is_choosy(self) -> bool:
        """Tell whether some rows of the stretch may not match."""
        return bool(self.roles) or self.turn is not None

    def wants(self, row: Message) -> bool:
        """Tell whether a row of the stretch matches."""
        has_role = not self.roles or row.role in self.roles
        return has_role and (self.turn is None or row.turn == self.turn)


class WorkQuery(Struct, frozen=True, kw_only=True):
    """Which questions or calls, in the order they were asked: all sessions of an owner, or one.

    `states` are as they are stored; without any, whatever the state. `after` is a session and a
    number in it, or for questions their own id. With an `id`, only those that are called so.
    """

    owner: Owner
    key: SessionKey | None = None
    id: str | None = None
    states: tuple[str, ...] = ()
    after: tuple[int, str] | None = None
    limit: int = LIMIT_MOST


def require_limit(limit: int, *, most: int = LIMIT_MOST, field: str = "limit") -> int:
    """Return the limit, or refuse one outside 1 to `most`."""
    if not 1 <= limit <= most:
        raise Invalid(
            Code.INVALID_LIMIT, f"{field} must be 1 to {most}, not {limit}.", {"field": field}
        )
    return limit


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
    content = [_listing_digest(filters), *place]
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
        if mark != _listing_digest(filters):
            raise ValueError("a cursor of another listing")
        if abs(number) >= _BEYOND:
            raise ValueError("a number that no row has")
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError):
        raise _foreign() from None
    return number, name


def _foreign() -> Invalid:
    return Invalid(Code.INVALID_CURSOR, "The cursor does not belong to this listing; start anew.")


def _listing_digest(filters: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(filters).encode()).hexdigest()[:16]
