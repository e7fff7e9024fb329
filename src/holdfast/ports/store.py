"""The store: tables of the nouns, all seen through one transaction."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval
from holdfast.domain.calls import Call
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
from holdfast.ports.zones import ZoneTable

T = TypeVar("T")


class Brief(Generic[T]):
    """Work of a few statements on a few rows: a store may run it at once, where it is asked for."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[["Tx"], Coroutine[Any, Any, T]]) -> None:
        self.work = work

    def __call__(self, tx: "Tx") -> Coroutine[Any, Any, T]:
        return self.work(tx)


class Frame(Struct, frozen=True):
    """An event as it is passed on: its number and its encoded envelope."""

    sequence: int
    envelope: bytes


class NewRow(Struct, frozen=True, gc=False):
    """A message to be appended: its encoded parts, its hash, and the number of its event."""

    message: Message
    content: bytes
    hash: bytes
    event: int


class Segment(Struct, frozen=True):
    """A stretch of rows of one session that a fork inherits, or owns, up to a sequence."""

    key: SessionKey
    session_id: SessionId
    first: int
    last: int


class SessionTable(Protocol):
    """Sessions: a small row that changes with every write, and what was frozen when it opened.

    Who acts for an owner names a session by owner and id, which two owners may both use; what
    acts for the house names it by its key, which is never given to another one.
    """

    async def add(self, session: Session, head: SessionState, digest: bytes) -> SessionState:
        """Add a session; the digest of the opening request makes a retry recognisable."""

    async def digest(self, owner: Owner, session_id: SessionId) -> bytes | None:
        """Return the digest of the request that opened the owner's session."""

    async def head(self, owner: Owner, session_id: SessionId) -> SessionState | None:
        """Return where the notebook stands, if this owner has it."""

    async def head_by_key(self, key: SessionKey) -> SessionState | None:
        """Return where the notebook stands, whoever owns it."""

    async def save(self, head: SessionState) -> None:
        """Write back where the notebook stands."""

    async def get(self, owner: Owner, session_id: SessionId) -> tuple[Session, SessionState] | None:
        """Return the session and where it stands, if this owner has it."""

    async def get_by_key(self, key: SessionKey) -> tuple[Session, SessionState] | None:
        """Return the session and where it stands, whoever owns it."""

    async def patch(self, key: SessionKey, session: Session) -> None:
        """Replace what may change: title, tags, model, approval, metadata, and the context."""

    async def page(self, query: SessionQuery) -> list[tuple[Session, SessionState]]:
        """Return the matching sessions in the query's order."""

    async def beginning(self, owner: Owner, text: str, limit: int) -> tuple[SessionId, ...]:
        """Return the ids of the owner's sessions that begin so, in their order."""

    async def count(self, query: SessionQuery) -> int:
        """Return how many sessions match, paging aside."""

    async def lineage(self, key: SessionKey) -> tuple[Segment, ...]:
        """Return the stretches of rows that make up the session, oldest first."""

    async def forks(self, key: SessionKey) -> list[SessionState]:
        """Return the heads of the sessions that point into this one."""

    async def extend(self, holder: str, until: int) -> set[SessionKey]:
        """Extend every lease of a holder; return the sessions it still holds."""

    async def unsettled(self) -> list[SessionState]:
        """Return the heads of all sessions in which a turn is open or waits."""

    async def idle(self, before: datetime) -> list[SessionState]:
        """Return the heads of open sessions bound to a repository and untouched since then."""

    async def slots(self) -> int:
        """Return how many open sessions have an agent that runs as a program of its own."""

    async def detach(self, key: SessionKey) -> None:
        """Copy what a fork inherits into it, so that it stands alone."""

    async def remove(self, head: SessionState, at: datetime) -> None:
        """Remove the session with all that belongs to it and leave a tombstone."""

    async def is_buried(self, owner: Owner, session_id: SessionId) -> bool:
        """Tell whether this owner deleted a session of that id."""


