# Generated from the protocol: python -m tests.api.sync_stub
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from holdfast.api import Defaults
from holdfast.app import Environment
from holdfast.ask.answers import Answer, StreamItem
from holdfast.ask.options import AskOptions
from holdfast.children.model import ChildRequest
from holdfast.client.requests import Timeouts
from holdfast.config import Config
from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import CostQuery, CostReport
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import Message, Part
from holdfast.domain.models import Model, ModelRequest
from holdfast.domain.queries import AgentQuery, Page, SessionQuery
from holdfast.domain.recordings import OnOpenCalls, Recorded
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Budget, OnBusy, Session, SessionContext, SessionRequest, Status
from holdfast.domain.tools import Grant
from holdfast.execution.coordinator import RunScope
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
from holdfast.search.query import Hit, SearchQuery
from holdfast.services.calls import CallAnswer, SettlementRequest
from holdfast.services.session_lifecycle import DeletePolicy, Interruption, Resumption
from holdfast.services.session_views import OverviewPage, SessionOverview
from holdfast.services.sessions import Verification
from holdfast.workers.model import (
    ClaimExtension,
    ClaimRequest,
    ClaimsExtension,
    Work,
    Worker,
    WorkerRequest,
)
from holdfast.workflows.session_export import Export, ExportFormat, Line
from holdfast.zones.lines import LineQuery, Lines
from holdfast.zones.model import (
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    OutputAppended,
    RestoreResult,
    StateWritten,
    ZoneState,
)
from holdfast.zones.replay import Replay

V = TypeVar("V")

class ZonesApi:
    def show(self, owner: Owner, definition_id: str) -> ActiveZone: ...
    def read_state(self, owner: Owner, definition_id: str) -> ZoneState: ...
    def write_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = ...,
    ) -> StateWritten: ...
    def append_output(self, owner: Owner, definition_id: str, line: str) -> OutputAppended: ...
    def append_lines(
        self, owner: Owner, definition_id: str, lines: Sequence[str], /
    ) -> OutputAppended: ...
    def read_lines(
        self,
        owner: Owner,
        definition_id: str,
        query: LineQuery | None = ...,
        *,
        archive: int | None = ...,
    ) -> Lines: ...
    def read_content(
        self, owner: Owner, definition_id: str, name: str, *, archive: int | None = ...
    ) -> bytes: ...
    def follow(
        self, owner: Owner, definition_id: str, *, start: int | None = ...
    ) -> Iterator[Lines]: ...
    def replay(
        self, owner: Owner, definition_id: str, *, window: int = ..., page: int = ...
    ) -> Replay: ...
    def archive(self, owner: Owner, definition_id: str) -> ArchiveResult | None: ...
    def list_archives(
        self, owner: Owner, definition_id: str, *, limit: int | None = ..., before: int | None = ...
    ) -> tuple[ArchiveSummary, ...]: ...
    def read_archive(self, owner: Owner, definition_id: str, ms: int) -> Archive: ...
    def restore_archive(self, owner: Owner, definition_id: str, ms: int, /) -> RestoreResult: ...
    def delete_archive(self, owner: Owner, definition_id: str, ms: int) -> bool: ...
    def write_session_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = ...,
    ) -> StateWritten: ...
    def read_session_state(self, owner: Owner, definition_id: str) -> ZoneState: ...
    def append_session_output(
        self, owner: Owner, definition_id: str, line: str
    ) -> OutputAppended: ...
    def archive_session(self, owner: Owner, definition_id: str) -> ArchiveResult | None: ...

class AskVerbs:
    @overload
    def ask(
        self, prompt: str | tuple[Part, ...], *, output: None = ..., **options: Unpack[AskOptions]
    ) -> Answer[None]: ...
    @overload
    def ask(
        self, prompt: str | tuple[Part, ...], *, output: type[V], **options: Unpack[AskOptions]
    ) -> Answer[V]: ...
    @overload
    def stream(
        self, prompt: str | tuple[Part, ...], *, output: None = ..., **options: Unpack[AskOptions]
    ) -> Iterator[StreamItem[None]]: ...
    @overload
    def stream(
        self, prompt: str | tuple[Part, ...], *, output: type[V], **options: Unpack[AskOptions]
    ) -> Iterator[StreamItem[V]]: ...
    def record(
        self,
        session_id: SessionId,
        messages: Sequence[MessageDraft],
        *,
        on_open_calls: OnOpenCalls = ...,
    ) -> Recorded: ...

class ChildrenApi:
    def spawn(
        self, owner: Owner, parent_id: SessionId, request: ChildRequest, *, id: str | None = ...
    ) -> Session: ...
    def tree(self, owner: Owner, session_id: SessionId) -> tuple[Session, ...]: ...

class Child:
    @property
    def session_id(self) -> SessionId: ...
    def answer(self, **options: Unpack[AskOptions]) -> Answer[None]: ...

class SpawnVerbs:
    def spawn(
        self,
        session_id: SessionId,
        agent: str,
        task: str,
        *,
        title: str | None = ...,
        budget: Budget | None = ...,
        grant: Grant | None = ...,
        tools: tuple[str, ...] | None = ...,
        id: str | None = ...,
    ) -> Child: ...

