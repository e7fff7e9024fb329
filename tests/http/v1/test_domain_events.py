"""What a far command line needs of `/v1` beyond its own words: the house's values, whole."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.json import Decoder

from holdfast import Event, open_holdfast
from holdfast.app import Environment
from holdfast.domain.ids import SessionId
from holdfast.domain.tools import CATALOGUE
from tests.http.sse_reader import listening
from tests.http.v1.client import Visitor, a_repository, refusal, visiting
from tests.stand_ins import SettableClock
from tests.tooled import a_config

pytestmark = pytest.mark.anyio

EVENTS = Decoder(Event)


async def test_events_are_told_as_they_are_stored(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "What is 2+3?")
    path = f"/v1/sessions/{session['id']}/events?words=house"
    stored = await visitor.house.events.list(visitor.house.owner, SessionId(session["id"]))

    page = (await visitor.get(f"{path}&format=json")).document
    async with listening(visitor.app, f"{path}&until=settled", visitor.secret) as reader:
        frames = await reader.ended()

    told = [frame for frame in frames if frame.id is not None]
    assert [EVENTS.decode(json.dumps(each)) for each in page["data"]] == list(stored.items)
    assert (page["gaps"], page["next_cursor"]) == ([], None)
    assert [EVENTS.decode(json.dumps(frame.data)) for frame in told] == list(stored.items)
    assert [frame.event for frame in told] == [each["payload"]["type"] for each in page["data"]]


async def test_messages_are_shown_with_all_their_parts_where_that_is_wanted(
    visitor: Visitor,
) -> None:
    session = await visitor.session()
    await visitor.told(session, "What is 2+3?")
    plain = await visitor.messages(session)
    whole = await visitor.messages(session, "?parts=all")
    path = f"/v1/sessions/{session['id']}/messages/{whole[0]['id']}"

    assert [each for each in plain if "parts" in each] == []
    assert whole[0]["parts"] == [{"type": "text", "text": "What is 2+3?"}]
    assert [{**each, "parts": 0} for each in plain] == [{**each, "parts": 0} for each in whole]
    assert (await visitor.get(f"{path}?parts=all")).document == whole[0]
    assert (await visitor.get(path)).document == plain[0]


async def test_a_session_that_is_deleted_meanwhile_is_left_out_of_those_that_begin_so(
    visitor: Visitor,
) -> None:
    opened = [await visitor.session() for _ in range(10)]
    path = f"/v1/sessions?begins={opened[0]['id'][:8]}&limit=10"

    *_, lists = await asyncio.gather(
        *(visitor.delete(f"/v1/sessions/{each['id']}") for each in opened),
        asyncio.gather(*(visitor.get(path) for _ in range(30))),
    )

    assert {answer.status for answer in lists} == {200}
    assert (await visitor.get(path)).document["data"] == []


async def test_sessions_are_found_by_their_state_order_and_beginning(
    visitor: Visitor, clock: SettableClock
) -> None:
    first, second = await visitor.session(), await visitor.session()
    clock.advance(seconds=1)
    await visitor.told(first, "Hello")

    async def ids(query: str) -> list[str]:
        found = (await visitor.get(f"/v1/sessions?{query}")).document["data"]
        return [each["id"] for each in found]

    assert await ids("state=pending") == [second["id"]]
    assert sorted(await ids("state=idle,pending")) == sorted([first["id"], second["id"]])
    assert await ids("order=updated_at") == [first["id"], second["id"]]
    assert await ids(f"begins={first['id'][:23].upper()}") == [first["id"]]
    assert await ids("begins=ffffffff") == []
    for query in ("state=asleep", "order=title", "begins=abc", "begins=%25%25%25%25%25%25%25%25"):
        assert refusal(await visitor.get(f"/v1/sessions?{query}")) == (400, "invalid_query")


async def test_the_agent_of_the_house_is_there_when_it_is_asked_for(visitor: Visitor) -> None:
    session = await visitor.session("holdfast", tools=["read_file"])
    unknown = await visitor.post("/v1/agents/holdfast/sessions", {"tools": ["fly"]})

    assert session["agent"]["slug"] == "holdfast"
    assert refusal(unknown) == (400, "unknown_tool")


async def test_a_turn_that_is_not_meant_is_not_stopped(quiet_visitor: Visitor) -> None:
    session = await quiet_visitor.session()
    path = f"/v1/sessions/{session['id']}/interrupt"

    done = (await quiet_visitor.post(path, {"turn": 7})).document

    assert (done["interrupted"], done["turn"]) == (False, None)


async def test_a_session_is_checked_and_summed_up(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "Hello")
    path = f"/v1/sessions/{session['id']}"

    checked = (await visitor.get(f"{path}/verify")).document
    summed = (await visitor.post(f"{path}/compact")).document

    proof = await visitor.house.sessions.verify(visitor.house.owner, SessionId(session["id"]))
    assert checked == {
        "session_id": session["id"],
        "messages": 2,
        "head": proof.head,
        "faults": [],
    }
    assert summed["compacted"] is False
    assert summed["session"] == (await visitor.get(path)).document


async def test_what_holds_by_default_is_told(visitor: Visitor) -> None:
    assert (await visitor.get("/v1/defaults")).document == {
        "model": "offline:holdfast",
        "approval": "ask",
        "tools": sorted(CATALOGUE),
        "attended_turn_cap": 1_000,
    }


async def test_a_session_moves_only_to_a_repository(
    home: Path, outside: Environment, tmp_path: Path
) -> None:
    desk = a_repository(tmp_path / "desk")
    config = a_config(home, workspace_root=tmp_path)
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}/resume"
        await visitor.post("/api/repos", {"path": str(desk)})
        moved = await visitor.post(path, {"context": {"working_dir": str(desk)}})
        refused = await visitor.post(path, {"context": {"working_dir": str(tmp_path.parent)}})

    assert moved.document["context"]["working_dir"] == str(desk)
    assert refusal(refused) == (403, "repo_outside_root")
