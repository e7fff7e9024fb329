"""Approvals: durable questions, answered once, from any process of the machine."""

from holdfast.domain.approvals import Approval, ApprovalMode, Question
from holdfast.domain.errors import Code, Internal
from holdfast.ports import Standing


class Nobody:
    """An approver where nobody can be asked."""

    async def standing(self, question: Question) -> Standing:
        """Return that nobody is there."""
        return Standing(mode=ApprovalMode.ASK, is_attended=False)

    async def decision(self, question: Question) -> Approval:
        """Refuse: nothing was asked."""
        raise Internal(Code.INTERNAL, f"Nobody was asked {question.id}.")
