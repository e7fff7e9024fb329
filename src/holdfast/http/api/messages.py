"""Messages of `/api`: an array of rows, by number or by time, and the one that still grows."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UnsetType

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.messages import Message
from holdfast.domain.queries import MessageQuery
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.api.forms import AgentMessage, AgentMessagesQuery
from holdfast.http.api.rows import partial_row, rows_of
from holdfast.http.table import Asked, Route
from holdfast.http.times import stamp
from holdfast.http.v1.refusals import invalid_query
from holdfast.services.heads import session_not_found
from holdfast.services.messages import Unfinished

_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
# As RFC 3339 writes it: letters in either case, and always an offset.
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_messages(asked: Asked[AgentMessagesQuery, None]) -> Answer:
    """Return the rows of a session that a reader has not seen."""
    query = asked.query
    session_id = await _bound(asked)
    if not isinstance(query.after, UnsetType) and query.since is not None:
        raise invalid_query("since", "since or after, and not both")
    found = await rows(asked, session_id, with_partial=query.partial)
    kept = _after(found, query) if query.since is None else _since(found, query.since)
    if query.limit is None or len(kept) <= query.limit:
        return Answer(content=kept)
    page = kept[: query.limit]
    return Answer(content=page, headers={"x-next-after": str(page[-1].sequence)})


async def rows(
    asked: Asked[Any, Any], session_id: SessionId, *, with_partial: bool
) -> list[AgentMessage]:
    """Return all rows of a session."""
    # Read first: a text that is finished in between is then a row, and never missing.
    unfinished = await asked.house.messages.unfinished(asked.owner, session_id)
    found = await _all(asked, session_id)
    return shown_rows(session_id, found, unfinished if with_partial else None)


def shown_rows(
    session_id: SessionId, messages: Sequence[Message], unfinished: Unfinished | None
) -> list[AgentMessage]:
    """Return messages as rows, and last the one that still grows, unless it is among them."""
    found = rows_of(session_id, messages)
    if unfinished is not None and all(row.id != unfinished.id for row in found):
        found.append(partial_row(session_id, unfinished))
    return found


async def _all(asked: Asked[Any, Any], session_id: SessionId) -> list[Message]:
    found: list[Message] = []
    while True:
        after = found[-1].sequence if found else 0
        page = await asked.house.messages.page(asked.owner, session_id, MessageQuery(after=after))
        found += page.items
        if page.next_cursor is None:
            return found


async def _bound(asked: Asked[Any, Any]) -> SessionId:
    session_id = asked.path["id"]
    if not is_uuid(session_id):
        raise session_not_found()
    session = await asked.house.sessions.get(asked.owner, SessionId(session_id))
    if session.repo_id is None:
        raise session_not_found()
    after = asked.query.after
    if not isinstance(after, UnsetType) and after > session.message_count:
        raise Conflict(
            Code.CURSOR_AHEAD,
            f"The session has messages up to {session.message_count}; the cursor says {after}.",
            {"head": session.message_count},
        )
    return session.id


def _after(found: list[AgentMessage], query: AgentMessagesQuery) -> list[AgentMessage]:
    after = 0 if isinstance(query.after, UnsetType) else query.after
    return [row for row in found if row.sequence is None or row.sequence > after]


def _since(found: list[AgentMessage], text: str) -> list[AgentMessage]:
    # Compared as text, because all of ours have the same form. What still grows is always new.
    since = stamp(_instant(text))
    return [row for row in found if row.sequence is None or row.timestamp > since]


def _instant(text: str) -> datetime:
    try:
        if _MILLISECONDS.fullmatch(text):
            return _EPOCH + timedelta(milliseconds=int(text))
        # A plus sign in a query is a blank unless it was escaped.
        written = _TIME.fullmatch(text.replace(" ", "+"))
        if written is None:
            raise ValueError
        day, minute, second, fraction, offset = written.groups(default="")
        # A leap second is the end of its minute.
        leap = timedelta(seconds=1) if second == "60" else timedelta(0)
        shown = f"{day}T{minute}:{'59' if leap else second}{fraction[:7]}{offset.upper()}"
        return (datetime.fromisoformat(shown) + leap).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_query("since", "a time with its offset, or Unix milliseconds") from None


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/sessions/{id}/messages",
        name="api.sessions.messages",
        summary="Return the messages that a reader has not seen.",
        act=list_messages,
        needs=Scope.READ,
        query=AgentMessagesQuery,
        gives={200: tuple[AgentMessage, ...]},
        tells={200: ("x-next-after",)},
        refuses=(Code.SESSION_NOT_FOUND, Code.CURSOR_AHEAD),
        tolerant=True,
    ),
)
