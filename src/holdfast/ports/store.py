"""Store port: one table per noun, all accessed through one transaction."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval
from holdfast.domain.calls import Call
from holdfast.domain.commits import SessionCommit
from holdfast.domain.costs import CostEntry, CostQuery, CostSum
from holdfast.domain.events import Event
from holdfast.domain.ids import (
    AgentId,
    ApprovalId,
    CallId,
    MessageId,
    ModelId,
    Owner,
    RepoId,
    SessionId,
    SessionKey,
    TokenId,
)
from holdfast.domain.messages import Message
from holdfast.domain.models import Model
from holdfast.domain.queries import AgentQuery, SessionQuery, WorkQuery
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionState
from holdfast.domain.tokens import SignInCode, Token
from holdfast.ports.agent_processes import AgentProcessTable
from holdfast.ports.observations import ObservationTable, ProjectionTable
from holdfast.ports.search import SearchTable
from holdfast.ports.system import Frame
from holdfast.ports.zones import ZoneTable

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


class SessionTable(Protocol):
    """Sessions: a small row that changes with every write, and a snapshot frozen at creation.

    Requests of an owner identify a session by owner and id, because two owners may use the same id.
    Internal work identifies it by its key, which is never reused.
    """

    async def add(self, session: Session, head: SessionState, digest: bytes) -> SessionState:
        """Add a session; the digest of the creation request makes a retry idempotent."""

    async def digest(self, owner: Owner, session_id: SessionId) -> bytes | None:
        """Return the digest of the request that created the owner's session."""

    async def head(self, owner: Owner, session_id: SessionId) -> SessionState | None:
        """Return the session state, if this owner has the session."""

    async def head_by_key(self, key: SessionKey) -> SessionState | None:
        """Return the session state, for any owner."""

    async def get(self, owner: Owner, session_id: SessionId) -> tuple[Session, SessionState] | None:
        """Return the session and its state, if this owner has it."""

    async def get_by_key(self, key: SessionKey) -> tuple[Session, SessionState] | None:
        """Return the session and its state, for any owner."""

    async def patch(self, key: SessionKey, session: Session) -> None:
        """Replace the mutable fields: title, tags, model, approval, metadata and context."""

    async def page(self, query: SessionQuery) -> list[tuple[Session, SessionState]]:
        """Return the matching sessions in the query's order."""

    async def beginning(self, owner: Owner, text: str, limit: int) -> tuple[SessionId, ...]:
        """Return the ids of the owner's sessions that start with the text, sorted."""

    async def count(self, query: SessionQuery) -> int:
        """Return the number of matching sessions, ignoring pagination."""

    async def lineage(self, key: SessionKey) -> tuple[Segment, ...]:
        """Return the segments of message rows that make up the session, oldest first."""

    async def forks(self, key: SessionKey) -> list[SessionState]:
        """Return the states of the sessions forked from this one."""

    async def extend(self, holder: str, until: int) -> set[SessionKey]:
        """Extend every lease of a holder; return the sessions it still holds."""

    async def unsettled(self) -> list[SessionState]:
        """Return the states of all sessions with an open or waiting turn."""

    async def idle(self, before: datetime) -> list[SessionState]:
        """Return the states of open repository sessions not updated since the given time."""

    async def slots(self) -> int:
        """Return the number of open sessions whose agent runs as a separate process."""

    async def detach(self, key: SessionKey) -> None:
        """Copy the inherited rows into the fork, so that it no longer depends on its parent."""

    async def remove(self, head: SessionState, at: datetime) -> None:
        """Remove the session with all its rows and leave a tombstone."""

    async def is_buried(self, owner: Owner, session_id: SessionId) -> bool:
        """Return whether this owner deleted a session with that id."""


class MessageTable(Protocol):
    """Messages: an append-only table. Rows are never updated or deleted one by one."""

    async def by_id(self, head: SessionState, message_id: MessageId) -> Message | None:
        """Return a row by its id; inherited rows are not searched."""

    async def span(
        self,
        segment: Segment,
        *,
        limit: int,
        newest: bool = False,
        size: int | None = None,
        previous: str | None = None,
    ) -> list[Message]:
        """Return rows of a segment in ascending order, each verified against the hash chain.

        `size` limits the total bytes, but at least one row is returned. `previous` is the hash of
        the row before the first one, if the caller has just read and verified it.
        """

    async def deeds(self, head: SessionState) -> list[Message]:
        """Return a session's own rows that record its actions: results, notices, checkpoints.

        Each row is verified against the row before it. Inherited rows are not included.
        """


