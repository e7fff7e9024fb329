"""What agents ask, do and cost, and where they may work; over the network."""

from msgspec.structs import replace

from holdfast.client.listings import Listing
from holdfast.client.requests import Requests, path_of
from holdfast.client.sessions import of
from holdfast.http.api.forms import RepoForm, RepoList, RepoPost
from holdfast.http.v1.approvals_forms import (
    AnswerPost,
    ApprovalForm,
    ApprovalList,
    ApprovalsQuery,
)
from holdfast.http.v1.calls_forms import CallForm, CallList, CallsQuery, SettlePost
from holdfast.http.v1.costs_forms import CostList, CostsQuery


class Approvals:
    """Questions that wait for somebody."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def list(
        self, session_id: str | None = None, query: ApprovalsQuery | None = None
    ) -> Listing[ApprovalForm]:
        """List the questions of a session, or of all, oldest first."""
        wanted = query or ApprovalsQuery()
        path = "/v1/approvals" if session_id is None else of(session_id, "approvals")

        async def fetch(cursor: str | None) -> ApprovalList:
            asked = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(path, ApprovalList, asked)

        return Listing(fetch)

    async def get(self, session_id: str, approval_id: str) -> ApprovalForm:
        """Return a question."""
        return await self._requests.get(of(session_id, "approvals", approval_id), ApprovalForm)

    async def answer(self, session_id: str, approval_id: str, answer: AnswerPost) -> ApprovalForm:
        """Answer a question; the first answer counts, and the same one again is heard."""
        path = of(session_id, "approvals", approval_id)
        return await self._requests.post(path, answer, ApprovalForm)

    async def revoke(self, session_id: str, approval_id: str) -> ApprovalForm:
        """Take back an answer that holds for the whole session."""
        path = of(session_id, "approvals", approval_id, "revoke")
        return await self._requests.post(path, {}, ApprovalForm)


class Calls:
    """What agents did, or tried."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def list(
        self, session_id: str | None = None, query: CallsQuery | None = None
    ) -> Listing[CallForm]:
        """List the calls of a session, or of all."""
        wanted = query or CallsQuery()
        path = "/v1/calls" if session_id is None else of(session_id, "calls")

        async def fetch(cursor: str | None) -> CallList:
            asked = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(path, CallList, asked)

        return Listing(fetch)

    async def get(self, session_id: str, call_id: str) -> CallForm:
        """Return a call."""
        return await self._requests.get(of(session_id, "calls", call_id), CallForm)

    async def settle(self, session_id: str, call_id: str, how: SettlePost) -> CallForm:
        """Put an unknown outcome right."""
        return await self._requests.post(of(session_id, "calls", call_id, "settle"), how, CallForm)


class Costs:
    """What was spent."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def report(self, query: CostsQuery | None = None) -> CostList:
        """Add up what was spent, in whole micro-cents."""
        return await self._requests.get("/v1/costs", CostList, query)


class Repos:
    """The repositories that agents may work in."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def add(self, path: str, *, name: str | None = None) -> RepoForm:
        """Register a Git work tree of the server's machine; the same one again changes nothing."""
        return await self._requests.post("/api/repos", RepoPost(path=path, name=name), RepoForm)

    async def list(self) -> tuple[RepoForm, ...]:
        """Return the repositories by name."""
        return (await self._requests.get("/api/repos", RepoList)).repos

    async def remove(self, repo_id: str) -> None:
        """Forget a repository that no session is bound to."""
        await self._requests.delete(path_of("api", "repos", repo_id))
