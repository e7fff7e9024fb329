"""Calls over HTTP: what nobody knows the outcome of is listed, and put right by somebody."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.events import TurnEnded
from holdfast.domain.ids import SessionId
from tests.houses import news_until
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import each_case
from tests.services.test_calls import left_in_doubt
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.tooled import Recorder, open_tooled, own_tool, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def survivor(machine: StandInMachine, clock: SettableClock) -> Environment:
    """Be another process, which can prove that the first one is dead."""
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    return Environment(clock=clock, randomness=SeededRandomness(1), machine=other)


Doubt = tuple[Visitor, SessionId, Recorder]


@pytest.fixture
async def doubt(home: Path, outside: Environment, survivor: Environment) -> AsyncIterator[Doubt]:
    """Come after a crash in which a call was cut off: who visits, the session, the tool."""
    async with _doubt(home, outside, survivor) as found:
        yield found


@asynccontextmanager
async def _doubt(home: Path, outside: Environment, survivor: Environment) -> AsyncIterator[Doubt]:
    steps = [says("never asked again"), says("I saw it")]
    config, session, _ = await left_in_doubt(home, outside, *steps)
    act = Recorder()
    async with (
        open_tooled(config, own_tool("post", act), outside=survivor) as house,
        visiting(house) as visitor,
    ):
        await news_until(house, session.id, TurnEnded)
        yield visitor, session.id, act


async def test_a_call_is_shown_whole(doubt: Doubt) -> None:
    visitor, session_id, _ = doubt
    mine = (await visitor.get(f"/v1/sessions/{session_id}/calls")).document
    unknown = (await visitor.get("/v1/calls?state=unknown")).document
    finished = (await visitor.get("/v1/calls?state=finished")).document
    rows = await visitor.messages({"id": session_id})

    first, second = mine["data"]
    by_call = {row["tool_call_id"]: row for row in rows if row["role"] == "tool_result"}
    intents = {row["content"]["id"]: row for row in rows if row["role"] == "tool_call"}
    assert mine["next_cursor"] is None
    assert first == {
        "id": "c1",
        "session_id": session_id,
        "turn": 1,
        "name": "post",
        "arguments": {"line": "x"},
        "effect": "unsafe",
        "state": "unknown",
        "settled": None,
        "idempotency_key": first["idempotency_key"],
        "started_at": first["started_at"],
        "ended_at": first["ended_at"],
        "message_sequence": intents["c1"]["sequence"],
        "result_sequence": by_call["c1"]["sequence"],
        "deadline_at": None,
        "attempt": 1,
        "claim": None,
    }
    assert first["started_at"] < first["ended_at"]
    assert unknown == {"data": [first], "next_cursor": None}
    assert finished == {"data": [second], "next_cursor": None}
    result = by_call["c1"]
    assert (result["result_status"], result["content"]["result"]) == ("unknown", None)
    assert result["content"]["error"].startswith("outcome unknown")


async def test_an_unknown_outcome_is_marked_done(doubt: Doubt) -> None:
    visitor, session_id, act = doubt
    path = f"/v1/sessions/{session_id}/calls/c1/settle"
    before = (await visitor.get(f"/v1/sessions/{session_id}/calls")).document["data"][0]
    body = {"how": "mark_done", "result": {"posted": True}, "note": "I looked."}

    settled = await visitor.post(path, body)
    again = await visitor.post(path, body)
    other = await visitor.post(path, {"how": "skip"})

    assert (settled.status, settled.document) == (200, {**before, "settled": "marked_done"})
    assert (again.status, again.document) == (200, settled.document)
    assert refusal(other) == (409, "call_not_open")
    assert (await visitor.get("/v1/calls?state=unknown")).document["data"] == []
    notice = (await visitor.messages({"id": session_id}))[-1]
    assert (notice["role"], notice["turn"]) == ("system", 0)
    assert "I looked." in notice["content"]["text"]
    assert act.lines == []


async def test_a_retry_runs_the_call_again_as_a_turn_of_its_own(doubt: Doubt) -> None:
    visitor, session_id, act = doubt
    before = (await visitor.get("/v1/calls?state=unknown")).document["data"][0]
    after = (await visitor.get(f"/v1/sessions/{session_id}")).document["last_event"]

    settled = await visitor.post(f"/v1/sessions/{session_id}/calls/c1/settle", {"how": "retry"})
    await news_until(visitor.house, session_id, TurnEnded, after=after)

    assert (settled.status, settled.document["settled"]) == (200, "retried")
    calls = (await visitor.get(f"/v1/sessions/{session_id}/calls")).document["data"]
    assert [each["state"] for each in calls] == ["unknown", "finished", "finished"]
    assert calls[2]["idempotency_key"] == before["idempotency_key"]
    assert act.lines == ["x"]


@each_case(
    ("call_id", "body", "status", "code"),
    [
        ("c1", {"how": "guess"}, 400, "invalid_body"),
        ("c1", {}, 400, "invalid_body"),
        ("c1", {"how": "skip", "note": "x" * 501}, 400, "invalid_body"),
        ("c1", {"how": "mark_done"}, 400, "invalid_input"),
        ("c2", {"how": "skip"}, 409, "call_not_open"),
        ("c9", {"how": "skip"}, 404, "call_not_found"),
    ],
)
async def test_what_cannot_be_settled_is_refused(
    doubt: Doubt, call_id: str, body: dict[str, Any], status: int, code: str
) -> None:
    visitor, session_id, _ = doubt

    answer = await visitor.post(f"/v1/sessions/{session_id}/calls/{call_id}/settle", body)

    assert refusal(answer) == (status, code)


async def test_calls_are_paged(doubt: Doubt) -> None:
    visitor, session_id, _ = doubt
    path = f"/v1/sessions/{session_id}/calls"
    first = (await visitor.get(f"{path}?limit=1")).document
    second = (await visitor.get(f"{path}?limit=1&cursor={first['next_cursor']}")).document

    assert [page["data"][0]["id"] for page in (first, second)] == ["c1", "c2"]
    assert second["next_cursor"] is None
    for query in ("cursor=x", f"state=unknown&cursor={first['next_cursor']}", "state=lost"):
        assert refusal(await visitor.get(f"{path}?{query}")) == (400, "invalid_query")


async def test_another_owner_sees_and_settles_nothing(doubt: Doubt) -> None:
    visitor, session_id, _ = doubt
    other = await visitor.as_("somebody")

    assert (await other.get("/v1/calls")).document["data"] == []
    for id_ in (session_id, A_STRANGER):
        path = f"/v1/sessions/{id_}/calls"
        assert refusal(await other.get(path)) == (404, "session_not_found")
        settle = await other.post(f"{path}/c1/settle", {"how": "skip"})
        assert refusal(settle) == (404, "session_not_found")