class EventTable(Protocol):
    """Events; `message.appended` is not stored here but derived from the message row."""

    async def after(self, head: SessionState, sequence: int, *, limit: int) -> list[Frame]:
        """Return frames after a cursor: at most 1 MiB, but at least one frame."""

    async def since(self, head: SessionState, sequence: int, names: Sequence[str]) -> list[Event]:
        """Return events with the given names from a sequence on, without `message.appended`."""

    async def at(self, head: SessionState, sequence: int) -> Frame | None:
        """Return the frame of one sequence number; `None` if it was pruned."""

    async def missing(self, head: SessionState, first: int, last: int) -> str:
        """Return the reason for missing sequence numbers, as a `Gap` reports it.

        Pruned deltas lie inside a step. Events removed by retention lie before the stored
        watermark. All others were removed by something other than Holdfast.
        """

    async def prune(self, before: datetime, *, limit: int) -> int:
        """Remove deltas of settled turns written before a time; return how many."""

    async def outdated(
        self, before: datetime, *, after: SessionKey, limit: int
    ) -> Sequence[tuple[SessionKey, int | None]]:
        """Return sessions with events older than a time, by key, and the last removable number.

        The number is `None` if nothing may be removed yet, because no turn has ended since.
        """

    async def forget(self, key: SessionKey, through: int, *, limit: int) -> int:
        """Remove the oldest events up to a number, stored as the watermark; return how many."""


class CallTable(Protocol):
    """Tool calls."""

    async def by_id(self, head: SessionState, call_id: CallId) -> Call | None:
        """Return a call of the session."""

    async def of_turn(self, head: SessionState, turn: int) -> list[Call]:
        """Return the calls of a turn in the order they were requested."""

    async def page(self, query: WorkQuery) -> list[Call]:
        """Return the matching calls, session by session, in the order they were requested."""

    async def retried(self, head: SessionState, idempotency_key: str) -> Call | None:
        """Return the newest call with that idempotency key that was settled by a retry."""


class ApprovalTable(Protocol):
    """Approval requests and their answers."""

    async def by_id(self, head: SessionState, approval_id: ApprovalId) -> Approval | None:
        """Return an approval request of the session."""

    async def page(self, query: WorkQuery) -> list[Approval]:
        """Return the matching approval requests, oldest first."""

    async def waiting(self, head: SessionState) -> list[Approval]:
        """Return the session's unanswered approval requests."""

    async def about(
        self, head: SessionState, digest: str, call_id: CallId | None
    ) -> Approval | None:
        """Return the newest approval request with the same digest."""

    async def is_remembered(self, head: SessionState, memory: str) -> bool:
        """Return whether calls with this memory key were allowed for the whole session."""


class MediaTable(Protocol):
    """Media contents by handle, readable only for the sessions that reference them."""

    async def keep(self, key: SessionKey, content: bytes, mime_type: str) -> None:
        """Store a content and record that the session references it."""

    async def read(self, key: SessionKey, handle: str) -> bytes | None:
        """Return a content that the session references."""

    async def size(self, key: SessionKey, handle: str) -> int | None:
        """Return the size in bytes of a content that the session references."""


class CostTable(Protocol):
    """The cost ledger."""

    async def of_turn(self, head: SessionState, turn: int) -> list[CostEntry]:
        """Return the entries of a turn."""

    async def newest(self, head: SessionState) -> CostEntry | None:
        """Return the last entry of the session's newest turn."""

    async def engaged(self, head: SessionState) -> int:
        """Return the number of turns in which a provider was called."""

    async def of_session(self, head: SessionState) -> list[CostEntry]:
        """Return the session's entries in the order they were written."""

    async def sums(self, query: CostQuery) -> list[CostSum]:
        """Return the sums of the matching entries, one per group."""

    async def totals(self, keys: Collection[SessionKey]) -> dict[SessionKey, CostSum]:
        """Return the sum of each session's entries; a session without entries is left out."""


