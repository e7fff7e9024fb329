"""Running turns: who decides when, and what a runtime is given and gives back."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.calls import Call
from holdfast.domain.contexts import SessionContext
from holdfast.domain.drafts import Draft
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message
from holdfast.domain.models import Model


class Coordinator(Protocol):
    """Who runs turns, and when."""

    def wake(self, session_id: SessionId) -> None:
        """See to it that the session's waiting turn is played, here or by its holder."""

    def interrupt(self, session_id: SessionId) -> None:
        """Stop what this process does for the session; its turn has already been ended."""

    def active(self) -> frozenset[SessionId]:
        """Return the sessions whose turns run in this process."""


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


class Runtime(Protocol):
    """Plays a turn: takes a conversation, yields batches of drafts, each one transaction.

    The journal pulls: a batch is on disk before the generator goes on. The last batch ends with
    an `Outcome`. Closing the generator is the abort signal.
    """

    def run(self, turn: TurnInput) -> AsyncGenerator[Sequence[Draft], None]:
        """Play the turn."""
