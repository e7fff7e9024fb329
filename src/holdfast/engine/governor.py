"""The governor: no request leaves before the budget has agreed to what it would cost."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from holdfast.domain.approvals import Question, digest_of
from holdfast.domain.drafts import Draft, MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.models import Model
from holdfast.domain.sessions import OnExceed, StopReason
from holdfast.domain.tools import ToolClass
from holdfast.engine.budgets import Estimate, Need, estimate, is_capped
from holdfast.engine.play import Play
from holdfast.engine.questions import Permission, permit
from holdfast.services.policy import Ruling


async def afford(
    play: Play, need: Need, new_id: Callable[[], str]
) -> AsyncGenerator[Sequence[Draft], None]:
    """Yield what a budget has to say before a request; an `Outcome` says no."""
    budget = play.turn.budget
    if budget is None or not is_capped(play):
        return
    found = estimate(play, need)
    if found.projected is None:
        for said in _unpriced(play, need.model):
            yield said
    elif found.projected > play.cap:
        if budget.on_exceed is OnExceed.WARN:
            for said in _warned(play, found):
                yield said
        elif budget.on_exceed is OnExceed.FAIL:
            yield (_spent(play, found),)
        else:
            async with aclosing(_asked(play, found, new_id)) as batches:
                async for drafts in batches:
                    yield drafts


def _unpriced(play: Play, model: Model) -> list[tuple[Draft, ...]]:
    if not play.turn.limits.allow_unpriced:
        told = f"{model.ref} has no known price, and the configuration does not allow that."
        return [(_over(told),)]
    said = f"{model.ref} has no known price: this session's budget cannot count it."
    if _is_said(play, NoticeCode.UNPRICED_MODEL, ""):
        return []
    return [(_notice(NoticeCode.UNPRICED_MODEL, said),)]


def _warned(play: Play, found: Estimate) -> list[tuple[Draft, ...]]:
    # Once for each budget that is crossed: what a session has cost never becomes less.
    if _is_said(play, NoticeCode.BUDGET_WARNING, _named(play)):
        return []
    return [(_notice(NoticeCode.BUDGET_WARNING, _told(play, found)),)]


def _is_said(play: Play, code: NoticeCode, ending: str) -> bool:
    return any(
        isinstance(part, Notice) and part.code is code and part.text.endswith(ending)
        for row in play.rows
        for part in row.parts
    )


async def _asked(
    play: Play, found: Estimate, new_id: Callable[[], str]
) -> AsyncGenerator[Sequence[Draft], None]:
    """Ask for money; a yes raises the cap by what the question says."""
    once = play.turn.budget.microcents if play.turn.budget else 0
    missing = (found.projected or 0) - play.cap
    # Whole caps, and enough of them: a yes must cover the request that it was asked about.
    amount = once * max(1, -(-missing // once))
    arguments = {"turn": play.turn.turn, "cap": play.cap, "amount": amount}
    question = Question(
        id=ApprovalId(new_id()),
        tool="budget",
        tool_class=ToolClass.MONEY,
        arguments=arguments,
        question=f"{_told(play, found)} Add {_usd(amount)} and go on?",
        # Not over what it would cost: after a restart the same question has to be found again.
        digest=digest_of("budget", arguments, "", ()),
        amount=amount,
    )
    async with aclosing(permit(play.turn.approver, question)) as steps:
        async for step in steps:
            if not isinstance(step, Permission):
                yield step
            elif step.how is Ruling.RUN:
                play.cap += amount
            else:
                yield (_spent(play, found),)


def _spent(play: Play, found: Estimate) -> Outcome:
    return _over(f"{_told(play, found)} Raise the session's budget to go on.")


def _over(message: str) -> Outcome:
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=message)
    return Outcome(stop_reason=StopReason.BUDGET, failure=failure)


def _told(play: Play, found: Estimate) -> str:
    return (
        f"The session has cost {_usd(found.spent)}; with the next request it could be "
        f"{_usd(found.projected or 0)}, {_named(play)}"
    )


def _named(play: Play) -> str:
    return f"and its budget is {_usd(play.cap)}."


def _usd(microcents: int) -> str:
    return f"${microcents / 100_000_000:.4f}"


def _notice(code: NoticeCode, text: str) -> MessageDraft:
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))
