"""Questions and answers as news: what is told of one when it is written down."""

from holdfast.domain.approvals import Approval, Question
from holdfast.domain.events import ApprovalAnswered, ApprovalRequested


def asked(question: Question) -> ApprovalRequested:
    """Return the news that a question waits for its answer."""
    return ApprovalRequested(
        approval_id=question.id,
        call_id=question.call_id,
        tool=question.tool,
        tool_class=question.tool_class,
        question=question.question,
        preview=question.preview,
        is_for_session=question.memory is not None,
    )


def answered(approval: Approval) -> ApprovalAnswered:
    """Return the news that a question has its answer."""
    return ApprovalAnswered(
        approval_id=approval.id,
        call_id=approval.question.call_id,
        decision=approval.state,
        scope=approval.scope,
        by=approval.answered_by or "",
    )
