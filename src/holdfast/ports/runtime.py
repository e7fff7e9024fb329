"""Running turns: the coordinator that schedules them, and the input and output of a runtime."""

from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct

from holdfast.domain.agent_processes import ProcessEnding
from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval, ApprovalContext, Question
from holdfast.domain.calls import Call
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, Outcome
from holdfast.domain.ids import CallId, ModelId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Message
from holdfast.domain.models import Model
from holdfast.domain.sessions import Budget, Session, SessionContext
from holdfast.domain.tools import ToolSpec
from holdfast.domain.waits import Wait
from holdfast.ports.agent_processes import ProcessSlot
from holdfast.ports.tools import OutputStore, ToolWorkspace


class RunSlot(Protocol):
    """A free slot in which a turn could run immediately."""

    def try_reserve(self, key: SessionKey, turn: int) -> bool:
        """Reserve the slot for a turn; `False` if none is free or work for the session is running.

        Until the slot is released, no other work for the session starts in this process.
        """


class Coordinator(Protocol):
    """Schedules and runs turns."""

    def wake(self, key: SessionKey, *, turn: int | None = None) -> None:
        """Ensure that the session's waiting turn runs, here or in the process that holds the lease.

        `turn` is the last turn requested through this process; without it, all waiting turns count
        as requested here.
        """

    def reserve_slot(self) -> AbstractContextManager[RunSlot]:
        """Reserve a slot, if one is free here, for a turn that is about to be written."""

    def run_lease(self, lease: Lease, *, turn: int) -> None:
        """Run the turn that was started with this lease by a request to this process."""

    def interrupt(self, key: SessionKey, *, epoch: int | None = None) -> None:
        """Stop this process's work for the session; its turn has already been ended.

        With an epoch, do not stop work that was started under a later epoch.
        """

    async def dismiss(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """Stop this process's work for an ended session, including its agent process."""

    def release_slot_while_waiting(self, key: SessionKey) -> AbstractAsyncContextManager[None]:
        """Let another turn run in the session's slot while this one waits for an answer."""

    def resume(self, key: SessionKey) -> None:
        """Continue a paused turn that was answered, if it was paused or may run here."""

    @property
    def runs_turns(self) -> bool:
        """Return whether this process runs queued turns."""

    def active(self) -> frozenset[SessionKey]:
        """Return the sessions whose turns run in this process."""

    def start(self, work: Coroutine[Any, Any, None]) -> object:
        """Run background work; it is cancelled, at the latest, together with the turns."""


class TurnFailedError(Exception):
    """The turn ends with this outcome; its open step and calls are closed with it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.stop_reason)
        self.outcome = outcome


class TurnPausedError(BaseException):
    """The turn waits, and its process need not wait with it: recovery continues the turn.

    `timeouts` is how many seconds a client has to answer each call that it is asked to run.

    Not an `Exception`, because a loop of the user must not catch it by accident.
    """

    def __init__(self, wait: Wait, *, timeouts: Mapping[CallId, float] | None = None) -> None:
        super().__init__(wait.text)
        self.wait = wait
        self.timeouts = timeouts or {}


class Approver(Protocol):
    """Asks for approvals on behalf of one session."""

    def waiting(self, seconds: float) -> "Approver":
        """Return an approver that waits so long before it pauses the turn."""

    async def standing(self, question: Question) -> ApprovalContext:
        """Return the approval context of a question that is not stored yet."""

    async def decision(self, question: Question) -> Approval:
        """Wait for the answer to a stored question; a timeout counts as an answer.

        Raises `TurnPausedError` after some seconds if the turn can be continued later.
        """

    async def withdraw(self, question: Question, *, by: str = "unattended") -> Approval:
        """Close a stored question that needs no answer any more; an existing answer stays."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a turn: tool rounds, history rows, and the context usage that starts compaction."""

    tool_rounds: int = 16
    max_messages: int | None = None
    # None disables compaction, even when a provider reports that the request is too long.
    compact_threshold: float | None = 0.8
    allow_unpriced: bool = True
    # Applies to every session, including those opened under a larger budget.
    budget: Budget | None = None


class TreeCost(Struct, frozen=True, kw_only=True):
    """What the sessions below a session have cost, and what those above leave to it.

    Without `room`, no session above has a budget that stops a turn.
    """

    below: int = 0
    room: int | None = None


class TurnInput(Struct, frozen=True, kw_only=True):
    """Everything a runtime receives about a turn: no store, no surface."""

    agent: Agent
    models: tuple[Model, ...]
    context: SessionContext
    # Rows as stored, because the runtime decides what a model may see of them.
    history: tuple[Message, ...]
    # All rows as they are now, those of this turn included.
    rows_now: Callable[[], Sequence[Message]] = tuple
    # For a loop of the user, which may know its session.
    session: Session | None = None
    calls: tuple[Call, ...] = ()
    # How often an open call was started before, by its id.
    starts: Mapping[CallId, int] = {}
    # Ids of all calls of the session; a runtime that invents ids must not repeat one.
    call_ids: Container[CallId] = ()
    turn: int
    step: int
    ordinal: int
    # Storage of the contents that rows reference; without it, they stay references.
    shelf: OutputStore | None = None
    # Without a workspace there are no tools.
    workspace: ToolWorkspace | None = None
    tools: tuple[ToolSpec, ...] = ()
    approver: Approver
    # The slot of the agent's process; None if the agent is a language model.
    process_slot: ProcessSlot | None = None
    limits: Limits = Limits()
    budget: Budget | None = None
    spent: int = 0
    # Reads the costs of the tree that the session belongs to; None if it stands alone.
    tree: Callable[[], Awaitable[TreeCost]] | None = None
    # Usage of the session's newest request, to estimate how full the model's context window is.
    last_usage: Usage | None = None
    # The model of that request, because another model counts the same text differently.
    last_model: ModelId | None = None


# Commits drafts in one transaction; returns when they are on disk.
Emit = Callable[[Sequence[Draft]], Awaitable[object]]


class TurnEnd(Struct, frozen=True, kw_only=True):
    """How a turn ended, and the drafts that are committed together with its end."""

    outcome: Outcome
    drafts: tuple[Draft, ...] = ()


class Runtime(Protocol):
    """Run a turn: take a conversation, emit batches of drafts, return how it ended."""

    # Whether it emits before it does anything outside: its turn may start while it is written.
    writes_first: bool

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Run the turn; awaiting `emit` is the back-pressure, cancelling this is the interrupt."""

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Summarise the history before the last answered turn; no `Summary` if nothing changed."""
