"""Tool approval: the question is stored before it is asked, the answer before it takes effect."""

from msgspec import Struct

from holdfast.domain.approvals import (
    EARLIER,
    Approval,
    ApprovalState,
    Question,
    Ruling,
    decide_approval,
)
from holdfast.engine.turn_state import TurnState


class Permission(Struct, frozen=True, kw_only=True):
    """Result of a question: `RUN` or the reason for refusal, with the approver's note."""

    how: Ruling
    note: str | None = None


async def permit(
    state: TurnState, question: Question, *, tightened: str | None = None
) -> Permission:
    """Ask the question if it has to be asked, and return the `Permission`."""
    approver = state.turn.approver
    standing = await approver.standing(question)
    how = decide_approval(question, standing, tightened)
    if how is Ruling.ASK:
        await state.emit((question,))
        return _permission(await approver.decision(question))
    earlier = standing.earlier
    if how is Ruling.WAIT and earlier is not None:
        # Asked before a crash: wait for the same question instead of asking again.
        return _permission(await approver.decision(earlier.question))
    if how is Ruling.UNATTENDED and earlier is not None:
        # Race: an answer may have arrived before the withdrawal; then the answer counts.
        closed = await approver.withdraw(earlier.question)
        is_ours = closed.state is ApprovalState.EXPIRED
        return Permission(how=how) if is_ours else _permission(closed)
    # A note belongs to its answer; it is dropped when another rule decides.
    is_answer = earlier is not None and EARLIER[earlier.state] is how
    return Permission(how=how, note=earlier.note if earlier and is_answer else None)


def _permission(approval: Approval) -> Permission:
    return Permission(how=EARLIER[approval.state], note=approval.note)
