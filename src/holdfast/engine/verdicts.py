"""How an answer ends the turn: a total rule over everything a step can come to."""

from holdfast.domain.drafts import Outcome
from holdfast.domain.sessions import StopReason
from holdfast.engine.chain import Heard
from holdfast.engine.failures import CUT_BY_BUDGET, FILTERED
from holdfast.engine.step import Answer
from holdfast.ports import Failed, FailureKind, StepStop


def verdict(heard: Heard) -> Outcome | None:
    """Return how the turn ends with what was heard; nothing when tools have to be run first."""
    end = heard.answer.end
    if isinstance(end, Failed):
        return _failed(heard, end)
    # Before the calls: one that was cut off must not be taken for one that was asked.
    if end.reason is StepStop.LENGTH:
        if heard.is_cut_by_budget:
            return Outcome(stop_reason=StopReason.BUDGET, failure=CUT_BY_BUDGET)
        return Outcome(stop_reason=StopReason.LENGTH)
    if end.reason is StepStop.FILTERED:
        return _refusal(heard.answer)
    return None if heard.answer.calls else Outcome(stop_reason=StopReason.STOP)


def _failed(heard: Heard, end: Failed) -> Outcome:
    if end.kind is FailureKind.FILTERED:
        return _refusal(heard.answer)
    if end.kind is FailureKind.CANCELLED:
        return Outcome(stop_reason=StopReason.ABORTED)
    return Outcome(stop_reason=StopReason.ERROR, failure=heard.failure)


def _refusal(answer: Answer) -> Outcome:
    return Outcome(stop_reason=StopReason.REFUSAL, failure=None if answer.text else FILTERED)
