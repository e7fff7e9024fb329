"""HTTP client of a Holdfast server: one method group per resource, and resuming streams.

Sessions and messages are in `sessions.py`.
"""

import ssl
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.client.requests import (
    Listing,
    Requests,
    Timeouts,
    build_path,
    build_query,
    new_id,
)
from holdfast.client.sessions import MessageClient, SessionClient, session_path
from holdfast.client.stream import NOW, FollowRequest, ResumingStream, StreamGap
from holdfast.client.transport import ANSWER_SECONDS, Transport
from holdfast.observations.queries import CheckpointState, SubmitResult
from holdfast.wire.agents import AgentForm, AgentList, AgentPatch, AgentPost, AgentsQuery
from holdfast.wire.approvals import AnswerPost, ApprovalForm, ApprovalList, ApprovalsQuery
from holdfast.wire.calls import CallForm, CallList, CallsQuery, SettlePost
from holdfast.wire.costs import CostList, CostsQuery
from holdfast.wire.events import Deltas, EventForm, EventsQuery
from holdfast.wire.models import ModelForm, ModelList, ModelPost
from holdfast.wire.observations import (
    CheckpointQuery,
    ClaimsQuery,
    CorrectionPost,
    EntitiesQuery,
    EntityList,
    EntityPost,
    EntityTimelineQuery,
    HistoryForm,
    HistoryList,
    HistoryPageQuery,
    ObservationList,
    PastQuery,
    RemovalForm,
    RemovalQuery,
    RestorationPost,
    TimelineForm,
)
from holdfast.wire.repo_sessions import RepoForm, RepoList, RepoPost
from holdfast.wire.search import HitForm, HitList, SearchForm
from holdfast.wire.zones import (
    ArchivedForm,
    ArchiveForm,
    ArchiveList,
    ArchivesQuery,
    ArchiveSummaryForm,
    DeletedForm,
    DeskForm,
    LinesForm,
    LinesQuery,
    OutputAppendedForm,
    OutputPost,
    ReplayForm,
    ReplayQuery,
    RestoredForm,
    StateForm,
    StatePut,
    StateWrittenForm,
)


class AgentClient:
    """Agents."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def create(self, request: AgentPost) -> AgentForm:
        """Create an agent; generates an id if there is none, so that retries are idempotent."""
        body = request if request.id is not None else replace(request, id=new_id())
        return await self._requests.post("/v1/agents", body, AgentForm)

    async def get(self, ref: str) -> AgentForm:
        """Return an agent by its id or slug."""
        return await self._requests.get(build_path("v1", "agents", ref), AgentForm)

    def list(self, query: AgentsQuery | None = None) -> Listing[AgentForm]:
        """List agents, newest first."""
        wanted = query or AgentsQuery()

        async def fetch(cursor: str | None) -> AgentList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get("/v1/agents", AgentList, page_query)

        return Listing(fetch)

    async def update(self, ref: str, changes: AgentPatch) -> AgentForm:
        """Update an agent; omitted fields stay unchanged."""
        return await self._requests.patch(build_path("v1", "agents", ref), changes, AgentForm)

    async def archive(self, ref: str) -> None:
        """Archive an agent; its sessions continue."""
        await self._requests.delete(build_path("v1", "agents", ref))


class ModelClient:
    """Models and their prices."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def list(self) -> tuple[ModelForm, ...]:
        """Return all models by provider and name."""
        return (await self._requests.get("/v1/models", ModelList)).data

    async def get(self, ref: str) -> ModelForm:
        """Return a model by its id or `provider:name`."""
        return await self._requests.get(build_path("v1", "models", ref), ModelForm)

    async def add(self, request: ModelPost) -> ModelForm:
        """Add a model, or replace the description of a known one."""
        return await self._requests.post("/v1/models", request, ModelForm)


