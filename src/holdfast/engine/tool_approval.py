"""Tool approval: the question is stored before it is asked, the answer before it takes effect."""

from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from holdfast.domain.approvals import Approval, ApprovalState, Question
from holdfast.domain.drafts import Draft
from holdfast.ports.runtime import Approver
from holdfast.services.approvals import EARLIER, Ruling, ruling


class Permission(Struct, frozen=True, kw_only=True):
    """Result of a question: `RUN` or the reason for refusal, with the approver's note."""

    how: Ruling
    note: str | None = None


async def permit(
    approver: Approver, question: Question, *, tightened: str | None = None
) -> AsyncGenerator[Sequence[Draft] | Permission, None]:
    """Yield the question if it has to be asked, then the `Permission`."""
    standing = await approver.standing(question)
    how = ruling(question, standing, tightened)
    if how is Ruling.ASK:
        yield (question,)
        yield _answered(await approver.decision(question))
    elif how is Ruling.WAIT and standing.earlier is not None:
        # Asked before a crash: wait for the same question instead of asking again.
        yield _answered(await approver.decision(standing.earlier.question))
    elif how is Ruling.UNATTENDED and standing.earlier is not None:
        # Race: an answer may have arrived before the withdrawal; then the answer counts.
        closed = await approver.withdraw(standing.earlier.question)
        is_ours = closed.state is ApprovalState.EXPIRED
        yield Permission(how=how) if is_ours else _answered(closed)
    else:
        earlier = standing.earlier
        # A note belongs to its answer; it is dropped when another rule decides.
        is_answer = earlier is not None and EARLIER[earlier.state] is how
        yield Permission(how=how, note=earlier.note if earlier and is_answer else None)


def _answered(approval: Approval) -> Permission:
    return Permission(how=EARLIER[approval.state], note=approval.note)
