"""Routes of approvals: list, read, answer and revoke."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Response
from holdfast.http.routing import (
    NoQuery,
    Route,
    RouteRequest,
    requested_session,
    session_routes,
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


async def list_approvals(request: RouteRequest[ApprovalsQuery, None]) -> Response:
    """List the approvals of all sessions, oldest first."""
    return await _list(request, None)


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


async def read_approval(request: RouteRequest[NoQuery, None]) -> Response:
    """Return an approval."""
    session_id = await requested_session(request)
    found = await request.holdfast.approvals.get(
        request.owner, session_id, request.path["approval_id"]
    )
    return Response(content=approval_form(found), has_etag=True)


async def revoke_approval(request: RouteRequest[NoQuery, RevokePost]) -> Response:
    """Revoke an answer that covers the whole session; matching calls need an approval again."""
    session_id = await requested_session(request)
    approvals, approval_id = request.holdfast.approvals, request.path["approval_id"]
    return Response(
        content=approval_form(await approvals.revoke(request.owner, session_id, approval_id))
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


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/approvals",
        name="approvals.list",
        handler=list_approvals,
        needs=Scope.READ,
        is_large=True,
        query=ApprovalsQuery,
        responses={200: ApprovalList},
    ),
    *session_routes(
        Route(
            method="GET",
            path="/approvals",
            name="approvals.list_of_session",
            handler=list_session_approvals,
            needs=Scope.READ,
            is_large=True,
            query=ApprovalsQuery,
            responses={200: ApprovalList},
            error_codes=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *session_routes(
        Route(
            method="GET",
            path="/approvals/{approval_id}",
            name="approvals.read",
            handler=read_approval,
            needs=Scope.READ,
            responses={200: ApprovalForm, 304: None},
            error_codes=(Code.APPROVAL_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
    *session_routes(
        Route(
            method="POST",
            path="/approvals/{approval_id}/revoke",
            name="approvals.revoke",
            handler=revoke_approval,
            needs=Scope.WRITE,
            body=RevokePost,
            body_may_be_missing=True,
            responses={200: ApprovalForm},
            error_codes=(Code.APPROVAL_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
    *session_routes(
        Route(
            method="POST",
            path="/approvals/{approval_id}",
            name="approvals.answer",
            handler=answer_approval,
            needs=Scope.WRITE,
            body=AnswerPost,
            responses={200: ApprovalForm},
            error_codes=(
                Code.APPROVAL_CLOSED,
                Code.APPROVAL_NOT_FOUND,
                Code.INVALID_TEXT,
                Code.OPTION_NOT_OFFERED,
                Code.SESSION_NOT_FOUND,
            ),
            examples={"body": {"decision": "allow", "scope": "once"}},
        )
    ),
)
