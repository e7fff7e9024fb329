"""Costs: what was spent, in whole micro-cents."""

from typing import Final

from holdfast.domain.costs import CostQuery
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, Route
from holdfast.wire.costs import CostList, CostsQuery, costs_form
from holdfast.wire.errors import query_judged


async def list_costs(asked: Asked[CostsQuery, None]) -> Answer:
    """Add up what was spent."""
    query = asked.query
    wanted = CostQuery(
        owner=asked.owner,
        group_by=query.group_by,
        session_id=SessionId(query.session_id.lower()) if query.session_id else None,
        agent_id=AgentId(query.agent_id.lower()) if query.agent_id else None,
        since=query.since,
        until=query.until,
    )
    with query_judged():
        report = await asked.house.costs.report(wanted)
    return Answer(content=costs_form(report))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/costs",
        name="costs",
        summary="Add up what was spent by model, agent, session or day (of UTC).",
        act=list_costs,
        needs=Scope.READ,
        query=CostsQuery,
        gives={200: CostList},
    ),
)
