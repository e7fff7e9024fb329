"""A round of tools does not leave the running turn, and a chain of models belongs to every turn."""

from pathlib import Path

import pytest

from holdfast import Session, SessionRequest, Status, open_holdfast
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.events import TurnEnded, TurnStarted
from holdfast.domain.messages import Role
from holdfast.domain.sessions import SessionContext
from holdfast.ports.tools import RequestedCall
from tests.houses import current, news_until, payloads, played, script
from tests.marks import demands
from tests.tooled import a_config, asks, call, open_tooled, own_tool, says

pytestmark = pytest.mark.anyio


@demands("S0-004c")
async def test_a_session_is_running_through_every_round_of_one_turn(home: Path) -> None:
    seen: list[Status] = []
    sessions: list[Session] = []

    async def look(_: RequestedCall) -> str:
        seen.append((await current(house, sessions[0])).status)
        return "seen"

    steps = (asks(call("look", "c1")), asks(call("look", "c2")), says("done"))
    config = a_config(home, *steps, approval=ApprovalMode.AUTO)
    async with open_tooled(config, own_tool("look", look)) as house:
        tools = [{"name": "look", "description": "Looks."}]
        await house.agents.create(house.owner, {"name": "Worker", "tools": tools, "grant": None})
        context = SessionContext(working_dir=str(home.parent))
        request = SessionRequest(context=context, approval=ApprovalMode.AUTO)
        sessions.append(await house.open("worker", request))
        await house.send(sessions[0].id, "go")
        await played(house, sessions[0].id)
        news = payloads(await news_until(house, sessions[0].id, TurnEnded))
        after = await current(house, sessions[0])

    assert seen == [Status.RUNNING, Status.RUNNING]
    assert after.status is Status.IDLE
    assert [type(each) for each in news if isinstance(each, TurnStarted | TurnEnded)] == [
        TurnStarted,
        TurnEnded,
    ]


@demands("S0-100", "S0-002")
async def test_every_turn_of_a_session_asks_its_agents_chain_from_the_beginning(
    home: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    # Requests are counted for the whole session: the fourth is the second turn's.
    first = script(folders[0], {"error": "unavailable", "repeat": 2}, says("no"), says("first"))
    second = script(folders[1], says("no", repeat=2), says("second"), says("no"))
    async with open_holdfast(home) as house:
        fields = {"name": "Steady", "models": [first, second]}
        made = await house.agents.create(house.owner, fields)
        session = await house.open(made.slug)
        await house.send(session.id, "one")
        await played(house, session.id)
        await house.agents.update(house.owner, made.slug, {"models": ["offline:holdfast"]})
        await house.send(session.id, "two")
        rows = await played(house, session.id)
        refs = {model.id: model.ref for model in await house.models.list()}

    assert [
        (row.text, refs[row.model_id] if row.model_id else None)
        for row in rows
        if row.role is Role.ASSISTANT
    ] == [("second", second), ("first", first)]
