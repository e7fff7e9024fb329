"""How an answer ends the turn: a total rule over everything a step can come to."""

from msgspec import Struct

from holdfast.domain.drafts import Outcome
from holdfast.domain.events import Failure
from holdfast.domain.sessions import StopReason
from holdfast.engine.failures import EMPTY_TOOL_USE, FILTERED, NO_TOOLS, failure_of, internal
from holdfast.engine.step import Answer
from holdfast.ports import Failed, FailureKind, StepStop


class Verdict(Struct, frozen=True, kw_only=True):
    """How the turn ends, and why its step failed, if it did."""

    outcome: Outcome
    failure: Failure | None = None


def verdict(answer: Answer, *, correlation_id: str | None) -> Verdict:
    """Judge an answer; the id is that of the log's entry when nobody classified the failure."""
    end = answer.end
    if isinstance(end, Failed):
        return _failed(end, answer, correlation_id)
    # Before the calls: one that was cut off must not be taken for one that was asked.
    if end.reason is StepStop.LENGTH:
        return Verdict(outcome=Outcome(stop_reason=StopReason.LENGTH))
    if end.reason is StepStop.FILTERED:
        return Verdict(outcome=_refusal(answer))
    if answer.calls:
        return Verdict(outcome=Outcome(stop_reason=StopReason.ERROR, failure=NO_TOOLS))
    if end.reason is StepStop.TOOL_USE and not answer.text:
        return _broken(EMPTY_TOOL_USE)
    return Verdict(outcome=Outcome(stop_reason=StopReason.STOP))


def _failed(end: Failed, answer: Answer, correlation_id: str | None) -> Verdict:
    if end.kind is FailureKind.UNKNOWN:
        return _broken(internal(correlation_id))
    failure = failure_of(end)
    if end.kind is FailureKind.FILTERED:
        return Verdict(outcome=_refusal(answer), failure=failure)
    if end.kind is FailureKind.CANCELLED:
        return Verdict(outcome=Outcome(stop_reason=StopReason.ABORTED), failure=failure)
    return _broken(failure)


def _broken(failure: Failure) -> Verdict:
    outcome = Outcome(stop_reason=StopReason.ERROR, failure=failure)
    return Verdict(outcome=outcome, failure=failure)


def _refusal(answer: Answer) -> Outcome:
    failure = None if answer.text else FILTERED
    return Outcome(stop_reason=StopReason.REFUSAL, failure=failure)
