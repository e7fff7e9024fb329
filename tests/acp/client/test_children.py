"""A program that speaks ACP as the child of a session, within its limit of sessions."""

from pathlib import Path

import msgspec
import pytest

from holdfast import Session, SessionRequest
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.queries import SessionQuery
from tests.acp.harness import Aboard, aboard
from tests.acp.steps import prompt
from tests.tooled import asks, call, outcomes, says

pytestmark = pytest.mark.anyio


async def a_lead(ship: Aboard, folder: Path, *calls: str) -> Session:
    """Open a session whose agent starts the program as often as there are calls."""
    steps = [asks(call("invoke_agent", each, agent="peer", task="Go")) for each in calls]
    file = folder / "lead.json"
    file.write_bytes(msgspec.json.encode([*steps, says("done")]))
    tools = [{"name": "invoke_agent", "agents": ["peer"]}]
    fields = {"name": "lead", "slug": "lead", "tools": tools, "models": [f"scripted:{file}"]}
    await ship.house.agents.create(ship.house.owner, fields)
    return await ship.house.open("lead", SessionRequest(repo_id=ship.repo.id))


async def test_a_program_answers_the_call_of_its_parent(tmp_path: Path) -> None:
    async with aboard(tmp_path, on=prompt({"text": "It is 17."})) as ship:
        session = await a_lead(ship, tmp_path, "c1")
        rows = await ship.tell(session)
        query = SessionQuery(owner=ship.house.owner, parent=session.id)
        (child,) = (await ship.house.sessions.list(query)).items

    assert outcomes(rows) == ["invoke_agent ok"]
    assert (child.repo_id, child.context.working_dir) == (ship.repo.id, str(ship.tree))
    assert "It is 17." in str(rows)


async def test_a_program_without_a_slot_cannot_be_started(tmp_path: Path) -> None:
    script = prompt({"text": "It is 17."})
    async with aboard(tmp_path, on=script, config_max_concurrent_sessions=1) as ship:
        session = await a_lead(ship, tmp_path, "c1", "c2")
        rows = await ship.tell(session)

    assert outcomes(rows) == ["invoke_agent ok", "invoke_agent error/unavailable"]


async def test_a_program_answers_what_a_session_has_spawned(tmp_path: Path) -> None:
    script = prompt({"text": "It is 17."})
    async with aboard(tmp_path, on=script, config_max_concurrent_sessions=1) as ship:
        session = await a_lead(ship, tmp_path)
        child = await ship.house.spawn(session.id, "peer", "Go")
        answer = await child.answer()
        with pytest.raises(HoldfastError) as refused:
            await ship.house.spawn(session.id, "peer", "And again")

    assert (answer.text, answer.session_id) == ("It is 17.", child.session_id)
    assert refused.value.code is Code.SESSION_LIMIT
