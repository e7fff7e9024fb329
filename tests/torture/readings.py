"""Everything that can be read out of a house: over MCP, and through the verbs beside it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast, HoldfastError, SessionId
from holdfast.app import Environment
from holdfast.domain.costs import CostQuery
from holdfast.domain.errors import Code
from holdfast.domain.ids import Owner
from holdfast.domain.queries import AgentQuery, SessionQuery
from tests.http.v1.test_approvals import asking
from tests.mcp.clients import Line
from tests.mcp.payloads import COMPLETE, UNIT
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine


@dataclass(frozen=True)
class Things:
    """What is in a house, by the names that reading needs."""

    session_id: str
    agent_id: str
    observed: str = "abc123"
    entity_id: str = "FU-061"


@asynccontextmanager
async def furnished(home: Path) -> AsyncIterator[tuple[Holdfast, Things]]:
    """Put one of everything into a house, and give the house while it is open."""
    clock = SettableClock()
    outside = Environment(clock=clock, randomness=SeededRandomness(), machine=StandInMachine())
    async with asking(home, outside) as (visitor, session, _, _):
        house = visitor.house
        owner = Owner("local")
        await visitor.say(session, "A lighthouse, for the search")
        await visitor.patch(f"/v1/sessions/{session['id']}", {"title": "T", "tags": ["a", "b"]})
        await visitor.post(f"/v1/zones/{session['agent_id']}/output", {"line": "desk"})
        await visitor.post(f"/v1/zones/{session['agent_id']}/archive")
        key = SessionId(session["id"])
        await house.media.keep(owner, key, b"picture", mime_type="image/png")
        await house.sessions.fork(owner, key)
        await house.observations.submit(owner, COMPLETE, idempotency_key="k", source="s")
        await house.observations.submit(owner, COMPLETE | {"duration": 7200})
        await house.observations.submit_entity(owner, "feature_unit", UNIT)
        yield house, Things(session["id"], session["agent_id"])


def mcp_readings(things: Things) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return every request over MCP that reads, by a name of its own."""
    session, observed = things.session_id, things.observed
    tools = {
        "get_session": {"session_id": session, "include_raw": True},
        "list_unknown_calls": {},
        "query_agent_history": {},
        "query_agent_history one": {"session_id": observed},
        "query_agent_history then": {"session_id": observed, "at": "2030-01-01"},
        "query_agent_history hosted": {"session_id": session},
        "query_entity_timeline": {"entity_id": observed},
        "query_entity_timeline related": {"entity_id": things.entity_id},
        "restore_checkpoint": {"session_id": observed, "name": "spec_complete"},
        "list_observations": {"session_id": observed},
        "query_entities": {"entity_type": "feature_unit", "filters": {"status": "planning"}},
        "search_sessions": {"query": "lighthouse"},
        "search_sessions observed": {"query": "spec"},
    }
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        name: ("tools/call", {"name": name.split()[0], "arguments": arguments})
        for name, arguments in tools.items()
    }
    base = f"holdfast://sessions/{session}"
    for uri in (base, f"{base}/transcript", f"holdfast://history/{observed}"):
        asked[f"read {uri[11:18]}{uri[-5:]}"] = ("resources/read", {"uri": uri})
    asked["list resources"] = ("resources/list", {})
    asked["continue"] = ("prompts/get", {"name": "continue_session"})
    return asked


Verb = Callable[[], Awaitable[object]]


def verb_readings(house: Holdfast, things: Things) -> dict[str, Verb]:
    """Return every verb that reads what MCP does not show."""
    owner, session = house.owner, SessionId(things.session_id)
    return {
        "agents": lambda: house.agents.list(AgentQuery(owner=owner, status=None)),
        "approvals": lambda: house.approvals.list(owner),
        "calls": lambda: house.calls.list(owner),
        "costs": lambda: house.costs.report(CostQuery(owner=owner)),
        "events": lambda: house.events.list(owner, session),
        "messages": lambda: house.messages.list(owner, session),
        "models": house.models.catalogue,
        "overviews": lambda: house.session_views.list(SessionQuery(owner=owner)),
        "tokens": lambda: house.tokens.list(owner),
        "verify": lambda: house.sessions.verify(owner, session),
        "zones": lambda: house.zones.list_archives(owner, things.agent_id),
        "desk": lambda: house.zones.show(owner, things.agent_id),
    }


async def faults_of_reading(house: Holdfast, line: Line, things: Things) -> list[str]:
    """Read everything; return what was neither data nor a refusal with a name."""
    faults = []
    for name, (method, params) in mcp_readings(things).items():
        frame = await line.call(method, **params)
        told = _refusal(frame)
        if told in {"", Code.INTERNAL}:
            faults.append(f"mcp {name}: {told or frame}")
    for name, verb in verb_readings(house, things).items():
        try:
            await verb()
        except HoldfastError as error:
            faults += [f"{name}: {error}"] if error.code is Code.INTERNAL else []
        # Whatever else it is, it has no name that a caller knows.
        except Exception as error:  # noqa: BLE001
            faults.append(f"{name}: {error!r}"[:300])
    return faults


def _refusal(frame: dict[str, Any]) -> str | None:
    """Return the code of a refusal; nothing for an answer, and an empty word for what has none."""
    if "error" in frame:
        return str((frame["error"].get("data") or {}).get("error", ""))
    if frame["result"].get("isError"):
        return str(frame["result"]["structuredContent"].get("error", ""))
    return None