class MessageTable(Protocol):
    """The record. Rows are appended and read; nothing else can be done to them."""

    async def append(self, key: SessionKey, rows: Sequence[NewRow]) -> None:
        """Append rows; each is its own news, under the number it carries."""

    async def by_id(self, head: SessionState, message_id: MessageId) -> Message | None:
        """Return a row by its id, inherited rows aside."""

    async def span(
        self,
        segment: Segment,
        *,
        limit: int,
        newest: bool = False,
        size: int | None = None,
        previous: str | None = None,
    ) -> list[Message]:
        """Return rows of a stretch, ascending, each checked against the chain.

        With a `size`, only as many as hold so many bytes, but at least one. `previous` is the
        hash of the row before the first one, where it was read and checked just now.
        """

    async def deeds(self, head: SessionState) -> list[Message]:
        """Return a session's own rows that tell what it did: results, notices, checkpoints.

        Each is checked against the row before it, inherited rows aside.
        """


class EventTable(Protocol):
    """The news; that a message was appended is read off the message itself."""

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        """Append events other than `message.appended`."""

    async def after(self, head: SessionState, sequence: int, *, limit: int) -> list[Frame]:
        """Return frames after a cursor, at most 1 MiB of them but at least one."""

    async def since(self, head: SessionState, sequence: int, names: Sequence[str]) -> list[Event]:
        """Return events of the given names, `message.appended` aside, from a sequence on."""

    async def at(self, head: SessionState, sequence: int) -> Frame | None:
        """Return the frame of one number; nothing when it was pruned."""

    async def missing(self, head: SessionState, first: int, last: int) -> str:
        """Return why numbers are missing, as a gap says it.

        Deltas lie inside a step, and what was forgotten for its age before a known number. All
        else was removed by something other than Holdfast.
        """

    async def prune(self, before: datetime, *, limit: int) -> int:
        """Remove deltas of settled turns written before an instant; return how many."""

    async def outdated(
        self, before: datetime, *, after: SessionKey, limit: int
    ) -> Sequence[tuple[SessionKey, int | None]]:
        """Return sessions with news from before an instant, by key, and through what it may go.

        Where it may not go yet, because no turn has ended since, nothing stands for the number.
        """

    async def forget(self, key: SessionKey, through: int, *, limit: int) -> int:
        """Remove the oldest news up to a number, and remember the number; return how many."""


class CallTable(Protocol):
    """Tool calls."""

    async def save(self, key: SessionKey, call: Call) -> None:
        """Add a call or replace it."""

    async def by_id(self, head: SessionState, call_id: CallId) -> Call | None:
        """Return a call of the session."""

    async def of_turn(self, head: SessionState, turn: int) -> list[Call]:
        """Return the calls of a turn in the order they were intended."""

    async def page(self, query: WorkQuery) -> list[Call]:
        """Return the matching calls, session by session, in the order they were intended."""

    async def retried(self, head: SessionState, idempotency_key: str) -> Call | None:
        """Return the newest call of that key that was settled by being run again."""


class ApprovalTable(Protocol):
    """Questions, and what was answered."""

    async def save(self, key: SessionKey, approval: Approval) -> None:
        """Add a question or replace it."""

    async def by_id(self, head: SessionState, approval_id: ApprovalId) -> Approval | None:
        """Return a question of the session."""

    async def page(self, query: WorkQuery) -> list[Approval]:
        """Return the matching questions, oldest first."""

    async def waiting(self, head: SessionState) -> list[Approval]:
        """Return the session's questions that nobody has answered."""

    async def about(
        self, head: SessionState, digest: str, call_id: CallId | None
    ) -> Approval | None:
        """Return the newest question about the very same thing."""

    async def is_remembered(self, head: SessionState, memory: str) -> bool:
        """Tell whether the like was allowed for the whole session."""


class MediaTable(Protocol):
    """Contents by their handles, for the sessions that hold them."""

    async def keep(self, key: SessionKey, content: bytes, mime_type: str) -> None:
        """Add a content, and that the session holds it."""

    async def read(self, key: SessionKey, handle: str) -> bytes | None:
        """Return a content that the session holds."""

    async def size(self, key: SessionKey, handle: str) -> int | None:
        """Return how many bytes a content has that the session holds."""


class CostTable(Protocol):
    """The ledger."""

    async def add(self, key: SessionKey, entry: CostEntry) -> bool:
        """Add an entry; `False` when that request is already in the ledger."""

    async def of_turn(self, head: SessionState, turn: int) -> list[CostEntry]:
        """Return the entries of a turn."""

    async def newest(self, head: SessionState) -> CostEntry | None:
        """Return the entry of the session's newest turn that was written last."""

    async def engaged(self, head: SessionState) -> int:
        """Return in how many turns a provider was asked."""

    async def of_session(self, head: SessionState) -> list[CostEntry]:
        """Return the session's entries in the order they were written."""

    async def sums(self, query: CostQuery) -> list[CostSum]:
        """Return the entries that are asked for, added up group by group."""

    async def totals(self, keys: Collection[SessionKey]) -> dict[SessionKey, CostSum]:
        """Return the entries of each session, added up; without entries there is no sum."""