class WorkersApi:
    def register(self, owner: Owner, request: WorkerRequest, *, id: str | None = ...) -> Worker: ...
    def list(self, owner: Owner) -> list[Worker]: ...
    def next(
        self,
        owner: Owner,
        worker_id: str,
        *,
        claims: Iterable[str] = ...,
        limit: int = ...,
        wait_s: float = ...,
        claim: bool = ...,
    ) -> Work: ...
    def extend(
        self, owner: Owner, worker_id: str, claims: Iterable[str] = ...
    ) -> ClaimsExtension: ...
    def close(self, owner: Owner, worker_id: str) -> None: ...
    def claim(
        self, owner: Owner, session_id: SessionId, call_id: str, request: ClaimRequest
    ) -> Call: ...
    def extend_claim(
        self, owner: Owner, session_id: SessionId, call_id: str, claim: str
    ) -> ClaimExtension: ...
    def release(self, owner: Owner, session_id: SessionId, call_id: str, claim: str) -> Call: ...
    def progress(
        self,
        owner: Owner,
        session_id: SessionId,
        call_id: str,
        claim: str,
        text: str,
        *,
        fraction: float | None = ...,
    ) -> None: ...

class ServeVerbs:
    def serve_tools(
        self,
        tools: Sequence[Callable[..., Any]],
        *,
        agent: str | None = ...,
        session: str | None = ...,
        concurrency: int = ...,
        grace: float = ...,
        update: bool = ...,
        name: str | None = ...,
    ) -> None: ...

class EnsureVerb:
    def create(self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = ...) -> Agent: ...
    def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent: ...
    def ensure(self, owner: Owner, fields: Mapping[str, Any]) -> Agent: ...

class ObservationsApi:
    def submit(
        self, owner: Owner, payload: Any, *, idempotency_key: str | None = ..., source: str = ...
    ) -> SubmitResult: ...
    def submit_entity(
        self,
        owner: Owner,
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = ...,
        source: str = ...,
    ) -> SubmitResult: ...
    def correct(
        self,
        owner: Owner,
        correction: Correction,
        *,
        idempotency_key: str | None = ...,
        source: str = ...,
    ) -> SubmitResult: ...
    def delete(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = ...,
        idempotency_key: str | None = ...,
        source: str = ...,
    ) -> Removal: ...
    def restore(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = ...,
        idempotency_key: str | None = ...,
        source: str = ...,
    ) -> Removal: ...
    def show(
        self, owner: Owner, session_id: str, *, at: str | None = ..., at_ingested: str | None = ...
    ) -> History: ...
    def query(
        self, owner: Owner, query: HistoryQuery | None = ..., *, cursor: str | None = ...
    ) -> EntityPage: ...
    def entities(
        self, owner: Owner, query: EntityQuery, *, cursor: str | None = ...
    ) -> EntityPage: ...
    def list_observations(
        self,
        owner: Owner,
        session_id: str,
        *,
        start_date: str | None = ...,
        end_date: str | None = ...,
        limit: int = ...,
        cursor: str | None = ...,
    ) -> ObservationPage: ...
    def checkpoint(
        self,
        owner: Owner,
        session_id: str,
        name: str,
        *,
        timestamp: str | None = ...,
        at: str | None = ...,
    ) -> CheckpointState: ...
    def timeline(
        self,
        owner: Owner,
        entity_id: str,
        query: TimelineQuery | None = ...,
        *,
        cursor: str | None = ...,
    ) -> TimelinePage: ...

class AgentsApi(EnsureVerb):
    def get(self, owner: Owner, ref: str) -> Agent: ...
    def list(self, query: AgentQuery, *, cursor: str | None = ...) -> Page[Agent]: ...
    def archive(self, owner: Owner, ref: str) -> Agent: ...

class SessionsApi:
    def get(self, owner: Owner, session_id: SessionId) -> Session: ...
    def list(self, query: SessionQuery, *, cursor: str | None = ...) -> Page[Session]: ...
    def find(self, owner: Owner, beginning: str, *, limit: int = ...) -> tuple[SessionId, ...]: ...
    def update(
        self, owner: Owner, session_id: SessionId, changes: Mapping[str, Any]
    ) -> Session: ...
    def interrupt(
        self, owner: Owner, session_id: SessionId, *, turn: int | None = ...
    ) -> Interruption: ...
    def resume(
        self, owner: Owner, session_id: SessionId, *, context: SessionContext | None = ...
    ) -> Resumption: ...
    def close(
        self, owner: Owner, session_id: SessionId, *, status: Status = ..., reason: str | None = ...
    ) -> Session: ...
    def fork(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        at: int | None = ...,
        title: str | None = ...,
        tags: tuple[str, ...] | None = ...,
        model: str | None = ...,
        agent: str | None = ...,
        is_settled: bool = ...,
        id: str | None = ...,
    ) -> Session: ...
    def delete(
        self, owner: Owner, session_id: SessionId, *, policy: DeletePolicy = ...
    ) -> tuple[SessionId, ...]: ...
    def verify(self, owner: Owner, session_id: SessionId) -> Verification: ...

