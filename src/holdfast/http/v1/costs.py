"""Routes of costs, in whole micro-cents."""

from typing import Final

from holdfast.domain.costs import CostQuery
from holdfast.domain.ids import AgentId, SessionId
from holdfast.http.responses import Response
from holdfast.http.routing import RouteRequest, Routes
from holdfast.wire.costs import CostList, CostsQuery, costs_form
from holdfast.wire.errors import as_query_errors

routes: Final = Routes()


@routes.get("/v1/costs", "costs", CostList)
async def list_costs(request: RouteRequest[CostsQuery, None]) -> Response:
    """Return the costs by model, agent, session or day (UTC)."""
    query = request.query
    wanted = CostQuery(
        owner=request.owner,
        group_by=query.group_by,
        session_id=SessionId(query.session_id.lower()) if query.session_id else None,
        agent_id=AgentId(query.agent_id.lower()) if query.agent_id else None,
        since=query.since,
        until=query.until,
    )
    with as_query_errors():
        report = await request.holdfast.costs.report(wanted)
    return Response(content=costs_form(report))