class AgentTable(Protocol):
    """Agents by owner."""

    async def add(self, agent: Agent, digest: bytes = b"") -> None:
        """Add an agent; a taken slug or id is the caller's business to have checked.

        The digest of the request makes a retry recognisable.
        """

    async def digest(self, owner: Owner, agent_id: AgentId) -> bytes | None:
        """Return the digest of the request that made the agent, if this owner has it."""

    async def save(self, agent: Agent) -> None:
        """Replace a stored agent."""

    async def by_id(self, owner: Owner, agent_id: AgentId) -> Agent | None:
        """Return the agent, if this owner has it."""

    async def by_slug(self, owner: Owner, slug: str) -> Agent | None:
        """Return the agent of that slug, if this owner has it."""

    async def page(self, query: AgentQuery) -> list[Agent]:
        """Return the matching agents, newest first."""

    async def is_used(self, owner: Owner, agent_id: AgentId) -> bool:
        """Tell whether a session was opened with the agent."""

    async def remove(self, owner: Owner, agent_id: AgentId) -> None:
        """Remove the agent."""


class ModelTable(Protocol):
    """Models, shared by all owners."""

    async def add(self, model: Model) -> None:
        """Add a model; one that is there stays as it is."""

    async def save(self, model: Model) -> None:
        """Add a model or replace it."""

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
        """Tell whether a session is bound to the repository."""

    async def remove(self, repo_id: RepoId) -> None:
        """Remove the repository."""


class TokenTable(Protocol):
    """Tokens and sign-in codes, by the digests of their secrets."""

    async def add(self, token: Token, digest: bytes) -> None:
        """Add a token; a second live local one of the same home is refused."""

    async def save(self, token: Token) -> None:
        """Replace a stored token; its secret, owner and kind stay."""

    async def by_digest(self, digest: bytes) -> Token | None:
        """Return the token of a secret, whoever owns it and whether or not it has ended."""

    async def by_id(self, owner: Owner, token_id: TokenId) -> Token | None:
        """Return the token, if this owner has it."""

    async def local(self) -> list[Token]:
        """Return the local tokens that are not revoked, one per home."""

    async def of_owner(self, owner: Owner) -> list[Token]:
        """Return the owner's tokens, oldest first."""

    async def all(self) -> list[Token]:
        """Return everybody's tokens, oldest first."""

    async def forget(self, before: datetime) -> None:
        """Remove tokens of the page that ran out before an instant."""

    async def add_code(self, code: SignInCode, digest: bytes) -> None:
        """Add a sign-in code."""

    async def take_code(self, digest: bytes) -> SignInCode | None:
        """Remove a sign-in code and return it; nobody finds it a second time."""

    async def forget_codes(self, before: datetime) -> None:
        """Remove sign-in codes that ran out before an instant."""


class Tx(Protocol):
    """One transaction: the tables, all of the same instant."""

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
    """Where everything is kept. Work awaits nothing but its transaction (decision 0008)."""

    async def read(self, work: Callable[[Tx], Coroutine[Any, Any, T]]) -> T:
        """Run work on one consistent snapshot."""

    async def write(
        self, work: Callable[[Tx], Coroutine[Any, Any, T]], *, urgent: bool = False
    ) -> T:
        """Run work in a transaction; return only when its commit is on disk.

        Urgent work stops or removes something, and is taken even when the disk is full.
        """

    async def require_writable(self) -> None:
        """Raise unless ordinary work could be written now, as on a full disk; changes nothing."""

    @property
    def is_scrubbed(self) -> bool:
        """Tell whether the last scrub succeeded."""

    async def scrub(self) -> bool:
        """Take removed rows out of every file; `False` when it has to be tried again."""

    async def check(self) -> list[str]:
        """Return the faults found in the store, one sentence each; empty when it is sound."""

    async def missing_events(self) -> list[str]:
        """Return which events are gone that nothing explains, one sentence each.

        Messages do not depend on events, so this is no fault of the record.
        """

    async def close(self) -> None:
        """Let go of the store; what was acknowledged is on disk already."""