class MessagesApi:
    def record(self, owner: Owner, session_id: SessionId, draft: MessageDraft) -> Message: ...
    def record_turns(
        self,
        owner: Owner,
        session_id: SessionId,
        drafts: tuple[MessageDraft, ...],
        *,
        on_open_calls: OnOpenCalls = ...,
    ) -> Recorded: ...
    def get(self, owner: Owner, session_id: SessionId, message_id: str) -> Message: ...
    def list(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = ...,
        before: int | None = ...,
        limit: int = ...,
    ) -> Page[Message]: ...

class EventsApi:
    def list(
        self, owner: Owner, session_id: SessionId, *, after: int = ..., limit: int = ...
    ) -> Page[Event | Gap]: ...

class ApprovalsApi:
    def list(
        self,
        owner: Owner,
        session_id: SessionId | None = ...,
        *,
        state: ApprovalState | None = ...,
        cursor: str | None = ...,
        limit: int = ...,
    ) -> Page[Approval]: ...
    def get(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval: ...
    def answer(
        self,
        owner: Owner,
        session_id: SessionId,
        approval_id: str,
        answer: Decision,
        *,
        digest: str | None = ...,
    ) -> Approval: ...
    def revoke(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval: ...

class CallsApi:
    def list(
        self,
        owner: Owner,
        session_id: SessionId | None = ...,
        *,
        state: CallState | None = ...,
        agent: str | None = ...,
        tool: str | None = ...,
        cursor: str | None = ...,
        limit: int = ...,
    ) -> Page[Call]: ...
    def get(self, owner: Owner, session_id: SessionId, call_id: str) -> Call: ...
    def settle(
        self, owner: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call: ...
    def answer(
        self, owner: Owner, session_id: SessionId, call_id: str, answer: CallAnswer
    ) -> Call: ...

class ModelsApi:
    def add(self, request: ModelRequest) -> Model: ...
    def catalogue(self) -> tuple[Model, ...]: ...
    def get(self, ref: str) -> Model: ...
    def list(self) -> list[Model]: ...
    def check(self, *refs: str) -> None: ...

class ReposApi:
    def require_folder(self, owner: Owner, path: str) -> str: ...
    def add(
        self, owner: Owner, path: str, *, name: str | None = ..., at_terminal: bool = ...
    ) -> Repo: ...
    def list(self, owner: Owner) -> list[Repo]: ...
    def remove(self, owner: Owner, repo_id: str) -> None: ...

class CostsApi:
    def report(self, query: CostQuery) -> CostReport: ...

class SearchApi:
    def find(self, owner: Owner, query: SearchQuery, *, cursor: str | None = ...) -> Page[Hit]: ...

class ExportsApi:
    def export(
        self,
        owner: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = ...,
        line: Line = ...,
    ) -> Export: ...
    def record(self, owner: Owner, session_id: SessionId, target: str) -> Event: ...

class CompactionsApi:
    def compact(self, owner: Owner, session_id: SessionId) -> bool: ...

class MediaApi:
    def keep(
        self, owner: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> str: ...
    def read(self, owner: Owner, session_id: SessionId, handle: str) -> bytes: ...

class McpServersApi:
    def attach(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None: ...

class SessionViewsApi:
    def get(self, owner: Owner, session_id: SessionId) -> SessionOverview: ...
    def list(self, query: SessionQuery, *, cursor: str | None = ...) -> OverviewPage: ...

class Holdfast(AskVerbs, SpawnVerbs, ServeVerbs):
    @property
    def owner(self) -> Owner: ...
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
    def defaults(self) -> Defaults: ...
    def open(
        self,
        agent: str = ...,
        request: SessionRequest | None = ...,
        *,
        id: str | None = ...,
        tools: Sequence[Callable[..., Any] | str] = ...,
    ) -> Session: ...
    def attach(self, session_id: SessionId, tools: Sequence[Callable[..., Any]]) -> None: ...
    def send(
        self,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = ...,
        on_busy: OnBusy = ...,
    ) -> Message: ...
    def follow(
        self, session_id: SessionId, *, after: int = ..., until_settled: bool = ...
    ) -> Iterator[Event | Gap]: ...
    def read(self, session_id: SessionId, *, after: int = ...) -> tuple[Message, ...]: ...

def open_holdfast(
    home: str | Path | None = ...,
    *,
    config: Config | None = ...,
    owner: str = ...,
    scope: RunScope = ...,
    outside: Environment | None = ...,
    tools: Sequence[Callable[..., Any]] = ...,
    runtimes: Sequence[Callable[..., Any]] = ...,
) -> AbstractContextManager[Holdfast]: ...
def connect(
    url: str,
    token: str | None = ...,
    *,
    timeouts: Timeouts | None = ...,
    tls: ssl.SSLContext | None = ...,
    tools: Sequence[Callable[..., Any]] = ...,
) -> AbstractContextManager[Holdfast]: ...
