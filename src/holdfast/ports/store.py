"""Store port: work runs in a transaction, through which it reaches every table."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.domain.commits import SessionCommit
from holdfast.domain.ids import SessionId, SessionKey

# Only types: each table has one implementation, on both databases.
if TYPE_CHECKING:
    from holdfast.observations.tables import ObservationTables, SnapshotTables
    from holdfast.search.tables import SearchTables
    from holdfast.store.agent_processes import AgentProcessRows
    from holdfast.store.agents import AgentRows
    from holdfast.store.approvals import ApprovalRows
    from holdfast.store.calls import CallRows
    from holdfast.store.children import ChildRows
    from holdfast.store.client_requests import ClientRequestRows
    from holdfast.store.costs import CostRows
    from holdfast.store.events import EventRows
    from holdfast.store.foreign_records import ForeignRows
    from holdfast.store.graph_checkpoints import GraphRows
    from holdfast.store.held_turns import HeldTurnRows
    from holdfast.store.media import MediaRows
    from holdfast.store.messages import MessageRows
    from holdfast.store.models import ModelRows
    from holdfast.store.repos import RepoRows
    from holdfast.store.sessions import SessionRows
    from holdfast.store.tokens import TokenRows
    from holdfast.store.waits import WaitRows
    from holdfast.workers.tables import WorkerRows
    from holdfast.zones.tables import ZoneTables

T = TypeVar("T")


class Brief(Generic[T]):
    """Work of a few statements on a few rows; a store may run it inline on the calling thread."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[["Tx"], Coroutine[Any, Any, T]]) -> None:
        self.work = work

    def __call__(self, tx: "Tx") -> Coroutine[Any, Any, T]:
        return self.work(tx)


class Segment(Struct, frozen=True):
    """A range of message rows, up to a sequence, that a session owns or a fork inherits."""

    key: SessionKey
    session_id: SessionId
    first: int
    last: int


class Tx(Protocol):
    """One transaction: all tables at the same snapshot."""

    agents: "AgentRows"
    approvals: "ApprovalRows"
    calls: "CallRows"
    children: "ChildRows"
    client_requests: "ClientRequestRows"
    costs: "CostRows"
    events: "EventRows"
    foreign: "ForeignRows"
    graphs: "GraphRows"
    held_turns: "HeldTurnRows"
    media: "MediaRows"
    messages: "MessageRows"
    models: "ModelRows"
    observations: "ObservationTables"
    programs: "AgentProcessRows"
    projections: "SnapshotTables"
    repos: "RepoRows"
    search: "SearchTables"
    sessions: "SessionRows"
    tokens: "TokenRows"
    waits: "WaitRows"
    workers: "WorkerRows"
    zones: "ZoneTables"

    async def append(self, commit: SessionCommit) -> None:
        """Write a commit; raises `VersionConflictError` if the session has changed."""


class Store(Protocol):
    """Durable storage. Work may await only its transaction, to avoid deadlocks (decision 0007)."""

    async def read(self, work: Callable[[Tx], Coroutine[Any, Any, T]]) -> T:
        """Run work on one consistent snapshot."""

    async def write(
        self, work: Callable[[Tx], Coroutine[Any, Any, T]], *, urgent: bool = False
    ) -> T:
        """Run work in a transaction; return only after the commit is on disk.

        Urgent work stops or removes something, and is accepted even when the disk is full.
        """

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit; the future completes when it is on disk.

        It fails with `VersionConflictError` if the stored session is not as the commit expects, or
        if an id in it is taken; then nothing of it is written. Commits of one session are applied
        in the order in which they were queued. Cancelling the future does not take it back.
        """

    def version_now(self) -> tuple[int, int] | None:
        """Return a value that changes when another process has written to the store.

        Returns at once; `None` if it is not known without waiting.
        """

    async def require_writable(self) -> None:
        """Raise if ordinary work cannot be written now, such as on a full disk; write nothing."""

    @property
    def is_scrubbed(self) -> bool:
        """Return whether the last scrub succeeded."""

    async def scrub(self) -> bool:
        """Erase removed rows from every database file; return `False` if a retry is needed."""

    async def check(self) -> list[str]:
        """Return the integrity faults found in the store, one sentence each."""

    async def missing_events(self) -> list[str]:
        """Return the missing events that no retention rule explains, one sentence each.

        Messages do not depend on events, so this is not a fault of the message table.
        """

    async def close(self) -> None:
        """Close the store; acknowledged writes are already on disk."""
