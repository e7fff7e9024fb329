"""Budgets: what a session may cost, and how many turns that and its cap leave it."""

from holdfast.domain.approvals import ApprovalState
from holdfast.domain.ids import SessionKey
from holdfast.domain.queries import WorkQuery
from holdfast.domain.sessions import Budget, Head, OnExceed, Session, tightened
from holdfast.ports import Tx


async def budget_of(
    tx: Tx, session: Session, key: SessionKey, configured: Budget | None
) -> Budget | None:
    """Return the session's budget, made stricter by a configuration that became so."""
    if session.budget is None or configured is None or session.budget == configured:
        return session.budget or configured
    said = WorkQuery(owner=session.owner, key=key, states=(ApprovalState.ALLOWED,))
    granted = sum(each.question.amount or 0 for each in await tx.approvals.page(said))
    return tightened(session.budget, configured, granted)


async def turns_left(tx: Tx, session: Session, head: Head, configured: Budget | None) -> int:
    """Return how many more turns may ask a model; none where the budget is spent already."""
    budget = await budget_of(tx, session, head.key, configured)
    if budget is not None and _is_spent(budget, head.microcents):
        return 0
    return max(session.turn_cap - await tx.costs.engaged(head), 0)


def _is_spent(budget: Budget, microcents: int) -> bool:
    # One that only warns stops nobody, and nought is no budget.
    return budget.on_exceed is not OnExceed.WARN and 0 < budget.microcents <= microcents
