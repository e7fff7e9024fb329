"""Costs: reports from the ledger. Integers, so that sums are exact."""

from collections.abc import Awaitable, Callable, Iterable
from functools import reduce
from itertools import chain

from msgspec.structs import replace

from holdfast.domain.approvals import ApprovalState
from holdfast.domain.costs import CostGroup, CostQuery, CostReport, CostSum
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, ModelId, Owner, SessionId, SessionKey
from holdfast.domain.queries import WorkQuery
from holdfast.domain.sessions import Budget, OnExceed, Session, SessionState, stricter_budget
from holdfast.ports.runtime import TreeCost
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.models import models_beyond_llm


class Costs:
    """The cost ledger of an owner."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def report(self, query: CostQuery) -> CostReport:
        """Return costs by group; a filter that matches nothing yields empty sums."""
        for name in ("since", "until"):
            at = getattr(query, name)
            if at is not None and at.tzinfo is None:
                raise Invalid(
                    Code.INVALID_FILTER, f"{name} must have a time zone.", {"field": name}
                )

        async def read(tx: Tx) -> list[CostSum]:
            sums = await tx.costs.sums(query)
            return [replace(each, name=await _name(tx, query, each.key)) for each in sums]

        groups = await self._store.read(read)
        return CostReport(groups=tuple(groups), total=reduce(_together, groups, CostSum(key="")))

    async def of_sessions(
        self, owner: Owner, sessions: Iterable[SessionId]
    ) -> dict[SessionId, CostSum]:
        """Return the cost of each session; missing sessions are left out."""

        async def read(tx: Tx) -> dict[SessionId, CostSum]:
            found = [await tx.sessions.state(owner, session_id) for session_id in sessions]
            keys = {state.session_id: state.key for state in found if state is not None}
            sums = await tx.costs.totals(keys.values())
            return {
                session_id: replace(sums.get(key, CostSum(key="")), key=session_id)
                for session_id, key in keys.items()
            }

        return await self._store.read(read)


async def _name(tx: Tx, query: CostQuery, key: str) -> str | None:
    """Return the display name of a group; `None` if it has none or was deleted."""
    match query.group_by:
        case CostGroup.MODEL:
            model = await tx.models.by_id(ModelId(key))
            return model.ref if model else await _name_of_program(tx, query, ModelId(key))
        case CostGroup.AGENT:
            agent = await tx.agents.by_id(query.owner, AgentId(key))
            return agent.slug if agent else None
        case CostGroup.SESSION:
            found = await tx.sessions.get(query.owner, SessionId(key))
            return found[0].title if found else None
        case CostGroup.DAY:
            return None


async def _name_of_program(tx: Tx, query: CostQuery, model_id: ModelId) -> str | None:
    """Return the name under which an agent is recorded that chooses its model itself."""
    of_agents = await tx.costs.sums(replace(query, group_by=CostGroup.AGENT))
    found = [await tx.agents.by_id(query.owner, AgentId(each.key)) for each in of_agents]
    models = chain.from_iterable(models_beyond_llm(agent) for agent in found if agent)
    return next((model.ref for model in models if model.id == model_id), None)


def _together(one: CostSum, other: CostSum) -> CostSum:
    return CostSum(
        key=one.key,
        requests=one.requests + other.requests,
        usage=one.usage + other.usage,
        microcents=one.microcents + other.microcents,
        unpriced_requests=one.unpriced_requests + other.unpriced_requests,
        estimated_requests=one.estimated_requests + other.estimated_requests,
    )


async def budget_of(
    tx: Tx, session: Session, key: SessionKey, configured: Budget | None
) -> Budget | None:
    """Return the session's budget, tightened if the configuration has become stricter."""
    if is_simple_budget(session, configured):
        return session.budget or configured
    said = WorkQuery(owner=session.owner, key=key, states=(ApprovalState.ALLOWED,))
    granted = sum(each.question.amount or 0 for each in await tx.approvals.page(said))
    return stricter_budget(session.budget, configured, granted)


def is_simple_budget(session: Session, configured: Budget | None) -> bool:
    """Return whether the budget of a session follows from its own and the configured one alone."""
    return session.budget is None or configured is None or session.budget == configured


def tree_of(
    store: Store, session: Session, key: SessionKey, configured: Budget | None
) -> Callable[[], Awaitable[TreeCost]] | None:
    """Return what reads the costs of a session's tree; `None` if it can be in none."""
    may_start = session.children or any(tool.agents for tool in session.tools)
    if session.parent is None and not may_start:
        return None
    return lambda: store.read(Brief(lambda tx: _tree_cost(tx, key, configured)))


async def _tree_cost(tx: Tx, key: SessionKey, configured: Budget | None) -> TreeCost:
    room: int | None = None
    above = await tx.children.parent(key)
    while above is not None:
        found = await tx.sessions.get_by_key(above)
        if found is None:
            break
        session, state = found
        budget = await budget_of(tx, session, above, configured)
        if budget is not None and budget.microcents and budget.on_exceed is not OnExceed.WARN:
            left = budget.microcents - state.microcents - await tx.children.cost_below(above)
            room = left if room is None else min(room, left)
        above = await tx.children.parent(above)
    return TreeCost(below=await tx.children.cost_below(key), room=room)


async def turns_left(
    tx: Tx, session: Session, state: SessionState, configured: Budget | None
) -> int:
    """Return how many turns may still use a model; 0 if the budget is spent."""
    budget = await budget_of(tx, session, state.key, configured)
    if budget is not None and _is_spent(budget, state.microcents):
        return 0
    return max(session.turn_cap - await tx.costs.engaged(state), 0)


def _is_spent(budget: Budget, microcents: int) -> bool:
    # A budget that only warns stops no turn, and 0 means no budget.
    return budget.on_exceed is not OnExceed.WARN and 0 < budget.microcents <= microcents
