"""Messages of `/api`: an array of rows, by number or by time, and the one that still grows."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UnsetType

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.messages import Message
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.api.forms import AgentMessage, AgentMessagesQuery
from holdfast.http.api.rows import partial_row, rows_of
from holdfast.http.table import Asked, Route
from holdfast.http.v1.refusals import invalid_query
from holdfast.services.heads import session_not_found
from holdfast.services.histories import ALL
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
    found = await _rows(asked, session_id)
    if query.limit is None or len(found) <= query.limit:
        return Answer(content=found)
    page = found[: query.limit]
    return Answer(content=page, headers={"x-next-after": str(page[-1].sequence)})


async def _rows(
    asked: Asked[AgentMessagesQuery, None], session_id: SessionId
) -> list[AgentMessage]:
    """Return the rows behind the reader's place; of a page one more, where there are more."""
    query = asked.query
    after = 0 if isinstance(query.after, UnsetType) else query.after
    place = after if query.since is None else _instant(query.since)
    # A row takes two messages at most, but for those that show nothing.
    most = ALL if query.limit is None else 2 * query.limit + 2
    while True:
        told, unfinished = await asked.house.messages.excerpt(
            asked.owner, session_id, after=place, limit=most
        )
        is_shown = query.partial and told.is_last
        messages = (*told.calls, *told.rows)
        found = rows_of(session_id, messages, without=told.answered)
        if told.is_last or len(found) > (query.limit or 0):
            return _grown(session_id, found, unfinished if is_shown else None)
        most *= 2


def shown_rows(
    session_id: SessionId, messages: Sequence[Message], unfinished: Unfinished | None
) -> list[AgentMessage]:
    """Return messages as rows, and last the one that still grows, unless it is among them."""
    return _grown(session_id, rows_of(session_id, messages), unfinished)


def _grown(
    session_id: SessionId, found: list[AgentMessage], unfinished: Unfinished | None
) -> list[AgentMessage]:
    if unfinished is not None and all(row.id != unfinished.id for row in found):
        found.append(partial_row(session_id, unfinished))
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
