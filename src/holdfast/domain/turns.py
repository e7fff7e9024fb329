"""Turns: how rows are grouped by turn, and how a crashed or interrupted turn is repaired.

Projection, recovery, resume and export all use these functions, so they cannot disagree.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Final

from msgspec import Struct

from holdfast.domain.agents import Recovery
from holdfast.domain.calls import Call, CallState, is_open
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome
from holdfast.domain.events import (
    Failure,
    FailureCode,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolStarted,
)
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Message,
    Notice,
    Part,
    Plan,
    ResultStatus,
    Role,
    Text,
    ToolError,
    ToolResult,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect


class TurnRows(Struct, frozen=True, kw_only=True):
    """The rows of one turn number, in the order they were written."""

    number: int
    messages: tuple[Message, ...]

    @property
    def is_answered(self) -> bool:
        """Return whether the last relevant row is an assistant's text.

        Plans and informational notices are ignored. Text before a tool call does not count as an
        answer.
        """
        counting = [row for row in self.messages if not _is_aside(row)]
        return bool(counting) and counting[-1].role is Role.ASSISTANT and bool(counting[-1].text)


def group_by_turn(messages: Iterable[Message]) -> list[TurnRows]:
    """Group rows by turn number and sequence; rows of turn 0 are left out."""
    # Turn 0 holds rows outside any turn: summaries, settlements, the end of the session.
    ordered = sorted([row for row in messages if row.turn > 0], key=attrgetter("turn", "sequence"))
    return [
        TurnRows(number=number, messages=tuple(rows))
        for number, rows in groupby(ordered, key=attrgetter("turn"))
    ]


class Endings:
    """Finds the texts that were cut off, while rows are streamed in order."""

    def __init__(self) -> None:
        self._texts: dict[int, MessageId] = {}
        self._closed: set[int] = set()
        self._newest = 0

    def add(self, rows: Iterable[Message]) -> None:
        """Process the next rows."""
        for row in rows:
            # A user's row ends nothing, and may wait for the next turn while this one still runs.
            if row.turn == 0 or row.role is Role.USER:
                continue
            if row.role is Role.ASSISTANT:
                self._texts[row.turn] = row.id
            if any(map(_is_closing, row.parts)):
                self._closed.add(row.turn)
            self._newest = max(self._newest, row.turn)

    def is_undecided(self, rows: Sequence[Message]) -> bool:
        """Return whether later rows may still show how one of these texts ended."""
        return any(row.turn >= self._newest for row in self._last_texts(rows))

    def interrupted(self, rows: Sequence[Message]) -> frozenset[MessageId]:
        """Return which of the rows are the last texts of turns that ended abnormally."""
        return frozenset(row.id for row in self._last_texts(rows) if row.turn in self._closed)

    def _last_texts(self, rows: Iterable[Message]) -> list[Message]:
        texts = self._texts
        return [row for row in rows if row.role is Role.ASSISTANT and texts.get(row.turn) == row.id]


class ResumePolicy(StrEnum):
    """What a loop does after its process died: run anew with recorded results, or not at all."""

    REPLAY = "replay"
    HISTORY = "history"
    STOP = "stop"


class HeldTurn(Struct, frozen=True, kw_only=True):
    """A turn that a program holds with `hf.turn`, and what happens if the program dies.

    `within` is how many seconds the turn then waits for the program; `None` for any time.
    """

    turn: int
    resume: ResumePolicy = ResumePolicy.REPLAY
    within: float | None = 600
    # How often the turn was entered.
    attempt: int = 1


class OpenStep(Struct, frozen=True, kw_only=True):
    """A model step that has started and not ended, with the text streamed so far."""

    started: StepStarted
    text: str = ""


class Repair(Struct, frozen=True, kw_only=True):
    """The drafts that recovery appends; without an outcome, the turn continues."""

    drafts: tuple[Draft, ...]
    outcome: Outcome | None = None


def repair_after_crash(step: OpenStep | None, calls: Sequence[Call], recovery: Recovery) -> Repair:
    """Decide how to recover each call after a crash in the middle of a turn.

    The model is asked again. Calls that did not start, and pure or idempotent ones, are resumed; a
    call that a client was asked to run goes on waiting. A started unsafe call becomes unknown and
    ends the turn, unless the agent's recovery is `continue`.
    """
    doubtful = [call for call in calls if _is_uncertain(call)]
    if not doubtful or recovery is Recovery.CONTINUE:
        return Repair(
            drafts=(
                *_step_failure(step),
                *_cost_if_bounded(step),
                *_results_of_open_calls(doubtful),
            )
        )
    failure = Failure(code=FailureCode.INTERRUPTED, message=_INTERRUPTED)
    return Repair(
        drafts=(
            *_step_failure(step),
            *_text_so_far(step),
            *_cost_if_bounded(step),
            *_results_of_open_calls(calls),
        ),
        outcome=Outcome(stop_reason=StopReason.INTERRUPTED, failure=failure),
    )


def results_after_deadline(calls: Sequence[Call]) -> Iterator[Draft]:
    """Yield the results of calls that no client has answered in time."""
    for call in calls:
        yield from _result(call, ResultStatus.ERROR, _TIMEOUT)


def results_after_attempts(calls: Sequence[Call]) -> Iterator[Draft]:
    """Yield the results of calls that several clients began, and none has ended."""
    for call in calls:
        yield from _result(call, ResultStatus.ERROR, _UNAVAILABLE)


def repair_after_restart(step: OpenStep | None, calls: Sequence[Call]) -> Repair:
    """Decide how to recover a turn of an external agent process after a crash.

    The process died with Holdfast, so the outcome of every open call is unknown.
    """
    failure = Failure(code=FailureCode.INTERRUPTED, message=_RESTARTED)
    unknown = (draft for call in filter(is_open, calls) for draft in _uncertain_result(call))
    return Repair(
        drafts=(*_step_failure(step), *_text_so_far(step), *_cost_of_cut_request(step), *unknown),
        outcome=Outcome(stop_reason=StopReason.INTERRUPTED, failure=failure),
    )


def repair_after_abort(
    step: OpenStep | None, calls: Sequence[Call], reason: str | None = None
) -> Repair:
    """Decide how to end a turn that the user aborted: save its text, answer every open call."""
    return cut_short(step, calls, Outcome(stop_reason=StopReason.ABORTED, reason=reason))


def cut_short(step: OpenStep | None, calls: Sequence[Call], outcome: Outcome) -> Repair:
    """End a turn in the middle: save the streamed text and answer every open call."""
    return Repair(
        drafts=(
            *_step_failure(step),
            *_text_so_far(step),
            *_cost_of_cut_request(step),
            *_results_of_open_calls(calls),
        ),
        outcome=outcome,
    )


_UNKNOWN = ToolError(code="unknown", message="outcome unknown: the call was cut off while it ran")
_SKIPPED = ToolError(code="aborted", message="the call was not run: its turn ended before")
_TIMEOUT = ToolError(
    code="timeout", message="no client has answered in time; the call has no result"
)
_UNAVAILABLE = ToolError(
    code="unavailable", message="the clients that ran the call have disappeared; it has no result"
)
_ABORTED = ToolError(code="aborted", message="the call was stopped while it ran")
_RESTARTED = (
    "Holdfast was stopped while the agent was working, and the agent with it; "
    "check what the agent has done, then send a message to continue."
)
_INTERRUPTED = (
    "The turn was interrupted while a tool was running. `holdfast calls list --unknown` shows the "
    "call; settle it, or send a message."
)

# The end of a turn whose program did not come back.
INTERRUPTED: Final = Outcome(
    stop_reason=StopReason.INTERRUPTED,
    failure=Failure(
        code=FailureCode.INTERRUPTED,
        message="The program that held the turn is gone; send a message to continue.",
    ),
)


def closing_notice(outcome: Outcome) -> MessageDraft | None:
    """Return the row that marks an abnormal end, so that partial text cannot pass for an answer."""
    code = _CLOSING_CODES.get(outcome.stop_reason)
    if code is None:
        return None
    failure = outcome.failure
    text = f"{failure.code}: {failure.message}" if failure else _STOP_TEXTS[outcome.stop_reason]
    if outcome.reason:
        text = f"{text.removesuffix('.')}: {outcome.reason}"
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))


# Abnormal stop reasons and closing notices share their names; normal ones have no notice.
_CLOSING_CODES: Final = {StopReason(code.value): code for code in CLOSING_NOTICES}
_STOP_TEXTS = {
    StopReason.ABORTED: "The turn was stopped by its user.",
    StopReason.INTERRUPTED: "The turn was interrupted.",
    StopReason.TURN_LIMIT: "The session has reached its limit of turns.",
    StopReason.BUDGET: "The session's budget is used up.",
    StopReason.ERROR: "The turn failed.",
}


def _is_closing(part: Part) -> bool:
    return isinstance(part, Notice) and part.code in CLOSING_NOTICES


def _is_aside(row: Message) -> bool:
    return row.role is Role.SYSTEM and all(
        isinstance(part, Plan) or (isinstance(part, Notice) and part.code not in CLOSING_NOTICES)
        for part in row.parts
    )


def _is_uncertain(call: Call) -> bool:
    return call.state is CallState.STARTED and call.effect is Effect.UNSAFE


def _step_failure(step: OpenStep | None) -> tuple[Draft, ...]:
    if step is None:
        return ()
    failure = Failure(code=FailureCode.INTERRUPTED, message="The model's answer was cut off.")
    return (StepFailed(step=step.started.step, failure=failure),)


def _cost_of_cut_request(step: OpenStep | None) -> tuple[Draft, ...]:
    """Return the ledger entry of a request that was sent and then aborted."""
    if step is None:
        return ()
    started = step.started
    # The message id, because the request has no other id. Its usage is unknown, so that under a
    # budget it is charged its maximum cost.
    return (
        CostDraft(
            request_id=started.message_id, model_id=started.model_id, microcents=started.bound
        ),
    )


def _cost_if_bounded(step: OpenStep | None) -> tuple[Draft, ...]:
    """Return the ledger entry of a request that a crash cut off, if it has a known bound.

    The turn goes on and enters its other requests itself: a request without a bound is left out,
    so that the repeated request has the same number in the session.
    """
    return _cost_of_cut_request(step) if step is not None and step.started.bound else ()


def _text_so_far(step: OpenStep | None) -> tuple[Draft, ...]:
    if step is None or not step.text:
        return ()
    return (
        MessageDraft(
            id=step.started.message_id,
            role=Role.ASSISTANT,
            parts=(Text(text=step.text),),
            model_id=step.started.model_id,
        ),
    )


def _results_of_open_calls(calls: Sequence[Call]) -> Iterator[Draft]:
    """Yield the results of the calls that are open when their turn ends, in call order."""
    for call in filter(is_open, calls):
        if call.state in {CallState.INTENDED, CallState.REQUESTED}:
            yield from _result(call, ResultStatus.SKIPPED, _SKIPPED)
        elif _is_uncertain(call):
            yield from _result(call, ResultStatus.UNKNOWN, _UNKNOWN)
        else:
            yield from _result(call, ResultStatus.ERROR, _ABORTED)


def _uncertain_result(call: Call) -> Iterator[Draft]:
    if call.state is CallState.INTENDED:
        # An external agent announces its calls, but not when they start.
        yield ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments)
    yield from _result(call, ResultStatus.UNKNOWN, _UNKNOWN)


def _result(call: Call, status: ResultStatus, error: ToolError) -> tuple[Draft, ...]:
    result = ToolResult(call_id=call.id, name=call.name, status=status, error=error)
    return (
        ToolEnded(call_id=call.id, name=call.name, status=status, failure=error),
        MessageDraft(role=Role.TOOL_RESULT, parts=(result,)),
    )