class SearchClient:
    """Full-text search over messages and observations."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def find(self, query: SearchForm | str) -> Listing[HitForm]:
        """Search, newest session first; a plain string searches everywhere."""
        wanted = SearchForm(q=query) if isinstance(query, str) else query

        async def fetch(cursor: str | None) -> HitList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get("/v1/search", HitList, page_query)

        return Listing(fetch)


class ApprovalClient:
    """Tool approvals."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def list(
        self, session_id: str | None = None, query: ApprovalsQuery | None = None
    ) -> Listing[ApprovalForm]:
        """List the approvals of one session or of all, oldest first."""
        wanted = query or ApprovalsQuery()
        path = "/v1/approvals" if session_id is None else session_path(session_id, "approvals")

        async def fetch(cursor: str | None) -> ApprovalList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(path, ApprovalList, page_query)

        return Listing(fetch)

    async def get(self, session_id: str, approval_id: str) -> ApprovalForm:
        """Return an approval."""
        return await self._requests.get(
            session_path(session_id, "approvals", approval_id), ApprovalForm
        )

    async def answer(self, session_id: str, approval_id: str, answer: AnswerPost) -> ApprovalForm:
        """Answer an approval; the first answer wins, and repeating it is idempotent."""
        path = session_path(session_id, "approvals", approval_id)
        return await self._requests.post(path, answer, ApprovalForm)

    async def revoke(self, session_id: str, approval_id: str) -> ApprovalForm:
        """Revoke an answer that applies to the whole session."""
        path = session_path(session_id, "approvals", approval_id, "revoke")
        return await self._requests.post(path, {}, ApprovalForm)


class CallClient:
    """Tool calls."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def list(
        self, session_id: str | None = None, query: CallsQuery | None = None
    ) -> Listing[CallForm]:
        """List the calls of one session or of all."""
        wanted = query or CallsQuery()
        path = "/v1/calls" if session_id is None else session_path(session_id, "calls")

        async def fetch(cursor: str | None) -> CallList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(path, CallList, page_query)

        return Listing(fetch)

    async def get(self, session_id: str, call_id: str) -> CallForm:
        """Return a call."""
        return await self._requests.get(session_path(session_id, "calls", call_id), CallForm)

    async def settle(self, session_id: str, call_id: str, how: SettlePost) -> CallForm:
        """Settle a call whose outcome is unknown."""
        return await self._requests.post(
            session_path(session_id, "calls", call_id, "settle"), how, CallForm
        )


class CostClient:
    """Costs."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def report(self, query: CostsQuery | None = None) -> CostList:
        """Return the total costs in integer micro-cents."""
        return await self._requests.get("/v1/costs", CostList, query)


class RepoClient:
    """Repositories that agents may work in."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def add(self, path: str, *, name: str | None = None) -> RepoForm:
        """Register a Git work tree on the server's machine; idempotent."""
        return await self._requests.post("/api/repos", RepoPost(path=path, name=name), RepoForm)

    async def list(self) -> tuple[RepoForm, ...]:
        """Return the repositories by name."""
        return (await self._requests.get("/api/repos", RepoList)).repos

    async def remove(self, repo_id: str) -> None:
        """Unregister a repository that no session is bound to."""
        await self._requests.delete(build_path("api", "repos", repo_id))


T = TypeVar("T")


