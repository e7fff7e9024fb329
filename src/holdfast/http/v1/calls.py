"""Routes of tool calls: list them, answer those of clients, settle unknown outcomes."""

from typing import Any, Final

from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.auth import require_one_of
from holdfast.http.responses import Response
from holdfast.http.routing import (
    NoQuery,
    RouteRequest,
    Routes,
    requested_session,
)
from holdfast.http.v1.approvals import BY_HTTP
from holdfast.services.calls import ANSWER_LARGEST
from holdfast.wire.calls import (
    CallForm,
    CallList,
    CallResultPost,
    CallsQuery,
    ClaimExtended,
    ClaimExtendPost,
    ClaimPost,
    ProgressPost,
    SettlePost,
    answer_of,
    call_form,
    claim_extended,
    claim_request,
    released_claim,
    settlement_of,
)
from holdfast.wire.errors import as_query_errors

routes: Final = Routes()


@routes.get(
    "/v1/calls",
    "calls.list",
    CallList,
    also=Scope.TOOLS,
    is_large=True,
    errors=(Code.AGENT_NOT_FOUND,),
)
async def list_calls(request: RouteRequest[CallsQuery, None]) -> Response:
    """List the calls of all sessions."""
    return await _list(request, None)


@routes.get(
    "{session}/calls",
    "calls.list_of_session",
    CallList,
    also=Scope.TOOLS,
    is_large=True,
    errors=(Code.AGENT_NOT_FOUND,),
)
async def list_session_calls(request: RouteRequest[CallsQuery, None]) -> Response:
    """List the calls of a session, in order."""
    return await _list(request, await requested_session(request))


async def _list(request: RouteRequest[CallsQuery, None], session_id: SessionId | None) -> Response:
    query, caller = request.query, request.required_caller
    agent, tool = query.agent, query.tool
    if caller.agents:
        named = agent and (await request.holdfast.agents.get(request.owner, agent)).id
        agent = require_one_of(named, caller.agents, "agent")
    if caller.tools:
        tool = require_one_of(tool, caller.tools, "tool")
    # A client that only runs tools sees the calls that it may run.
    if query.state is not CallState.REQUESTED:
        caller.require(Scope.READ)
    with as_query_errors():
        page = await request.holdfast.calls.list(
            request.owner,
            session_id,
            state=query.state,
            agent=agent,
            tool=tool,
            cursor=query.cursor,
            limit=query.limit,
        )
    return Response(content=CallList(tuple(map(call_form, page.items)), page.next_cursor))


async def _requested_call(request: RouteRequest[Any, Any]) -> tuple[SessionId, str]:
    """Return the session and the id of a call; one out of the token's reach is not found."""
    session_id, call_id = await requested_session(request), request.path["call_id"]
    caller, holdfast = request.required_caller, request.holdfast
    if caller.is_bound:
        session = await holdfast.sessions.get(request.owner, session_id)
        call = await holdfast.calls.get(request.owner, session_id, call_id)
        if not caller.reaches(session.agent_id, call.name):
            raise NotFound(Code.CALL_NOT_FOUND, "The session has no such call.")
    return session_id, call_id


@routes.get(
    "{session}/calls/{call_id}",
    "calls.read",
    {200: CallForm, 304: None},
    also=Scope.TOOLS,
    is_large=True,
)
async def read_call(request: RouteRequest[NoQuery, None]) -> Response:
    """Return a call."""
    session_id, call_id = await _requested_call(request)
    call = await request.holdfast.calls.get(request.owner, session_id, call_id)
    if call.state is not CallState.REQUESTED:
        request.required_caller.require(Scope.READ)
    return Response(content=call_form(call), has_etag=True)


