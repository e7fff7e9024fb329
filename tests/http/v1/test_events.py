"""Events as JSON: pages of what the stream tells, in the contract's own words."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.bootstrap import Outside
from tests.houses import raw
from tests.http.v1.visitor import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio


@demands(
    "S2-060b",
    "S2-060c",
    "S2-061",
    "S2-061b",
    "S2-061c",
    "S2-061e",
    "S2-061i",
    "S2-061j",
    "S2-070c",
    "S2-070d",
    "S2-070f",
    "S2-070g",
)
async def test_a_plain_turn_is_told_in_its_order(home: Path, outside: Outside) -> None:
    config = a_config(home, says("The answer is 4"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        rows = await visitor.told(session, "How much is 2+2?")
        after = (await visitor.get(f"/v1/sessions/{session['id']}")).document
        answer = await visitor.get(f"/v1/sessions/{session['id']}/events?format=json")

    page = answer.document
    told = [each for each in page["data"] if each["event_type"] != "step.generating"]
    deltas = [each for each in page["data"] if each["event_type"] == "step.generating"]
    assert [each["event_type"] for each in told] == [
        "session.opened",
        "message.created",
        "session.started",
        "step.started",
        "step.generated",
        "message.created",
        "session.completed",
    ]
    assert page["next_cursor"] is None
    assert [each["sequence"] for each in page["data"]] == list(range(1, len(page["data"]) + 1))
    assert {each["session_id"] for each in page["data"]} == {session["id"]}
    assert set(told[0]) == {
        "id",
        "session_id",
        "sequence",
        "event_type",
        "data",
        "created_at",
    }
    question, reply = rows
    usage, cost = after["usage"], after["cost"]
    by_word = {each["event_type"]: each["data"] for each in told}
    assert told[1]["data"] == {
        "message_id": question["id"],
        "role": "user",
        "message_sequence": 1,
        "turn": 1,
    }
    assert by_word["session.started"] == {"turn": 1}
    assert by_word["step.started"] == {
        "turn": 1,
        "step": 1,
        "model_id": reply["model_id"],
        "model": config.default_model,
        "message_id": reply["id"],
    }
    assert "".join(each["data"]["delta"] for each in deltas) == "The answer is 4"
    assert {each["data"]["message_id"] for each in deltas} == {reply["id"]}
    assert by_word["step.generated"] == {
        "turn": 1,
        "step": 1,
        "message_id": reply["id"],
        "usage": usage,
        "cost": cost,
    }
    assert by_word["message.created"]["message_id"] == reply["id"]
    assert by_word["session.completed"] == {
        "turn": 1,
        "stop_reason": "stop",
        "usage": usage,
        "cost": cost,
        "closed": False,
        "reason": None,
        "more_turns": False,
    }


@demands("S2-061g", "S2-061h")
async def test_tools_are_told_between_their_rows(home: Path, outside: Outside) -> None:
    config = a_config(home, asks(call("list_directory", "c1", path=".")), says("Done."))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent(tools=["list_directory"])
        session = await visitor.session(agent["id"])
        rows = await visitor.told(session, "look")
        found = await _events(visitor, session, "types=tool.started,tool.completed")

    started, completed = found
    assert started["data"] == {
        "turn": 1,
        "tool_call_id": "c1",
        "name": "list_directory",
        "arguments": {"path": "."},
    }
    assert completed["data"] == {
        "turn": 1,
        "tool_call_id": "c1",
        "name": "list_directory",
        "status": "ok",
        "result": rows[2]["content"]["result"],
        "error": None,
    }


@demands("S2-061d", "S2-061k")
async def test_a_turn_that_fails_says_why(home: Path, outside: Outside) -> None:
    config = a_config(home, {"error": "auth"})
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        await visitor.told(session, "hello")
        found = await _events(visitor, session, "types=step.error,session.failed,session.completed")

    error, failed = found
    assert (error["event_type"], failed["event_type"]) == ("step.error", "session.failed")
    assert error["data"]["error"]["code"] == "provider_auth"
    assert (error["data"]["next_model_id"], error["data"]["will_retry"]) == (None, False)
    assert failed["data"]["stop_reason"] == "error"
    assert failed["data"]["error"]["code"] == "provider_auth"


@demands("S2-061f")
async def test_a_piece_of_text_has_two_words_and_the_reader_chooses(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")

    async def words(query: str) -> set[str]:
        found = {each["event_type"] for each in await _events(visitor, session, query)}
        return found & {"step.generating", "message.delta"}

    assert await words("") == {"step.generating"}
    assert await words("deltas=message") == {"message.delta"}
    assert await words("deltas=both") == {"step.generating", "message.delta"}
    assert await words("deltas=none") == set()
    assert await words("types=message.delta") == {"message.delta"}
    both = await _events(visitor, session, "deltas=both")
    pairs = [each for each in both if each["event_type"] in {"step.generating", "message.delta"}]
    first, second = pairs[:2]
    assert (first["event_type"], second["event_type"]) == ("step.generating", "message.delta")
    for key in ("id", "sequence", "created_at"):
        assert first[key] == second[key]


async def test_events_are_paged_by_their_numbers(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    whole = await _events(visitor, session, "limit=1000")
    path = f"/v1/sessions/{session['id']}/events?format=json"

    paged: list[dict[str, Any]] = []
    after: str | None = "0"
    while after is not None:
        page = (await visitor.get(f"{path}&limit=2&after={after}")).document
        paged += page["data"]
        after = page["next_cursor"]

    assert paged == whole
    ahead = await visitor.get(f"{path}&after={whole[-1]['sequence'] + 1}")
    assert refusal(ahead) == (409, "cursor_ahead")
    assert ahead.document["details"] == {"head": whole[-1]["sequence"]}


async def test_words_that_nothing_is_called_by_match_nothing(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")

    assert await _events(visitor, session, "types=nothing.happened") == []
    assert len(await _events(visitor, session, "types=session.opened,nothing")) == 1
    answer = await visitor.get(f"/v1/sessions/{A_STRANGER}/events?format=json&types=nothing")
    assert refusal(answer) == (404, "session_not_found")


async def test_the_close_is_told_with_the_word_of_a_turns_end(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.post(f"/v1/sessions/{session['id']}/close", {"as": "cancelled", "reason": "x"})

    (closed,) = await _events(visitor, session, "types=session.completed")

    data = closed["data"]
    assert (data["closed"], data["turn"], data["reason"]) == (True, None, "x")


async def test_json_can_be_asked_for_with_a_header(visitor: Visitor) -> None:
    session = await visitor.session()
    path = f"/v1/agents/{session['agent_id']}/sessions/{session['id']}/events"

    answer = await visitor.get(path, accept="application/json")

    assert answer.headers["content-type"] == "application/json"
    assert [each["event_type"] for each in answer.document["data"]] == ["session.opened"]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=-1", "after=x", "deltas=all"])
async def test_a_query_that_is_not_right_is_refused(visitor: Visitor, query: str) -> None:
    session = await visitor.session()

    answer = await visitor.get(f"/v1/sessions/{session['id']}/events?format=json&{query}")

    assert refusal(answer) == (400, "invalid_query")


async def test_without_any_event_every_read_gives_the_same_bytes(
    visitor: Visitor, home: Path
) -> None:
    session = await visitor.session()
    rows = await visitor.told(session, "hello")
    base = f"/v1/agents/{session['agent_id']}"
    own = f"/v1/sessions/{session['id']}"
    paths = [
        "/v1/agents",
        base,
        f"{base}/sessions",
        own,
        f"{own}/messages",
        f"{own}/messages/{rows[1]['id']}",
    ]
    before = [(await visitor.get(path)).body for path in paths]
    with raw(home) as connection:
        connection.execute("DELETE FROM events")

    assert [(await visitor.get(path)).body for path in paths] == before


async def _events(
    visitor: Visitor, session: dict[str, Any], query: str = ""
) -> list[dict[str, Any]]:
    answer = await visitor.get(f"/v1/sessions/{session['id']}/events?format=json&{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.document["data"]
    return found
