"""Calls: what an agent has done or tried, and putting right what nobody knows the outcome of."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, NoQuery, Route, of_session, session_of
from holdfast.http.v1.approvals import BY_HTTP
from holdfast.wire.calls import (
    CallForm,
    CallList,
    CallsQuery,
    SettlePost,
    call_form,
    wish_of,
)
from holdfast.wire.errors import query_judged


async def list_calls(asked: Asked[CallsQuery, None]) -> Answer:
    """List the calls of all sessions."""
    return await _listed(asked, None)


async def list_session_calls(asked: Asked[CallsQuery, None]) -> Answer:
    """List the calls of a session."""
    return await _listed(asked, await session_of(asked))


async def _listed(asked: Asked[CallsQuery, None], session_id: SessionId | None) -> Answer:
    query = asked.query
    with query_judged():
        page = await asked.house.calls.list(
            asked.owner, session_id, state=query.state, cursor=query.cursor, limit=query.limit
        )
    return Answer(content=CallList(tuple(map(call_form, page.items)), page.next_cursor))


async def read_call(asked: Asked[NoQuery, None]) -> Answer:
    """Return a call."""
    session_id = await session_of(asked)
    call = await asked.house.calls.get(asked.owner, session_id, asked.path["call_id"])
    return Answer(content=call_form(call), has_etag=True)


async def settle_call(asked: Asked[NoQuery, SettlePost]) -> Answer:
    """Put an unknown outcome right."""
    session_id = await session_of(asked)
    wish = wish_of(asked.body, by=BY_HTTP)
    call = await asked.house.calls.settle(asked.owner, session_id, asked.path["call_id"], wish)
    return Answer(content=call_form(call))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/calls",
        name="calls.list",
        summary="List the calls of all sessions.",
        act=list_calls,
        needs=Scope.READ,
        query=CallsQuery,
        gives={200: CallList},
    ),
    *of_session(
        Route(
            method="GET",
            path="/calls",
            name="calls.list_of_session",
            summary="List the calls of a session in their order.",
            act=list_session_calls,
            needs=Scope.READ,
            query=CallsQuery,
            gives={200: CallList},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/calls/{call_id}",
            name="calls.read",
            summary="Return a call.",
            act=read_call,
            needs=Scope.READ,
            gives={200: CallForm, 304: None},
            refuses=(Code.CALL_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
    *of_session(
        Route(
            method="POST",
            path="/calls/{call_id}/settle",
            name="calls.settle",
            summary="Put an unknown outcome right: run the call again, skip it, or mark it done.",
            act=settle_call,
            needs=Scope.WRITE,
            body=SettlePost,
            gives={200: CallForm},
            refuses=(
                Code.CALL_NOT_FOUND,
                Code.CALL_NOT_OPEN,
                Code.INVALID_INPUT,
                Code.INVALID_TEXT,
                Code.SESSION_CLOSED,
                Code.SESSION_FAILED,
                Code.SESSION_NOT_FOUND,
                Code.TURN_RUNNING,
            ),
            examples={"body": {"how": "mark_done", "result": {"sent": True}}},
        )
    ),
)