class HistoryClient:
    """Observed history: claims about sessions and entities, and the state merged from them.

    With an `idempotency_key` a claim is retried when the connection breaks, and written once.
    Without one it is sent once, because another claim may have been written in between.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def submit(
        self, payload: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> SubmitResult:
        """Submit an observation of a session."""
        return await self._submit(build_path("v1", "history"), dict(payload), idempotency_key)

    async def query(self, query: HistoryPageQuery | None = None) -> HistoryList:
        """Return one page of sessions."""
        return await self._requests.get(build_path("v1", "history"), HistoryList, query)

    async def show(self, session_id: str, query: PastQuery | None = None) -> HistoryForm:
        """Return the state of a session, now or as of a time."""
        return await self._requests.get(_session_path(session_id), HistoryForm, query)

    async def observations(
        self, session_id: str, query: ClaimsQuery | None = None
    ) -> ObservationList:
        """Return one page of the claims about a session, newest first."""
        return await self._requests.get(
            _session_path(session_id, "observations"), ObservationList, query
        )

    async def checkpoint(
        self, session_id: str, name: str, query: CheckpointQuery | None = None
    ) -> CheckpointState:
        """Return the state saved at a checkpoint."""
        path = _session_path(session_id, "checkpoints", name)
        return await self._requests.get(path, CheckpointState, query)

    async def correct(self, session_id: str, correction: CorrectionPost) -> SubmitResult:
        """Correct one field of a session's history."""
        path, key = _session_path(session_id, "correct"), correction.idempotency_key
        return await self._change(path, correction, SubmitResult, key)

    async def delete(self, session_id: str, query: RemovalQuery | None = None) -> RemovalForm:
        """Hide the history of a session."""
        return await self._requests.remove(
            _session_path(session_id) + build_query(query), RemovalForm
        )

    async def restore(self, session_id: str, request: RestorationPost | None = None) -> RemovalForm:
        """Restore the history of a session."""
        body = request or RestorationPost()
        path = _session_path(session_id, "restore")
        return await self._change(path, body, RemovalForm, body.idempotency_key)

    async def timeline(self, query: EntityTimelineQuery) -> TimelineForm:
        """Return the events of an entity and of the entities that mention it."""
        return await self._requests.get(build_path("v1", "timeline"), TimelineForm, query)

    async def submit_entity(self, entity: EntityPost) -> SubmitResult:
        """Submit an observation of an entity that is not a session."""
        path = build_path("v1", "entities")
        return await self._change(path, entity, SubmitResult, entity.idempotency_key)

    async def entities(self, query: EntitiesQuery) -> EntityList:
        """Return one page of entities of a type."""
        return await self._requests.get(build_path("v1", "entities"), EntityList, query)

    async def _submit(self, path: str, body: dict[str, Any], key: str | None) -> SubmitResult:
        keyed = body if key is None else {**body, "idempotency_key": key}
        return await self._change(path, keyed, SubmitResult, key)

    async def _change(self, path: str, body: Any, kind: type[T], key: str | None) -> T:
        seconds = ANSWER_SECONDS if key is None else None
        return await self._requests.post(path, body, kind, seconds=seconds)


def _session_path(session_id: str, *more: str) -> str:
    return build_path("v1", "history", session_id, *more)


