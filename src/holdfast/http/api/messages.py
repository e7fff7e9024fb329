"""Messages of `/api`: an array of rows, by number or by time, ending with the streaming one."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UnsetType

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import PAGE_BYTES, add, in_pieces, members
from holdfast.http.responses import Response, StreamResponse
from holdfast.http.routing import Route, RouteRequest
from holdfast.services.batches import BATCH_ROWS
from holdfast.services.journal import session_not_found
from holdfast.services.messages import MessageExcerpt, UnfinishedAnswer
from holdfast.wire.errors import invalid_query
from holdfast.wire.repo_sessions import AgentMessage, AgentMessagesQuery, partial_row, rows_of

_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
# RFC 3339: letters in either case, and always an offset.
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
Rows = AsyncGenerator[list[AgentMessage], None]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_messages(
    request: RouteRequest[AgentMessagesQuery, None],
) -> Response | StreamResponse:
    """Return the messages that a reader has not received yet."""
    query = request.query
    session_id = await _require_repo_session(request)
    if not isinstance(query.after, UnsetType) and query.since is not None:
        raise invalid_query("since", "send since or after, not both")
    after = 0 if isinstance(query.after, UnsetType) else query.after
    start = after if query.since is None else _instant(query.since)
    # A row takes at most two messages, except for messages that show nothing.
    most = BATCH_ROWS if query.limit is None else 2 * query.limit + 2
    excerpts, unfinished = await request.holdfast.messages.excerpts(
        request.owner, session_id, after=start, limit=most
    )
    rows = message_rows(session_id, excerpts, unfinished if query.partial else None)
    if query.limit is None:
        return await in_pieces(request, add(encoded_rows(request, rows)))
    return await _page(request, rows, query.limit)


async def encoded_rows(request: RouteRequest[Any, Any], rows: Rows) -> AsyncGenerator[bytes, None]:
    """Yield rows as members of a JSON array."""
    async with aclosing(rows):
        async for batch in rows:
            yield await members(request.room, batch)


async def _page(request: RouteRequest[Any, Any], rows: Rows, limit: int) -> Response:
    """Return at most `limit` rows, or as many as fit into one response."""
    found: list[AgentMessage] = []
    size = 0
    async with aclosing(rows):
        async for batch in rows:
            if size > PAGE_BYTES and batch:
                limit = min(limit, len(found))
            found += batch
            if len(found) > limit:
                page = found[:limit]
                return Response(content=page, headers={"x-next-after": str(page[-1].sequence)})
            size += len(await members(request.room, batch))
    return Response(content=found)


async def message_rows(
    session_id: SessionId,
    excerpts: AsyncGenerator[MessageExcerpt, None],
    unfinished: UnfinishedAnswer | None,
) -> Rows:
    """Yield messages as rows, batch by batch, and last the one that is still streaming."""
    growing = None if unfinished is None else partial_row(session_id, unfinished)
    async with aclosing(excerpts):
        async for part in excerpts:
            rows = rows_of(session_id, (*part.calls, *part.rows), without=part.answered)
            # The streaming message may have been stored since, and be among the rows.
            if growing is not None and any(row.id == growing.id for row in rows):
                growing = None
            yield rows
    if growing is not None:
        yield [growing]


async def _require_repo_session(request: RouteRequest[Any, Any]) -> SessionId:
    session_id = request.path["id"]
    if not is_uuid(session_id):
        raise session_not_found()
    session = await request.holdfast.sessions.get(request.owner, SessionId(session_id))
    if session.repo_id is None:
        raise session_not_found()
    after = request.query.after
    if not isinstance(after, UnsetType) and after > session.message_count:
        raise Conflict(
            Code.CURSOR_AHEAD,
            f"The session has messages up to {session.message_count}, but the cursor is "
            f"{after}; read again from a lower number.",
            {"head": session.message_count},
        )
    return session.id


def _instant(text: str) -> datetime:
    try:
        if _MILLISECONDS.fullmatch(text):
            return _EPOCH + timedelta(milliseconds=int(text))
        # An unescaped plus sign in a query is decoded as a space.
        written = _TIME.fullmatch(text.replace(" ", "+"))
        if written is None:
            raise ValueError
        day, minute, second, fraction, offset = written.groups(default="")
        # A leap second is treated as the end of its minute.
        leap = timedelta(seconds=1) if second == "60" else timedelta(0)
        shown = f"{day}T{minute}:{'59' if leap else second}{fraction[:7]}{offset.upper()}"
        return (datetime.fromisoformat(shown) + leap).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_query(
            "since", "expected a time with its offset, or Unix milliseconds"
        ) from None


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/sessions/{id}/messages",
        name="api.sessions.messages",
        handler=list_messages,
        needs=Scope.READ,
        is_large=True,
        query=AgentMessagesQuery,
        responses={200: tuple[AgentMessage, ...]},
        response_headers={200: ("x-next-after",)},
        error_codes=(Code.SESSION_NOT_FOUND, Code.CURSOR_AHEAD),
        tolerant=True,
    ),
)
