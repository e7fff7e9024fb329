"""The paths of a session: under its agent, and by itself."""

from dataclasses import replace
from typing import Any, Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import AgentId, SessionId, is_uuid
from holdfast.http.table import Asked, Route
from holdfast.services.journal import session_not_found

OF_AGENT: Final = "/v1/agents/{agent_id}/sessions/{session_id}"
BY_ITSELF: Final = "/v1/sessions/{session_id}"


def of_session(route: Route) -> tuple[Route, Route]:
    """Return the route below both paths of a session; its own path is the rest of them."""
    missing = {Code.AGENT_NOT_FOUND} - {*route.refuses}
    return (
        replace(
            route,
            path=OF_AGENT + route.path,
            name=f"agents.{route.name}",
            refuses=(*route.refuses, *missing),
        ),
        replace(route, path=BY_ITSELF + route.path),
    )


async def session_of(asked: Asked[Any, Any]) -> SessionId:
    """Return the session of the path; under another agent than its own it is not there."""
    session_id = asked.path["session_id"]
    if not is_uuid(session_id):
        raise session_not_found()
    found = SessionId(session_id)
    if "agent_id" in asked.path:
        session = await asked.house.sessions.get(asked.owner, found)
        agent = await asked.house.agents.get(asked.owner, asked.path["agent_id"])
        if session.agent_id != AgentId(agent.id):
            raise session_not_found()
    return found
