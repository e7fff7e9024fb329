"""Queries of listings: filters, order, pagination cursor and limit."""

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
    """The time to sort by, newest first."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a listing, and where the next page starts."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class AgentQuery(Struct, frozen=True, kw_only=True):
    """Filter for agents; `before` is a pagination key, so that new rows do not shift pages."""

    owner: Owner
    status: AgentStatus | None = AgentStatus.ACTIVE
    tags: tuple[str, ...] = ()
    text: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 100


class StatusFilter(Struct, frozen=True, kw_only=True):
    """A status, optionally combined with whether the last turn failed or a turn waits."""

    status: Status
    has_failed: bool | None = None
    is_waiting: bool | None = None


class SessionQuery(Struct, frozen=True, kw_only=True):
    """Filter and order of sessions; filters combine with AND."""

    owner: Owner
    agent_id: AgentId | None = None
    repo_id: RepoId | None = None
    # Only sessions with a repository, because some surfaces do not show others.
    is_bound: bool = False
    statuses: tuple[Status, ...] = ()
    status_filters: tuple[StatusFilter, ...] = ()
    # Sessions that are stored as running and whose process has ended: they match as idle.
    abandoned: tuple[SessionKey, ...] = ()
    tags: tuple[str, ...] = ()
    text: str | None = None
    forked_from: SessionId | None = None
    # Only sessions that this one has opened.
    parent: SessionId | None = None
    order: SessionOrder = SessionOrder.CREATED_AT
    # A key besides the offset, so that sessions opened during pagination do not shift pages.
    before: tuple[datetime, str] | None = None
    offset: int = 0
    limit: int = 100


class MessageQuery(Struct, frozen=True, kw_only=True):
    """Filter for message rows of a session by number; with `before`, the last rows before it."""

    after: int = 0
    before: int | None = None
    roles: tuple[Role, ...] = ()
    turn: int | None = None
    limit: int = MESSAGES_MOST

    def __post_init__(self) -> None:
        require_limit(self.limit, most=MESSAGES_MOST)
        if self.after < 0 or (self.before is not None and self.before < 1):
            raise Invalid(Code.INVALID_CURSOR, "A message number is an integer of at least 1.")

    @property
    def is_choosy(self) -> bool:
        """Return whether some rows of the range may not match."""
        return bool(self.roles) or self.turn is not None

    def wants(self, row: Message) -> bool:
        """Return whether a row of the range matches."""
        has_role = not self.roles or row.role in self.roles
        return has_role and (self.turn is None or row.turn == self.turn)


class WorkQuery(Struct, frozen=True, kw_only=True):
    """Filter for questions or calls in request order, of one session or all of an owner.

    `states` are stored values; empty matches every state. `after` is a session key and a number in
    it, or the id of a question. With `id`, only items with that id match, with `agent_id` those of
    sessions of that agent, and with `tool` calls of that name.
    """

    owner: Owner
    key: SessionKey | None = None
    id: str | None = None
    states: tuple[str, ...] = ()
    agent_id: AgentId | None = None
    tool: str | None = None
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
# A position in a listing not sorted by time: a number, and the name it belongs to.
Count = tuple[int, str]
# Row numbers have 64 bits.
_BEYOND: Final = 1 << 63


def encode_cursor(place: Place | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor after a position; `None` after the last page."""
    return None if place is None else encode_count((microseconds(place[0]), place[1]), filters)


def decode_cursor(cursor: str | None, filters: tuple[object, ...]) -> Place | None:
    """Return the position of a cursor, or refuse a damaged or foreign one."""
    found = decode_count(cursor, filters)
    try:
        return None if found is None else (instant(found[0]), found[1])
    except (ValueError, OverflowError):
        raise _foreign() from None


def encode_count(place: Count | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor after a numbered position; `None` after the last page."""
    if place is None:
        return None
    content = [_listing_digest(filters), *place]
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")


def decode_count(cursor: str | None, filters: tuple[object, ...]) -> Count | None:
    """Return the numbered position of a cursor, or refuse a damaged or foreign one."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        decoded = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        mark, number, name = msgspec.json.decode(decoded, type=tuple[str, int, str])
        # With other filters, the same position would silently skip rows.
        if mark != _listing_digest(filters):
            raise ValueError("a cursor of another listing")
        if abs(number) >= _BEYOND:
            raise ValueError("a number that no row has")
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError):
        raise _foreign() from None
    return number, name


def _foreign() -> Invalid:
    return Invalid(
        Code.INVALID_CURSOR, "The cursor does not belong to this listing; start without a cursor."
    )


def _listing_digest(filters: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(filters).encode()).hexdigest()[:16]
