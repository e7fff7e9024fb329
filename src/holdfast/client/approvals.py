"""Approvals and tool calls of a server."""

from holdfast.client.requests import Requests
from holdfast.client.sessions import session_path
from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalState
from holdfast.domain.calls import Call, CallState
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import LIMIT_MOST, Page
from holdfast.services.calls import SettlementRequest
from holdfast.wire.approvals import (
    ApprovalForm,
    ApprovalList,
    ApprovalsQuery,
    RevokePost,
    answer_post,
    approval_of,
)
from holdfast.wire.calls import CallForm, CallList, CallsQuery, call_of, settle_post


class RemoteApprovals:
    """Approvals of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: ApprovalState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Approval]:
        """Return a page of approvals, of one session or of all, oldest first."""
        path = "/v1/approvals" if session_id is None else session_path(session_id, "approvals")
        query = ApprovalsQuery(state=state, limit=limit, cursor=cursor)
        page = await self._requests.get(path, ApprovalList, query)
        return Page(items=tuple(map(approval_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Return an approval."""
        path = session_path(session_id, "approvals", approval_id)
        return approval_of(await self._requests.get(path, ApprovalForm))

    async def answer(
        self,
        owner: Owner,
        session_id: SessionId,
        approval_id: str,
        answer: ApprovalAnswer,
        *,
        digest: str | None = None,
    ) -> Approval:
        """Answer an approval; the server records the token that answered."""
        path = session_path(session_id, "approvals", approval_id)
        body = answer_post(answer, digest)
        return approval_of(await self._requests.post(path, body, ApprovalForm))

    async def revoke(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Revoke an answer that covers the whole session."""
        path = session_path(session_id, "approvals", approval_id, "revoke")
        return approval_of(await self._requests.post(path, RevokePost(), ApprovalForm))


class RemoteCalls:
    """Tool calls of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: CallState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Call]:
        """Return a page of calls, of one session or of all."""
        path = "/v1/calls" if session_id is None else session_path(session_id, "calls")
        query = CallsQuery(state=state, limit=limit, cursor=cursor)
        page = await self._requests.get(path, CallList, query)
        return Page(items=tuple(map(call_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, owner: Owner, session_id: SessionId, call_id: str) -> Call:
        """Return a call."""
        path = session_path(session_id, "calls", call_id)
        return call_of(await self._requests.get(path, CallForm))

    async def settle(
        self, owner: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call:
        """Settle a call with an unknown outcome; the server records the token that settled it."""
        path = session_path(session_id, "calls", call_id, "settle")
        return call_of(await self._requests.post(path, settle_post(request), CallForm))
