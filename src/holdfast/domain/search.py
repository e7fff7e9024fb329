"""Search: what is asked for, and what is found."""

from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, MessageId, RepoId, SessionId
from holdfast.domain.messages import Role
from holdfast.domain.queries import require_limit
from holdfast.domain.texts import is_encodable

TEXT_LONGEST: Final = 400
LIMIT_USUAL: Final = 20
LIMIT_MOST: Final = 100


class SearchQuery(Struct, frozen=True, kw_only=True):
    """Which words, and where they stand; filters combine with AND.

    An agent is named by its id or slug, a tool by its exact name. From `since` on, before `until`.
    """

    text: str
    agent: str | None = None
    repo_id: RepoId | None = None
    session_id: SessionId | None = None
    role: Role | None = None
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = LIMIT_USUAL


class Hit(Struct, frozen=True, kw_only=True):
    """Something that was found: a message, a title, or an observation; the rest says nothing.

    The score is the share of the snippet's words that were searched for.
    """

    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    message_id: MessageId | None = None
    message_sequence: int | None = None
    turn: int | None = None
    role: Role | None = None
    snippet: str
    score: float
    created_at: datetime
    observation_id: str | None = None


class SearchRebuilt(Struct, frozen=True, kw_only=True):
    """What was indexed anew, and where the index had not been what the texts say."""

    documents: int
    differences: tuple[str, ...] = ()


def require_query(query: SearchQuery) -> SearchQuery:
    """Return the query, or refuse what cannot be searched for."""
    if not 1 <= len(query.text) <= TEXT_LONGEST:
        raise _invalid(f"A query has 1 to {TEXT_LONGEST} characters, not {len(query.text)}.")
    for field in ("text", "agent", "tool", "repo_id", "session_id"):
        value = getattr(query, field)
        if value is not None and ("\x00" in value or not is_encodable(value)):
            raise _invalid("A query holds no NUL character and no lone surrogate.", field)
    for field in ("since", "until"):
        at = getattr(query, field)
        if at is not None and at.tzinfo is None:
            raise Invalid(Code.INVALID_FILTER, f"{field} needs a time zone.", {"field": field})
    require_limit(query.limit, most=LIMIT_MOST)
    return query


def _invalid(told: str, field: str = "text") -> Invalid:
    return Invalid(Code.INVALID_QUERY, told, {"field": field})
