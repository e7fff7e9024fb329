"""S27: who may only read changes nothing, through no route at all."""

import asyncio
from pathlib import Path

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.routing import Route
from tests.http.v1.client import Visitor
from tests.marks import proves
from tests.torture.conftest import Tell
from tests.torture.doors import NOWHERE, Doors, Header, doors

pytestmark = pytest.mark.slow

READS = ("/v1/agents?status=all", "/v1/sessions", "/v1/models", "/v1/approvals", "/v1/calls")
FORBIDDEN = (403, "forbidden")


@proves("S27")
def test_a_reader_changes_nothing(tmp_path: Path, tell: Tell) -> None:
    heard, before, after = asyncio.run(tried(tmp_path, Scope.READ))

    tell(f"{len(heard)} routes that change something, all refused to who may only read")
    assert {name: told for name, told in heard.items() if told != FORBIDDEN} == {}
    assert before == after


@proves("S27")
def test_a_writer_adds_no_models_and_no_repositories(tmp_path: Path) -> None:
    heard, _, _ = asyncio.run(tried(tmp_path, Scope.WRITE))

    refused = {name for name, told in heard.items() if told == FORBIDDEN}
    assert refused == {"models.add", "api.repos.add", "api.repos.remove"}


@proves("S27")
def test_what_a_writer_changes_would_be_seen(tmp_path: Path) -> None:
    heard, before, after = asyncio.run(tried(tmp_path, Scope.ADMIN))

    assert FORBIDDEN not in heard.values()
    assert before != after


Told = tuple[int, str]


async def tried(folder: Path, scope: Scope) -> tuple[dict[str, Told], list[bytes], list[bytes]]:
    """Try every change on something that is there; return what was said, and the state around."""
    async with doors(folder / "home") as house:
        session = await house.visitor.session()
        message = await house.visitor.say(session, "hello")
        places = {
            **NOWHERE,
            "agent_id": session["agent_id"],
            "session_id": session["id"],
            "id": session["id"],
            "message_id": message["id"],
        }
        somebody = await house.visitor.as_("local", scope)
        who = ("authorization", f"Bearer {somebody.secret}")
        before = await state(house.visitor)
        # What is done through `mcp` its tools say, each with a right of its own: `tests/mcp`.
        routes = [each for each in house.routes if each.changes and each.name != "mcp"]
        changing = sorted(routes, key=_deletions_last)
        heard = {route.name: await told(house, route, places, who) for route in changing}
        return heard, before, await state(house.visitor)


def _deletions_last(route: Route) -> tuple[bool, str]:
    return (route.method == "DELETE", route.name)


async def told(house: Doors, route: Route, places: dict[str, str], who: Header) -> Told:
    """Return the status of an answer, and the code of a refusal."""
    answer = await house.knock(route, who, at=places)
    refused = answer.document["error"] if answer.status >= 400 else ""
    return answer.status, refused


async def state(visitor: Visitor) -> list[bytes]:
    """Return what can be read."""
    return [(await visitor.get(path)).body for path in READS]
