"""What `ask` returns and what `stream` yields."""

from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from holdfast.domain.calls import Call
from holdfast.domain.costs import Usage
from holdfast.domain.events import Failure, ToolEnded, ToolProgressed, ToolStarted
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.sessions import StopReason

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Cost(Struct, frozen=True, kw_only=True):
    """What a turn cost; without a known price for each request the sum is a bound."""

    microcents: int = 0
    priced: bool = True
    # Whether an unpriced sum is an upper bound.
    estimated: bool = False

    def __str__(self) -> str:
        amount = f"${self.microcents / 100_000_000:.4f}"
        if self.priced:
            return amount if self.microcents else "free"
        if not self.microcents:
            return "unknown"
        return f"{'at most' if self.estimated else 'at least'} {amount}"


class Waiting(Struct, frozen=True, kw_only=True):
    """What an open turn waits for."""

    reason: Literal["approval", "budget", "client", "child", "tool", "runtime", "holder", "retry"]
    text: str
    approval_id: ApprovalId | None = None
    call_ids: tuple[CallId, ...] = ()


class Answer(Struct, Generic[V_co], frozen=True, kw_only=True):
    """The end of a turn, or what it waits for; `value` is set by `output=`.

    `messages` are the rows of the turn.
    """

    text: str
    value: V_co
    messages: tuple[Message, ...]
    calls: tuple[Call, ...]
    session_id: SessionId
    turn: int
    stop_reason: StopReason | None
    model: str | None = None
    usage: Usage = Usage()
    cost: Cost = Cost()
    waiting: Waiting | None = None

    def __str__(self) -> str:
        return self.text


class TurnFailed(Exception):  # noqa: N818 — named like the errors of the domain
    """A turn that ended without an answer; `answer` holds what there is of it."""

    def __init__(
        self, message: str, *, answer: Answer[Any] | None = None, failure: Failure | None = None
    ) -> None:
        super().__init__(message)
        self.answer = answer
        self.failure = failure


class TextDelta(Struct, frozen=True, kw_only=True):
    """A piece of the answer's text; a step that failed is followed by one with another number."""

    text: str
    step: int


class ReasoningDelta(Struct, frozen=True, kw_only=True):
    """A piece of the model's reasoning."""

    text: str
    step: int


StreamItem = (
    TextDelta | ReasoningDelta | ToolStarted | ToolProgressed | ToolEnded | Waiting | Answer[V]
)