class ZoneClient:
    """Active zones and archives of agents.

    Changes are sent once and never retried; after a lost response, read before repeating.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def show(self, id: str) -> DeskForm:
        """Return the contents of an active zone and the session bound to it."""
        return await self._requests.get(_zone_path(id), DeskForm)

    async def read_state(self, id: str) -> StateForm:
        """Return the state of a zone; without content there is nothing to restore."""
        return await self._requests.get(_zone_path(id, "state"), StateForm)

    async def write_state(
        self, id: str, content: str, *, if_modified_ms: int | None = None
    ) -> StateWrittenForm:
        """Replace the state of a zone; with `if_modified_ms`, only if it was last changed then."""
        body = StatePut(content=content, if_modified_ms=if_modified_ms)
        return await self._requests.put(_zone_path(id, "state"), body, StateWrittenForm)

    async def append(self, id: str, line: str) -> OutputAppendedForm:
        """Append one line, or several separated by newlines, to a zone's output."""
        body = OutputPost(line=line)
        return await self._change(_zone_path(id, "output"), body, OutputAppendedForm)

    async def lines(
        self, id: str, query: LinesQuery | None = None, *, archive: int | None = None
    ) -> LinesForm:
        """Return lines of the output of a zone or an archive."""
        return await self._requests.get(_content_path(id, archive, "output"), LinesForm, query)

    async def replay(self, id: str, query: ReplayQuery | None = None) -> ReplayForm:
        """Return what to display when a client attaches to a zone."""
        return await self._requests.get(_zone_path(id, "replay"), ReplayForm, query)

    async def file(self, id: str, name: str, *, archive: int | None = None) -> bytes:
        """Return the bytes of a file of a zone or an archive."""
        return await self._requests.content(_content_path(id, archive, "files", name))

    async def archive(self, id: str) -> ArchivedForm:
        """Move a zone's contents to a new archive; creates none if the zone is empty."""
        return await self._change(_zone_path(id, "archive"), None, ArchivedForm)

    async def archives(
        self, id: str, query: ArchivesQuery | None = None
    ) -> tuple[ArchiveSummaryForm, ...]:
        """Return the archives of a zone, newest first."""
        return (await self._requests.get(_zone_path(id, "archives"), ArchiveList, query)).data

    async def read_archive(self, id: str, ms: int) -> ArchiveForm:
        """Return an archive."""
        return await self._requests.get(_content_path(id, ms), ArchiveForm)

    async def restore(self, id: str, ms: int) -> RestoredForm:
        """Copy an archive into the active zone; archives its current contents first."""
        return await self._change(_content_path(id, ms, "restore"), None, RestoredForm)

    async def delete(self, id: str, ms: int) -> bool:
        """Remove an archive; return `False` if it does not exist."""
        return (await self._requests.remove(_content_path(id, ms), DeletedForm)).deleted

    async def _change(self, path: str, body: OutputPost | None, kind: type[T]) -> T:
        return await self._requests.post(path, body, kind, seconds=ANSWER_SECONDS)


def _zone_path(id: str, *more: str) -> str:
    return build_path("v1", "zones", id, *more)


def _content_path(id: str, archive: int | None, *more: str) -> str:
    return (
        _zone_path(id, *more)
        if archive is None
        else _zone_path(id, "archives", str(archive), *more)
    )


_events = msgspec.json.Decoder(EventForm)


class Client:
    """Client of one server. Use it with `async with`.

    Requests are retried when the connection breaks, unless a method says otherwise. Creating
    requests carry a client-side id, so retries are idempotent.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """`tls` is for servers whose certificate the system does not trust."""
        headers = {"user-agent": "holdfast"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        requests = Requests(Transport(url, headers, tls), timeouts or Timeouts())
        # For routes without a method here.
        self.requests: Final = requests
        self.agents: Final = AgentClient(requests)
        self.approvals: Final = ApprovalClient(requests)
        self.calls: Final = CallClient(requests)
        self.costs: Final = CostClient(requests)
        self.history: Final = HistoryClient(requests)
        self.messages: Final = MessageClient(requests)
        self.models: Final = ModelClient(requests)
        self.repos: Final = RepoClient(requests)
        self.search: Final = SearchClient(requests)
        self.sessions: Final = SessionClient(requests)
        self.zones: Final = ZoneClient(requests)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.requests.transport.aclose()

    def follow(
        self,
        session_id: str,
        *,
        after: int | Literal["now"] = 0,
        deltas: Deltas = Deltas.STEP,
        until_settled: bool = False,
    ) -> AsyncGenerator[EventForm | StreamGap, None]:
        """Yield the session's events after a sequence number, then new ones: each once, in order.

        A broken or silent stream is resumed after the last event. Raises only where a retry cannot
        help: 400, 401, 403, 404 or 409, a server that never answered, or repeated invalid data.
        With `until_settled` the stream ends when no turn runs or waits.
        """
        query = EventsQuery(
            since=NOW if after == NOW else None,
            deltas=deltas,
            until="settled" if until_settled else None,
        )
        target = session_path(session_id, "events") + build_query(query)
        request = FollowRequest(target=target, after=after, decode=_events.decode)
        return ResumingStream(self.requests, request).items()
