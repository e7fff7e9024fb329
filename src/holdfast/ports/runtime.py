"""Running turns: who decides when, and what a runtime is given and gives back."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct

from holdfast.domain.agent_processes import ProcessEnding
from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval, ApprovalMode, Question
from holdfast.domain.calls import Call
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft
from holdfast.domain.ids import ModelId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Message
from holdfast.domain.models import Model
from holdfast.domain.sessions import Budget, SessionContext
from holdfast.domain.tools import ToolSpec
from holdfast.ports.agent_processes import ProcessSlot
from holdfast.ports.tools import OutputStore, ToolWorkspace


class RunSlot(Protocol):
    """Where a turn could be played at once."""

    def is_kept(self, key: SessionKey, turn: int) -> bool:
        """Keep it for a turn; `False` when there is none, or something is done for its session.

        Until the place is given back nobody else begins anything for the session here.
        """


class Coordinator(Protocol):
    """Who runs turns, and when."""

    def wake(self, key: SessionKey, *, turn: int | None = None) -> None:
        """See to it that the session's waiting turn is played, here or by its holder.

        `turn` is the last one that was asked for here; without it, all that waits is.
        """

    def place(self) -> AbstractContextManager[RunSlot]:
        """Keep a place for a turn that is about to be written down, if one is free here."""

    def take_up(self, lease: Lease, *, turn: int) -> None:
        """Play the turn that was begun with the lease, and was asked for here."""

    def interrupt(self, key: SessionKey, *, epoch: int | None = None) -> None:
        """Stop what this process does for the session; its turn has already been ended.

        With an epoch, nothing that was begun under a later one.
        """

    async def dismiss(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """Stop what this process does for a session that has ended, its agent's program with it."""

    def active(self) -> frozenset[SessionKey]:
        """Return the sessions whose turns run in this process."""

    def start(self, work: Coroutine[Any, Any, None]) -> object:
        """Do work that nobody waits for; it is stopped, at the latest, with the turns."""


class ApprovalContext(Struct, frozen=True, kw_only=True):
    """How a session stands to a question at this moment.

    `earlier` is what was asked about the very same thing before, `is_remembered` that somebody
    has allowed its like for the whole session, `is_attended` that somebody could answer.
    """

    mode: ApprovalMode
    earlier: Approval | None = None
    is_remembered: bool = False
    is_attended: bool = True


class Approver(Protocol):
    """Who is asked on behalf of one session."""

    async def standing(self, question: Question) -> ApprovalContext:
        """Return how the session stands to a question that was not written down yet."""

    async def decision(self, question: Question) -> Approval:
        """Wait for the answer to a question that is on disk; no answer in time is one, too."""

    async def withdraw(self, question: Question, *, by: str = "unattended") -> Approval:
        """Close a question that is on disk and needs no answer any more; a first answer stays."""


class Limits(Struct, frozen=True, kw_only=True):
    """How far a turn may go: rounds of tools, rows of history, the filling that is folded."""

    tool_rounds: int = 16
    max_messages: int | None = None
    # None switches compaction off, also when a provider says "too long".
    compact_threshold: float | None = 0.8
    allow_unpriced: bool = True
    # What every session is held to, also one that was opened when more was allowed.
    budget: Budget | None = None


class TurnInput(Struct, frozen=True, kw_only=True):
    """All that a runtime learns about a turn: no session id, no store, no surface."""

    agent: Agent
    models: tuple[Model, ...]
    context: SessionContext
    # Rows as they are stored: what a model may see of them is the runtime's business.
    history: tuple[Message, ...]
    calls: tuple[Call, ...] = ()
    turn: int
    step: int
    ordinal: int
    # Where the contents are that the rows name; without it they stay names.
    shelf: OutputStore | None = None
    # Without a place there are no tools.
    place: ToolWorkspace | None = None
    tools: tuple[ToolSpec, ...] = ()
    approver: Approver
    # The place of the agent's own program; nothing where the agent is a model.
    process_slot: ProcessSlot | None = None
    limits: Limits = Limits()
    budget: Budget | None = None
    spent: int = 0
    # What the newest request of the session took in: it tells how full the model's window is.
    last_usage: Usage | None = None
    # Which model was asked then: another one counts the same text differently.
    last_model: ModelId | None = None


class Runtime(Protocol):
    """Plays a turn: takes a conversation, yields batches of drafts, each one transaction.

    The journal pulls: a batch is on disk before the generator goes on. The last batch ends with
    an `Outcome`. Closing the generator is the abort signal.
    """

    def run(self, turn: TurnInput) -> AsyncGenerator[Sequence[Draft], None]:
        """Play the turn."""

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Fold what came before the last answered turn; without a `Summary` nothing was folded."""
