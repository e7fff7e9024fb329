"""Approvals and tool calls of a server."""

from holdfast.cli.remote.values import approval_of, call_of
from holdfast.client import AnswerPost, ApprovalsQuery, CallsQuery, Client, SettlePost
from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalState
from holdfast.domain.calls import Call, CallState
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import LIMIT_MOST, Page
from holdfast.services.calls import SettlementRequest


class RemoteApprovals:
    """Approvals of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        _: Owner,
        session_id: SessionId | None = None,
        *,
        state: ApprovalState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Approval]:
        """Return a page of approvals, oldest first."""
        wanted = ApprovalsQuery(state=state, limit=limit)
        page = await self._client.approvals.list(session_id, wanted).page(cursor)
        return Page(items=tuple(map(approval_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, _: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Return an approval."""
        return approval_of(await self._client.approvals.get(session_id, approval_id))

    async def answer(
        self,
        _: Owner,
        session_id: SessionId,
        approval_id: str,
        answer: ApprovalAnswer,
        *,
        digest: str | None = None,
    ) -> Approval:
        """Answer an approval; the server records the channel."""
        request = AnswerPost(
            decision="allow" if answer.state is ApprovalState.ALLOWED else "deny",
            scope=answer.scope,
            digest=digest,
            note=answer.note,
        )
        return approval_of(await self._client.approvals.answer(session_id, approval_id, request))

    async def revoke(self, _: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Revoke an answer that covers the whole session."""
        return approval_of(await self._client.approvals.revoke(session_id, approval_id))


class RemoteCalls:
    """Tool calls of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        _: Owner,
        session_id: SessionId | None = None,
        *,
        state: CallState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Call]:
        """Return a page of calls."""
        wanted = CallsQuery(state=state, limit=limit)
        page = await self._client.calls.list(session_id, wanted).page(cursor)
        return Page(items=tuple(map(call_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, _: Owner, session_id: SessionId, call_id: str) -> Call:
        """Return a call."""
        return call_of(await self._client.calls.get(session_id, call_id))

    async def settle(
        self, _: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call:
        """Settle a call with an unknown outcome."""
        body = SettlePost(how=request.how, result=request.result, note=request.note)
        return call_of(await self._client.calls.settle(session_id, call_id, body))