class AgentTable(Protocol):
    """Agents by owner."""

    async def add(self, agent: Agent, digest: bytes = b"") -> None:
        """Add an agent; the caller must have checked that its slug and id are free.

        The digest of the request makes a retry idempotent.
        """

    async def digest(self, owner: Owner, agent_id: AgentId) -> bytes | None:
        """Return the digest of the request that created the agent, if this owner has it."""

    async def save(self, agent: Agent) -> None:
        """Replace a stored agent."""

    async def by_id(self, owner: Owner, agent_id: AgentId) -> Agent | None:
        """Return the agent, if this owner has it."""

    async def by_slug(self, owner: Owner, slug: str) -> Agent | None:
        """Return the agent with that slug, if this owner has it."""

    async def page(self, query: AgentQuery) -> list[Agent]:
        """Return the matching agents, newest first."""

    async def is_used(self, owner: Owner, agent_id: AgentId) -> bool:
        """Return whether a session was opened with the agent."""

    async def remove(self, owner: Owner, agent_id: AgentId) -> None:
        """Remove the agent."""


class ModelTable(Protocol):
    """Models, shared by all owners."""

    async def add(self, model: Model) -> None:
        """Add a model; an existing one is not changed."""

    async def save(self, model: Model) -> None:
        """Add or replace a model."""

    async def by_id(self, model_id: ModelId) -> Model | None:
        """Return the model."""

    async def all(self) -> list[Model]:
        """Return every model, by provider and name."""


class RepoTable(Protocol):
    """Repositories by owner."""

    async def add(self, repo: Repo) -> None:
        """Add a repository."""

    async def by_id(self, owner: Owner, repo_id: RepoId) -> Repo | None:
        """Return the repository, if this owner has it."""

    async def by_path(self, owner: Owner, path: str) -> Repo | None:
        """Return the repository registered at a resolved path."""

    async def all(self, owner: Owner) -> list[Repo]:
        """Return the owner's repositories by name."""

    async def is_used(self, repo_id: RepoId) -> bool:
        """Return whether a session is bound to the repository."""

    async def remove(self, repo_id: RepoId) -> None:
        """Remove the repository."""


class TokenTable(Protocol):
    """Tokens and sign-in codes, by the digests of their secrets."""

    async def add(self, token: Token, digest: bytes) -> None:
        """Add a token; a second live local token for the same home is refused."""

    async def save(self, token: Token) -> None:
        """Replace a stored token; its secret, owner and kind cannot change."""

    async def by_digest(self, digest: bytes) -> Token | None:
        """Return the token with this digest, for any owner, even if expired or revoked."""

    async def by_id(self, owner: Owner, token_id: TokenId) -> Token | None:
        """Return the token, if this owner has it."""

    async def local(self) -> list[Token]:
        """Return the local tokens that are not revoked, one per home."""

    async def of_owner(self, owner: Owner) -> list[Token]:
        """Return the owner's tokens, oldest first."""

    async def all(self) -> list[Token]:
        """Return the tokens of all owners, oldest first."""

    async def forget(self, before: datetime) -> None:
        """Remove web sign-in tokens that expired before a time."""

    async def add_code(self, code: SignInCode, digest: bytes) -> None:
        """Add a sign-in code."""

    async def take_code(self, digest: bytes) -> SignInCode | None:
        """Remove a sign-in code and return it; a code can be used only once."""

    async def forget_codes(self, before: datetime) -> None:
        """Remove sign-in codes that expired before a time."""


class Tx(Protocol):
    """One transaction: all tables at the same snapshot."""

    async def append(self, commit: SessionCommit) -> None:
        """Write a commit; raises `VersionConflictError` if the session has changed."""

    @property
    def agents(self) -> AgentTable: ...
    @property
    def models(self) -> ModelTable: ...
    @property
    def repos(self) -> RepoTable: ...
    @property
    def sessions(self) -> SessionTable: ...
    @property
    def messages(self) -> MessageTable: ...
    @property
    def events(self) -> EventTable: ...
    @property
    def calls(self) -> CallTable: ...
    @property
    def approvals(self) -> ApprovalTable: ...
    @property
    def media(self) -> MediaTable: ...
    @property
    def costs(self) -> CostTable: ...
    @property
    def programs(self) -> AgentProcessTable: ...
    @property
    def tokens(self) -> TokenTable: ...
    @property
    def zones(self) -> ZoneTable: ...
    @property
    def observations(self) -> ObservationTable: ...
    @property
    def projections(self) -> ProjectionTable: ...
    @property
    def search(self) -> SearchTable: ...


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
