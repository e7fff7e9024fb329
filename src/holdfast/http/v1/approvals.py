"""Approvals: questions that wait for somebody, listed and answered."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, NoQuery, Route, of_session, session_of
from holdfast.wire.approvals import (
    AnswerPost,
    ApprovalForm,
    ApprovalList,
    ApprovalsQuery,
    RevokePost,
    answer_of,
    approval_form,
)
from holdfast.wire.errors import query_judged

# Who has answered, beside the terminal, the command line and the flag.
BY_HTTP: Final = "http"


async def list_approvals(asked: Asked[ApprovalsQuery, None]) -> Answer:
    """List the questions of all sessions."""
    return await _listed(asked, None)


async def list_session_approvals(asked: Asked[ApprovalsQuery, None]) -> Answer:
    """List the questions of a session."""
    return await _listed(asked, await session_of(asked))


async def _listed(asked: Asked[ApprovalsQuery, None], session_id: SessionId | None) -> Answer:
    query = asked.query
    with query_judged():
        page = await asked.house.approvals.list(
            asked.owner, session_id, state=query.state, cursor=query.cursor, limit=query.limit
        )
    return Answer(content=ApprovalList(tuple(map(approval_form, page.items)), page.next_cursor))


async def read_approval(asked: Asked[NoQuery, None]) -> Answer:
    """Return a question."""
    session_id = await session_of(asked)
    found = await asked.house.approvals.get(asked.owner, session_id, asked.path["approval_id"])
    return Answer(content=approval_form(found), has_etag=True)


async def revoke_approval(asked: Asked[NoQuery, RevokePost]) -> Answer:
    """Take back an answer that holds for the whole session."""
    session_id = await session_of(asked)
    approvals, approval_id = asked.house.approvals, asked.path["approval_id"]
    return Answer(
        content=approval_form(await approvals.revoke(asked.owner, session_id, approval_id))
    )


async def answer_approval(asked: Asked[NoQuery, AnswerPost]) -> Answer:
    """Answer a question."""
    session_id = await session_of(asked)
    approvals, owner, body = asked.house.approvals, asked.owner, asked.body
    approval_id = asked.path["approval_id"]
    approval = await approvals.get(owner, session_id, approval_id)
    answer = answer_of(body, approval, by=BY_HTTP)
    answered = await approvals.answer(owner, session_id, approval_id, answer, digest=body.digest)
    return Answer(content=approval_form(answered))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/approvals",
        name="approvals.list",
        summary="List the questions of all sessions, oldest first.",
        act=list_approvals,
        needs=Scope.READ,
        query=ApprovalsQuery,
        gives={200: ApprovalList},
    ),
    *of_session(
        Route(
            method="GET",
            path="/approvals",
            name="approvals.list_of_session",
            summary="List the questions of a session, oldest first.",
            act=list_session_approvals,
            needs=Scope.READ,
            query=ApprovalsQuery,
            gives={200: ApprovalList},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/approvals/{approval_id}",
            name="approvals.read",
            summary="Return a question.",
            act=read_approval,
            needs=Scope.READ,
            gives={200: ApprovalForm, 304: None},
            refuses=(Code.APPROVAL_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
    *of_session(
        Route(
            method="POST",
            path="/approvals/{approval_id}/revoke",
            name="approvals.revoke",
            summary="Take back an answer for the whole session; the like is asked about again.",
            act=revoke_approval,
            needs=Scope.WRITE,
            body=RevokePost,
            body_may_be_missing=True,
            gives={200: ApprovalForm},
            refuses=(Code.APPROVAL_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
    *of_session(
        Route(
            method="POST",
            path="/approvals/{approval_id}",
            name="approvals.answer",
            summary="Answer a question; the first answer counts.",
            act=answer_approval,
            needs=Scope.WRITE,
            body=AnswerPost,
            gives={200: ApprovalForm},
            refuses=(
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