@routes.post(
    "{session}/calls/{call_id}/settle",
    "calls.settle",
    CallForm,
    errors=(
        Code.CALL_NOT_OPEN,
        Code.INVALID_INPUT,
        Code.SESSION_CLOSED,
        Code.SESSION_FAILED,
        Code.TURN_RUNNING,
    ),
    example={"how": "mark_done", "result": {"sent": True}},
)
async def settle_call(request: RouteRequest[NoQuery, SettlePost]) -> Response:
    """Settle a call with an unknown outcome: run it again, skip it, or mark it as done."""
    session_id = await requested_session(request)
    settlement = settlement_of(request.body, by=BY_HTTP)
    call = await request.holdfast.calls.settle(
        request.owner, session_id, request.path["call_id"], settlement
    )
    return Response(content=call_form(call))


@routes.post(
    "{session}/calls/{call_id}/claim",
    "calls.claim",
    CallForm,
    needs=Scope.TOOLS,
    errors=(Code.CALL_CLAIMED, Code.CALL_NOT_OPEN),
    example={"claim": "0199f8a6-7f3c-7e6b-9c3a-2f1d5b8e4a10", "worker": "payments-1"},
)
async def claim_call(request: RouteRequest[NoQuery, ClaimPost]) -> Response:
    """Claim a requested call before running it; only a claim makes it started.

    The claim is a lease: unless it is extended the call is requested again, or its outcome is
    unknown if it must not run twice.
    """
    session_id, call_id = await _requested_call(request)
    call = await request.holdfast.workers.claim(
        request.owner, session_id, call_id, claim_request(request.body)
    )
    return Response(content=call_form(call))


@routes.post(
    "{session}/calls/{call_id}/extend",
    "calls.extend",
    ClaimExtended,
    needs=Scope.TOOLS,
    errors=(Code.LEASE_LOST,),
    example={"claim": "0199f8a6-7f3c-7e6b-9c3a-2f1d5b8e4a10"},
)
async def extend_claim(request: RouteRequest[NoQuery, ClaimExtendPost]) -> Response:
    """Extend the claim on a call; with `cancel` the call has ended and need not be run."""
    session_id, call_id = await _requested_call(request)
    extension = await request.holdfast.workers.extend_claim(
        request.owner, session_id, call_id, request.body.claim.lower()
    )
    return Response(content=claim_extended(extension))


@routes.post(
    "{session}/calls/{call_id}/progress",
    "calls.progress",
    {202: None},
    needs=Scope.TOOLS,
    errors=(Code.CALL_NOT_OPEN, Code.INVALID_TEXT, Code.LEASE_LOST),
    example={"claim": "0199f8a6-7f3c-7e6b-9c3a-2f1d5b8e4a10", "text": "2 of 5"},
)
async def report_progress(request: RouteRequest[NoQuery, ProgressPost]) -> Response:
    """Report the progress of a claimed call, as an event; at most four a second are kept."""
    (session_id, call_id), body = await _requested_call(request), request.body
    await request.holdfast.workers.progress(
        request.owner,
        session_id,
        call_id,
        body.claim.lower(),
        body.text,
        fraction=body.fraction,
    )
    return Response(status=202)


@routes.post(
    "{session}/calls/{call_id}/result",
    "calls.answer",
    CallForm,
    needs=Scope.TOOLS,
    response_headers={200: ("idempotency-replayed",)},
    errors=(
        Code.CALL_CLAIMED,
        Code.CALL_NOT_OPEN,
        Code.INVALID_INPUT,
        Code.LEASE_LOST,
        Code.TOO_LARGE,
    ),
    # A result that is too large is named as one, unless it is far too large.
    body_largest=ANSWER_LARGEST + (2 << 20),
    example={"status": "ok", "result": {"refunded": True}},
)
async def answer_call(request: RouteRequest[NoQuery, CallResultPost]) -> Response:
    """Answer a call that a client was asked to run; the first answer counts.

    A claimed call is answered with its claim, or given back with the status `released`.
    """
    session_id, call_id = await _requested_call(request)
    if request.body.status == "released":
        released = await request.holdfast.workers.release(
            request.owner, session_id, call_id, released_claim(request.body)
        )
        return Response(content=call_form(released))
    answer = answer_of(request.body)
    done = await request.holdfast.calls.give_answer(request.owner, session_id, call_id, answer)
    return Response(
        content=call_form(done.value),
        headers={} if done.is_new else {"idempotency-replayed": "true"},
    )
