"""Events as they come: what a page hears while a turn is played."""

from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from tests.houses import open_house
from tests.http.sse_reader import listening
from tests.http.v1.client import visiting
from tests.marks import demands
from tests.stand_ins import Gate, GatedRuntime, an_answer, asked, streamed
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio


@demands("S2-070", "S2-080", "S2-080b", "S2-080c")
async def test_a_page_that_listens_hears_a_question_being_answered(
    home: Path, outside: Environment
) -> None:
    config = a_config(home, says("4"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent()
        session = await visitor.session(agent["id"])
        path = f"/v1/agents/{agent['id']}/sessions/{session['id']}/events"
        async with listening(visitor.app, path, visitor.secret) as reader:
            await reader.until("session.opened")
            await visitor.say(session, "How much 2+2")
            frames = await reader.until("session.completed")
        rows = await visitor.messages(session)

    assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [frame.event for frame in frames] == [
        "message.created",
        "session.started",
        "step.started",
        "step.generating",
        "step.generated",
        "message.created",
        "session.completed",
    ]
    assert [row["content"] for row in rows] == [{"text": "How much 2+2"}, {"text": "4"}]
    assert frames[5].data["data"]["message_id"] == rows[1]["id"]


@demands("S2-061b", "S2-080c")
async def test_a_page_hears_the_pieces_of_an_answer_while_it_is_generated(
    home: Path, outside: Environment
) -> None:
    first, second = Gate(), Gate()
    pieces = [(asked(), streamed("Half")), first, (streamed(" and half", offset=4),), second]
    runtime = GatedRuntime([*pieces, an_answer("Half and half")])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        async with listening(visitor.app, f"{path}/events", visitor.secret) as reader:
            await visitor.say(session, "Tell me all.")
            begun = (await reader.until("step.generating"))[-1]
            status = (await visitor.get(path)).document["status"]
            first.open()
            more = (await reader.until("step.generating"))[-1]
            rows = await visitor.messages(session)
            second.open()
            rest = await reader.until("session.completed")

    assert [each.data["data"]["delta"] for each in (begun, more)] == ["Half", " and half"]
    assert (status, [row["role"] for row in rows]) == ("running", ["user"])
    assert "step.generating" not in [frame.event for frame in rest]
