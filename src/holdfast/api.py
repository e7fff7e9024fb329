"""The API of Holdfast, in this process or over HTTP, typed by domain values.

`open_holdfast` yields a `LocalHoldfast`, `connect` a `RemoteHoldfast`; both implement `Holdfast`.
Verbs of a group take the owner first. A server knows the owner by the token and ignores it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from holdfast.ask.children import ChildrenApi, SpawnVerbs
from holdfast.ask.serving import ServeVerbs, WorkersApi
from holdfast.ask.verbs import AskVerbs
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import out_of_memory
from holdfast.domain.messages import Part, require_content
from holdfast.domain.sessions import (
    ATTENDED_TURN_CAP,
    OnBusy,
    SessionRequest,
    require_on_busy,
    require_session_request,
)
from holdfast.domain.text import require_int, require_str
from holdfast.own_loops import LoopService, LoopVerbs
from holdfast.services.agents import BUILT_IN, EnsureVerb
from holdfast.zones.api import ZonesApi

if TYPE_CHECKING:
    from holdfast.children.service import Children
    from holdfast.config import Config
    from holdfast.domain.agent_processes import KnownProgram
    from holdfast.domain.agents import Agent
    from holdfast.domain.approvals import Approval, ApprovalState, Decision
    from holdfast.domain.calls import Call, CallState
    from holdfast.domain.costs import CostQuery, CostReport
    from holdfast.domain.drafts import MessageDraft
    from holdfast.domain.events import Event, Gap
    from holdfast.domain.ids import Owner, SessionId
    from holdfast.domain.messages import Message
    from holdfast.domain.models import Model, ModelRequest
    from holdfast.domain.queries import AgentQuery, Page, SessionQuery
    from holdfast.domain.recordings import OnOpenCalls, Recorded
    from holdfast.domain.repos import Repo
    from holdfast.domain.sessions import Session, SessionContext, Status
    from holdfast.functions.registry import FunctionRegistry
    from holdfast.observations.queries import (
        CheckpointState,
        Correction,
        EntityPage,
        EntityQuery,
        History,
        HistoryQuery,
        ObservationPage,
        Removal,
        SubmitResult,
        TimelinePage,
        TimelineQuery,
    )
    from holdfast.observations.service import Observations
    from holdfast.ports.store import Store
    from holdfast.search.query import Hit, SearchQuery
    from holdfast.search.service import Search
    from holdfast.services.agent_processes import AgentProcesses, SessionMcpServers
    from holdfast.services.agents import Agents
    from holdfast.services.approvals import Approvals
    from holdfast.services.calls import CallAnswer, Calls, SettlementRequest
    from holdfast.services.costs import Costs
    from holdfast.services.event_stream import Events
    from holdfast.services.maintenance import Maintenance
    from holdfast.services.media import Media
    from holdfast.services.messages import Messages
    from holdfast.services.models import Models
    from holdfast.services.repos import Repos
    from holdfast.services.secrets import Secrets
    from holdfast.services.session_lifecycle import DeletePolicy, Interruption, Resumption
    from holdfast.services.session_views import OverviewPage, SessionOverview, SessionViews
    from holdfast.services.sessions import Sessions, Verification
    from holdfast.services.tokens import Tokens
    from holdfast.services.turns import Compactions
    from holdfast.workers.service import Workers
    from holdfast.workflows.session_export import Export, ExportFormat, Exports, ExportStream, Line
    from holdfast.zones.service import Zones


class Defaults(Struct, frozen=True, kw_only=True):
    """The model and the loosest approval mode of sessions that name none.

    `turn_cap` is the cap of sessions that a person opens.
    """

    model: str
    approval: ApprovalMode
    turn_cap: int = ATTENDED_TURN_CAP


class ObservationsApi(Protocol):
    """Observations reported by agents, and the history merged from them."""

    async def submit(
        self, owner: "Owner", payload: Any, *, idempotency_key: str | None = None, source: str = ""
    ) -> "SubmitResult": ...
    async def submit_entity(
        self,
        owner: "Owner",
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "SubmitResult": ...
    async def correct(
        self,
        owner: "Owner",
        correction: "Correction",
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "SubmitResult": ...
    async def delete(
        self,
        owner: "Owner",
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "Removal": ...
    async def restore(
        self,
        owner: "Owner",
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "Removal": ...
    async def show(
        self,
        owner: "Owner",
        session_id: str,
        *,
        at: str | None = None,
        at_ingested: str | None = None,
    ) -> "History": ...
    async def query(
        self, owner: "Owner", query: "HistoryQuery | None" = None, *, cursor: str | None = None
    ) -> "EntityPage": ...
    async def entities(
        self, owner: "Owner", query: "EntityQuery", *, cursor: str | None = None
    ) -> "EntityPage": ...
    async def list_observations(
        self,
        owner: "Owner",
        session_id: str,
        *,
        start_date: str | None = None,
        end_date: str | None = None,
        limit: int = ...,
        cursor: str | None = None,
    ) -> "ObservationPage": ...
    async def checkpoint(
        self,
        owner: "Owner",
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> "CheckpointState": ...
    async def timeline(
        self,
        owner: "Owner",
        entity_id: str,
        query: "TimelineQuery | None" = None,
        *,
        cursor: str | None = None,
    ) -> "TimelinePage": ...


class AgentsApi(EnsureVerb, Protocol):
    """Agents."""

    async def get(self, owner: "Owner", ref: str) -> "Agent": ...
    async def list(self, query: "AgentQuery", *, cursor: str | None = None) -> "Page[Agent]": ...
    async def archive(self, owner: "Owner", ref: str) -> "Agent": ...


class SessionsApi(Protocol):
    """Sessions."""

    async def get(self, owner: "Owner", session_id: "SessionId") -> "Session": ...
    async def list(
        self, query: "SessionQuery", *, cursor: str | None = None
    ) -> "Page[Session]": ...
    async def find(
        self, owner: "Owner", beginning: str, *, limit: int = 5
    ) -> "tuple[SessionId, ...]": ...
    async def update(
        self, owner: "Owner", session_id: "SessionId", changes: Mapping[str, Any]
    ) -> "Session": ...
    async def interrupt(
        self, owner: "Owner", session_id: "SessionId", *, turn: int | None = None
    ) -> "Interruption": ...
    async def resume(
        self, owner: "Owner", session_id: "SessionId", *, context: "SessionContext | None" = None
    ) -> "Resumption": ...
    async def close(
        self,
        owner: "Owner",
        session_id: "SessionId",
        *,
        status: "Status" = ...,
        reason: str | None = None,
    ) -> "Session": ...
    async def fork(
        self,
        owner: "Owner",
        session_id: "SessionId",
        *,
        at: int | None = None,
        title: str | None = None,
        tags: tuple[str, ...] | None = None,
        model: str | None = None,
        agent: str | None = None,
        is_settled: bool = False,
        id: str | None = None,
    ) -> "Session": ...
    async def delete(
        self, owner: "Owner", session_id: "SessionId", *, policy: "DeletePolicy" = ...
    ) -> "tuple[SessionId, ...]": ...
    async def verify(self, owner: "Owner", session_id: "SessionId") -> "Verification": ...


class MessagesApi(Protocol):
    """Messages; `record` and `record_turns` store what was made elsewhere and start no turn."""

    async def record(
        self, owner: "Owner", session_id: "SessionId", draft: "MessageDraft"
    ) -> "Message": ...
    async def record_turns(
        self,
        owner: "Owner",
        session_id: "SessionId",
        drafts: "tuple[MessageDraft, ...]",
        *,
        on_open_calls: "OnOpenCalls" = ...,
    ) -> "Recorded": ...
    async def get(self, owner: "Owner", session_id: "SessionId", message_id: str) -> "Message": ...
    async def list(
        self,
        owner: "Owner",
        session_id: "SessionId",
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = ...,
    ) -> "Page[Message]": ...


class EventsApi(Protocol):
    """Events."""

    async def list(
        self, owner: "Owner", session_id: "SessionId", *, after: int = 0, limit: int = 1_000
    ) -> "Page[Event | Gap]": ...


class ApprovalsApi(Protocol):
    """Approvals."""

    async def list(
        self,
        owner: "Owner",
        session_id: "SessionId | None" = None,
        *,
        state: "ApprovalState | None" = None,
        cursor: str | None = None,
        limit: int = ...,
    ) -> "Page[Approval]": ...
    async def get(
        self, owner: "Owner", session_id: "SessionId", approval_id: str
    ) -> "Approval": ...
    async def answer(
        self,
        owner: "Owner",
        session_id: "SessionId",
        approval_id: str,
        answer: "Decision",
        *,
        digest: str | None = None,
    ) -> "Approval": ...
    async def revoke(
        self, owner: "Owner", session_id: "SessionId", approval_id: str
    ) -> "Approval": ...


class CallsApi(Protocol):
    """Tool calls."""

    async def list(
        self,
        owner: "Owner",
        session_id: "SessionId | None" = None,
        *,
        state: "CallState | None" = None,
        agent: str | None = None,
        tool: str | None = None,
        cursor: str | None = None,
        limit: int = ...,
    ) -> "Page[Call]": ...
    async def get(self, owner: "Owner", session_id: "SessionId", call_id: str) -> "Call": ...
    async def settle(
        self, owner: "Owner", session_id: "SessionId", call_id: str, request: "SettlementRequest"
    ) -> "Call": ...
    async def answer(
        self, owner: "Owner", session_id: "SessionId", call_id: str, answer: "CallAnswer"
    ) -> "Call": ...


class ModelsApi(Protocol):
    """Models."""

    async def add(self, request: "ModelRequest") -> "Model": ...
    async def catalogue(self) -> "tuple[Model, ...]": ...
    async def get(self, ref: str) -> "Model": ...
    async def list(self) -> "list[Model]": ...
    async def check(self, *refs: str) -> None: ...


class ReposApi(Protocol):
    """Repositories and folders in which agents may work."""

    async def require_folder(self, owner: "Owner", path: str) -> str: ...
    async def add(
        self, owner: "Owner", path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> "Repo": ...
    async def list(self, owner: "Owner") -> "list[Repo]": ...
    async def remove(self, owner: "Owner", repo_id: str) -> None: ...


class CostsApi(Protocol):
    """Costs."""

    async def report(self, query: "CostQuery") -> "CostReport": ...


class SearchApi(Protocol):
    """Full-text search."""

    async def find(
        self, owner: "Owner", query: "SearchQuery", *, cursor: str | None = None
    ) -> "Page[Hit]": ...


class ExportsApi(Protocol):
    """Exports of sessions."""

    async def export(
        self,
        owner: "Owner",
        session_id: "SessionId",
        form: "ExportFormat",
        *,
        through: int | None = None,
        line: "Line" = ...,
    ) -> "Export": ...
    async def stream(
        self,
        owner: "Owner",
        session_id: "SessionId",
        form: "ExportFormat",
        *,
        through: int | None = None,
        line: "Line" = ...,
    ) -> "ExportStream": ...
    async def record(self, owner: "Owner", session_id: "SessionId", target: str) -> "Event": ...


class CompactionsApi(Protocol):
    """Compactions: summaries that replace older messages in the context."""

    async def compact(self, owner: "Owner", session_id: "SessionId") -> bool: ...


class MediaApi(Protocol):
    """Media of messages."""

    async def keep(
        self, owner: "Owner", session_id: "SessionId", content: bytes, *, mime_type: str
    ) -> str: ...
    async def read(self, owner: "Owner", session_id: "SessionId", handle: str) -> bytes: ...


class McpServersApi(Protocol):
    """MCP servers that a client supplies for its session."""

    async def attach(
        self, owner: "Owner", session_id: "SessionId", servers: tuple[Mapping[str, Any], ...]
    ) -> None: ...


class SessionViewsApi(Protocol):
    """Sessions with their costs."""

    async def get(self, owner: "Owner", session_id: "SessionId") -> "SessionOverview": ...
    async def list(self, query: "SessionQuery", *, cursor: str | None = None) -> "OverviewPage": ...


class Holdfast(AskVerbs, SpawnVerbs, ServeVerbs, Protocol):
    """All verbs, local or remote; `open`, `send`, `follow` and `read` act for `owner`."""

    @property
    def owner(self) -> "Owner": ...
    @property
    def agents(self) -> AgentsApi: ...
    @property
    def approvals(self) -> ApprovalsApi: ...
    @property
    def calls(self) -> CallsApi: ...
    @property
    def children(self) -> ChildrenApi: ...
    @property
    def compactions(self) -> CompactionsApi: ...
    @property
    def costs(self) -> CostsApi: ...
    @property
    def events(self) -> EventsApi: ...
    @property
    def exports(self) -> ExportsApi: ...
    @property
    def mcp_servers(self) -> McpServersApi: ...
    @property
    def media(self) -> MediaApi: ...
    @property
    def messages(self) -> MessagesApi: ...
    @property
    def models(self) -> ModelsApi: ...
    @property
    def observations(self) -> ObservationsApi: ...
    @property
    def repos(self) -> ReposApi: ...
    @property
    def search(self) -> SearchApi: ...
    @property
    def session_views(self) -> SessionViewsApi: ...
    @property
    def sessions(self) -> SessionsApi: ...
    @property
    def workers(self) -> WorkersApi: ...
    @property
    def zones(self) -> ZonesApi: ...

    async def defaults(self) -> Defaults: ...
    async def open(
        self,
        agent: str = ...,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
        tools: "Sequence[Callable[..., Any] | str]" = (),
    ) -> "Session": ...
    async def attach(
        self, session_id: "SessionId", tools: "Sequence[Callable[..., Any]]"
    ) -> None: ...
    async def send(
        self,
        session_id: "SessionId",
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = ...,
    ) -> "Message": ...
    def follow(
        self, session_id: "SessionId", *, after: int = 0, until_settled: bool = False
    ) -> "AsyncGenerator[Event | Gap, None]": ...
    async def read(self, session_id: "SessionId", *, after: int = 0) -> "tuple[Message, ...]": ...


@dataclass(frozen=True, kw_only=True)
class LocalHoldfast(AskVerbs, SpawnVerbs, ServeVerbs, LoopVerbs):
    """An open store with all services, and the four methods that most programs need."""

    config: "Config"
    owner: "Owner"
    store: "Store"
    key_source: str
    agents: "Agents"
    approvals: "Approvals"
    agent_processes: "AgentProcesses"
    calls: "Calls"
    children: "Children"
    compactions: "Compactions"
    mcp_servers: "SessionMcpServers"
    models: "Models"
    repos: "Repos"
    secrets: "Secrets"
    sessions: "Sessions"
    messages: "Messages"
    media: "Media"
    events: "Events"
    session_views: "SessionViews"
    costs: "Costs"
    exports: "Exports"
    maintenance: "Maintenance"
    observations: "Observations"
    search: "Search"
    tokens: "Tokens"
    tools: "FunctionRegistry"
    workers: "Workers"
    zones: "Zones"
    # Built when the first loop is registered or the first turn is held.
    loops: LoopService | None = None
    # Sessions that frameworks run, and their durable calls; `integrations/` has the classes.
    foreign: Any = None
    # Finds well-known agent programs on this machine, installed ones first.
    programs: "Callable[[], Awaitable[list[KnownProgram]]]"

    @property
    def _loops(self) -> LoopService | None:
        return self.loops

    @property
    def _loop_owner(self) -> "Owner":
        return self.owner

    async def defaults(self) -> Defaults:
        """Return what applies to sessions that do not say otherwise."""
        config, cap = self.config, self.config.attended_turn_cap
        return Defaults(model=config.default_model, approval=config.approval, turn_cap=cap)

    async def open(
        self,
        agent: str = BUILT_IN,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
        tools: "Sequence[Callable[..., Any] | str]" = (),
    ) -> "Session":
        """Open a session; it is on disk when this returns. `tools` are functions and names."""
        try:
            require_str(agent, field="agent")
            require_session_request(request)
            if self.loops is not None:
                await self.loops.ready()
            opening = partial(self.sessions.open, self.owner, agent, id=id)
            return await self.tools.open_with(tools, request, opening)
        except MemoryError as error:
            raise out_of_memory() from error

    async def attach(self, session_id: "SessionId", tools: "Sequence[Callable[..., Any]]") -> None:
        """Add functions to the tools of a session, with a notice in its record."""
        await self.tools.attach(session_id, tools)

    async def send(
        self,
        session_id: "SessionId",
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> "Message":
        """Store a message; its turn runs after this returns."""
        try:
            require_str(session_id, field="session_id")
            parts, busy = require_content(content), require_on_busy(on_busy)
            made = await self.messages.send_idempotent(
                self.owner, session_id, parts, id=id, on_busy=busy
            )
            return made.value
        except MemoryError as error:
            raise out_of_memory() from error

    def follow(
        self, session_id: "SessionId", *, after: int = 0, until_settled: bool = False
    ) -> "AsyncGenerator[Event | Gap, None]":
        """Yield the session's events after a cursor, then wait for more.

        With `until_settled` it ends when no turn runs or waits.
        """
        require_str(session_id, field="session_id")
        require_int(after, field="after")
        return self.events.follow(self.owner, session_id, after=after, until_settled=until_settled)

    async def read(self, session_id: "SessionId", *, after: int = 0) -> "tuple[Message, ...]":
        """Return the session's messages after a sequence number, at most 10,000."""
        require_str(session_id, field="session_id")
        require_int(after, field="after")
        try:
            return (await self.messages.list(self.owner, session_id, after=after)).items
        except MemoryError as error:
            raise out_of_memory() from error
