"""The services that commands call, implemented locally and by the remote client."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.domain.agents import Agent
    from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalState
    from holdfast.domain.calls import Call, CallState
    from holdfast.domain.costs import CostQuery, CostReport, CostSum
    from holdfast.domain.events import Event, Gap
    from holdfast.domain.ids import Owner, SessionId
    from holdfast.domain.messages import Message
    from holdfast.domain.models import Model
    from holdfast.domain.queries import AgentQuery, Page, SessionQuery
    from holdfast.domain.repos import Repo
    from holdfast.domain.sessions import (
        Created,
        ForkRequest,
        OnBusy,
        Session,
        SessionContext,
        SessionRequest,
        Status,
    )
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
    from holdfast.services.calls import SettlementRequest
    from holdfast.services.session_lifecycle import DeletePolicy, Interruption, Resumption
    from holdfast.services.sessions import Verification
    from holdfast.workflows.session_export import Export, ExportFormat, ExportStream, Line
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


class Observations(Protocol):
    """Observations reported by agents, and the history merged from them."""

    async def submit(
        self,
        owner: "Owner",
        payload: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
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
        self, owner: "Owner", session_id: str, *, limit: int = ..., cursor: str | None = None
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


class Zones(Protocol):
    """Active zones of agents, and their archives."""

    async def show(self, owner: "Owner", definition_id: str) -> "ActiveZone": ...
    async def read_state(self, owner: "Owner", definition_id: str) -> "ZoneState": ...
    async def write_state(
        self,
        owner: "Owner",
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> "StateWritten": ...
    async def append_lines(
        self, owner: "Owner", definition_id: str, lines: "Sequence[str]", /
    ) -> "OutputAppended": ...
    async def read_lines(
        self,
        owner: "Owner",
        definition_id: str,
        query: "LineQuery | None" = None,
        *,
        archive: int | None = None,
    ) -> "Lines": ...
    def follow(
        self, owner: "Owner", definition_id: str, *, start: int | None = None
    ) -> "AsyncGenerator[Lines, None]": ...
    async def replay(
        self, owner: "Owner", definition_id: str, *, window: int = ..., page: int = ...
    ) -> "Replay": ...
    async def archive(self, owner: "Owner", definition_id: str) -> "ArchiveResult | None": ...
    async def list_archives(
        self, owner: "Owner", definition_id: str, *, limit: int | None = None
    ) -> "tuple[ArchiveSummary, ...]": ...
    async def read_archive(self, owner: "Owner", definition_id: str, ms: int) -> "Archive": ...
    async def restore_archive(
        self, owner: "Owner", definition_id: str, ms: int, /
    ) -> "RestoreResult": ...
    async def delete_archive(self, owner: "Owner", definition_id: str, ms: int) -> bool: ...


class Agents(Protocol):
    """Agents."""

    async def create(self, owner: "Owner", fields: Mapping[str, Any]) -> "Agent": ...
    async def get(self, owner: "Owner", ref: str) -> "Agent": ...
    async def list(self, query: "AgentQuery", *, cursor: str | None = None) -> "Page[Agent]": ...
    async def update(self, owner: "Owner", ref: str, changes: Mapping[str, Any]) -> "Agent": ...
    async def archive(self, owner: "Owner", ref: str) -> "Agent": ...


class Sessions(Protocol):
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
    async def make_fork(
        self, owner: "Owner", session_id: "SessionId", request: "ForkRequest"
    ) -> "Created[Session]": ...
    async def delete(
        self, owner: "Owner", session_id: "SessionId", *, policy: "DeletePolicy" = ...
    ) -> "tuple[SessionId, ...]": ...
    async def verify(self, owner: "Owner", session_id: "SessionId") -> "Verification": ...


class Messages(Protocol):
    """Messages."""

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


class Events(Protocol):
    """Events."""

    async def list(
        self, owner: "Owner", session_id: "SessionId", *, after: int = 0, limit: int = 1_000
    ) -> "Page[Event | Gap]": ...


class Approvals(Protocol):
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
        answer: "ApprovalAnswer",
        *,
        digest: str | None = None,
    ) -> "Approval": ...
    async def revoke(
        self, owner: "Owner", session_id: "SessionId", approval_id: str
    ) -> "Approval": ...


class Calls(Protocol):
    """Tool calls."""

    async def list(
        self,
        owner: "Owner",
        session_id: "SessionId | None" = None,
        *,
        state: "CallState | None" = None,
        cursor: str | None = None,
        limit: int = ...,
    ) -> "Page[Call]": ...
    async def get(self, owner: "Owner", session_id: "SessionId", call_id: str) -> "Call": ...
    async def settle(
        self, owner: "Owner", session_id: "SessionId", call_id: str, request: "SettlementRequest"
    ) -> "Call": ...


class Models(Protocol):
    """Models."""

    async def list(self) -> "list[Model]": ...
    async def check(self, *refs: str) -> None: ...


class Repos(Protocol):
    """Repositories in which agents may work."""

    async def add(
        self, owner: "Owner", path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> "Repo": ...
    async def list(self, owner: "Owner") -> "list[Repo]": ...
    async def remove(self, owner: "Owner", repo_id: str) -> None: ...


class Costs(Protocol):
    """Costs."""

    async def of_sessions(
        self, owner: "Owner", sessions: "Iterable[SessionId]"
    ) -> "dict[SessionId, CostSum]": ...
    async def report(self, query: "CostQuery") -> "CostReport": ...


class Search(Protocol):
    """Full-text search."""

    async def find(
        self, owner: "Owner", query: "SearchQuery", *, cursor: str | None = None
    ) -> "Page[Hit]": ...


class Exports(Protocol):
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


class Compactions(Protocol):
    """Compactions: summaries that replace older messages in the context."""

    async def compact(self, owner: "Owner", session_id: "SessionId") -> bool: ...


class House(Protocol):
    """All services, local or remote."""

    @property
    def config(self) -> "Config": ...
    @property
    def owner(self) -> "Owner": ...
    @property
    def agents(self) -> Agents: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def calls(self) -> Calls: ...
    @property
    def compactions(self) -> Compactions: ...
    @property
    def costs(self) -> Costs: ...
    @property
    def events(self) -> Events: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def messages(self) -> Messages: ...
    @property
    def models(self) -> Models: ...
    @property
    def observations(self) -> Observations: ...
    @property
    def repos(self) -> Repos: ...
    @property
    def search(self) -> Search: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def zones(self) -> Zones: ...

    async def open(
        self, agent: str = ..., request: "SessionRequest | None" = None
    ) -> "Session": ...
    async def send(
        self,
        session_id: "SessionId",
        content: str,
        *,
        id: str | None = None,
        on_busy: "OnBusy" = ...,
    ) -> "Message": ...
    def follow(
        self, session_id: "SessionId", *, after: int = 0
    ) -> "AsyncGenerator[Event | Gap, None]": ...
