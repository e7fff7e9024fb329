"""What a listing asks for: filters, an order, a place to start, a limit."""

from datetime import datetime
from enum import StrEnum
from typing import Final, Generic, TypeVar

from msgspec import Struct

from holdfast.domain.agents import AgentStatus
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, Owner, RepoId, SessionId
from holdfast.domain.sessions import Status

T = TypeVar("T")

LIMIT_MOST: Final = 1_000


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


class SessionQuery(Struct, frozen=True, kw_only=True):
    """Which sessions, in which order; filters combine with AND."""

    owner: Owner
    agent_id: AgentId | None = None
    repo_id: RepoId | None = None
    statuses: tuple[Status, ...] = ()
    tags: tuple[str, ...] = ()
    text: str | None = None
    forked_from: SessionId | None = None
    order: SessionOrder = SessionOrder.CREATED_AT
    # A key beside the offset: sessions that open while somebody pages then shift nothing.
    before: tuple[datetime, str] | None = None
    offset: int = 0
    limit: int = 100


def require_limit(limit: int, *, most: int = LIMIT_MOST) -> int:
    """Return the limit, or refuse one outside 1 to `most`."""
    if not 1 <= limit <= most:
        raise Invalid(
            Code.INVALID_LIMIT, f"limit must be 1 to {most}, not {limit}.", {"field": "limit"}
        )
    return limit
