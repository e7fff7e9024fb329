"""Children of a session: what is asked of them, how many there may be, and what they answer."""

from typing import Any, Final
from uuid import UUID, uuid5

from msgspec import Struct

from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import Message, Notice, NoticeCode, Output, Role
from holdfast.domain.sessions import Budget, SessionState, StopReason
from holdfast.domain.tools import Grant

# These ends of a turn are answers; after any other the call of the parent has failed.
ANSWERED: Final = frozenset({StopReason.STOP, StopReason.LENGTH, StopReason.REFUSAL})
# A parent waits for the turn of the message that its child was opened with.
FIRST_TURN: Final = 1


class ChildLimits(Struct, frozen=True, kw_only=True):
    """How deep sessions may open others, and how many one may have open and altogether."""

    depth: int = 3
    at_a_time: int = 8
    per_session: int = 32


class ChildRequest(Struct, frozen=True, kw_only=True):
    """A task for another agent; the limits can only narrow what the parent has."""

    agent: str
    task: str
    title: str | None = None
    budget: Budget | None = None
    grant: Grant | None = None
    tools: tuple[str, ...] | None = None


class ChildAnswer(Struct, frozen=True, kw_only=True):
    """How the task of a child ended; without a stop reason, its session was closed before."""

    session_id: SessionId
    stop_reason: StopReason | None
    text: str = ""
    value: Any = None

    @property
    def is_answered(self) -> bool:
        """Return whether the child has answered."""
        return self.stop_reason in ANSWERED


def child_id_of(parent: SessionId, call_id: CallId) -> SessionId:
    """Return the id of the session that a call opens, however often the call runs."""
    return SessionId(str(uuid5(UUID(parent), call_id)))


def task_id_of(child: SessionId) -> MessageId:
    """Return the id of the message that a child is opened with."""
    return MessageId(str(uuid5(UUID(child), "task")))


def answer_of(state: SessionState, rows: list[Message]) -> ChildAnswer:
    """Return the answer of a child whose first turn has ended, or whose session was closed."""
    own = [row for row in rows if row.turn == FIRST_TURN]
    said = [row for row in own if row.role is not Role.SYSTEM]
    last = said[-1] if said and said[-1].role is Role.ASSISTANT else None
    values = [part.value for part in last.parts if isinstance(part, Output)] if last else []
    return ChildAnswer(
        session_id=state.session_id,
        stop_reason=_stop_of(state, own),
        text=last.text if last else "",
        value=values[0] if values else None,
    )


def _stop_of(state: SessionState, rows: list[Message]) -> StopReason | None:
    if state.settled < FIRST_TURN:
        return None
    if state.settled == FIRST_TURN:
        return state.last_stop
    # A later turn has ended since; an end without an answer has left a notice.
    parts = (part for row in rows for part in row.parts)
    codes = [
        _STOPS[part.code] for part in parts if isinstance(part, Notice) and part.code in _STOPS
    ]
    return codes[-1] if codes else StopReason.STOP


_STOPS: Final = {
    NoticeCode(each.value): each for each in StopReason if each.value in set(NoticeCode)
}
