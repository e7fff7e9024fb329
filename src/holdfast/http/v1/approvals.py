"""Routes of approvals: list, read, answer and revoke."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.http.responses import Response
from holdfast.http.routing import (
    NoQuery,
    RouteRequest,
    Routes,
    requested_session,
)
from holdfast.wire.approvals import (
    AnswerPost,
    ApprovalForm,
    ApprovalList,
    ApprovalsQuery,
    RevokePost,
    answer_of,
    approval_form,
)
from holdfast.wire.errors import as_query_errors

# The recorded channel of an answer, besides terminal, command line and flag.
BY_HTTP: Final = "http"

routes: Final = Routes()


@routes.get("/v1/approvals", "approvals.list", ApprovalList, is_large=True)
async def list_approvals(request: RouteRequest[ApprovalsQuery, None]) -> Response:
    """List the approvals of all sessions, oldest first."""
    return await _list(request, None)


@routes.get("{session}/approvals", "approvals.list_of_session", ApprovalList, is_large=True)
async def list_session_approvals(request: RouteRequest[ApprovalsQuery, None]) -> Response:
    """List the approvals of a session, oldest first."""
    return await _list(request, await requested_session(request))


async def _list(
    request: RouteRequest[ApprovalsQuery, None], session_id: SessionId | None
) -> Response:
    query = request.query
    with as_query_errors():
        page = await request.holdfast.approvals.list(
            request.owner, session_id, state=query.state, cursor=query.cursor, limit=query.limit
        )
    return Response(content=ApprovalList(tuple(map(approval_form, page.items)), page.next_cursor))


@routes.get("{session}/approvals/{approval_id}", "approvals.read", {200: ApprovalForm, 304: None})
async def read_approval(request: RouteRequest[NoQuery, None]) -> Response:
    """Return an approval."""
    session_id = await requested_session(request)
    found = await request.holdfast.approvals.get(
        request.owner, session_id, request.path["approval_id"]
    )
    return Response(content=approval_form(found), has_etag=True)


@routes.post(
    "{session}/approvals/{approval_id}/revoke",
    "approvals.revoke",
    ApprovalForm,
    body_may_be_missing=True,
)
async def revoke_approval(request: RouteRequest[NoQuery, RevokePost]) -> Response:
    """Revoke an answer that covers the whole session; matching calls need an approval again."""
    session_id = await requested_session(request)
    approvals, approval_id = request.holdfast.approvals, request.path["approval_id"]
    return Response(
        content=approval_form(await approvals.revoke(request.owner, session_id, approval_id))
    )


@routes.post(
    "{session}/approvals/{approval_id}",
    "approvals.answer",
    ApprovalForm,
    errors=(Code.APPROVAL_CLOSED, Code.OPTION_NOT_OFFERED),
    example={"decision": "allow", "scope": "once"},
)
async def answer_approval(request: RouteRequest[NoQuery, AnswerPost]) -> Response:
    """Answer an approval; the first answer counts."""
    session_id = await requested_session(request)
    approvals, owner, body = request.holdfast.approvals, request.owner, request.body
    approval_id = request.path["approval_id"]
    approval = await approvals.get(owner, session_id, approval_id)
    answer = answer_of(body, approval, by=BY_HTTP)
    answered = await approvals.answer(owner, session_id, approval_id, answer, digest=body.digest)
    return Response(content=approval_form(answered))
