"""Events as JSON: pages of what the stream tells, in the contract's own words."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.domain.models import Prices
from tests.houses import raw
from tests.http.sse_reader import listening
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock
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
    "S2-009b",
)
async def test_a_plain_turn_is_told_in_its_order(home: Path, outside: Environment) -> None:
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


@demands("S2-061h")
@pytest.mark.parametrize(
    ("asked", "types"),
    [
        (call("list_directory", "c1", path="."), ["tool.started", "tool.completed"]),
        (call("list_directory", "c1", path="gone"), ["tool.started", "tool.completed"]),
        (call("no_such_tool", "c1"), ["tool.refused"]),
        (call("list_directory", "c1", folder="."), ["tool.refused"]),
        (call("list_directory", "c1", path="../.."), ["tool.refused"]),
    ],
)
async def test_what_never_started_does_not_complete(
    home: Path, outside: Environment, asked: dict[str, Any], types: list[str]
) -> None:
    config = a_config(home, asks(asked), says("I see."))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent(tools=["list_directory"])
        session = await visitor.session(agent["id"])
        rows = await visitor.told(session, "look")
        found = await _events(visitor, session, "types=tool.started,tool.completed,tool.refused")
        completed = await _events(visitor, session, "types=tool.completed")

    assert [each["event_type"] for each in found] == types
    assert {each["data"]["tool_call_id"] for each in found} == {"c1"}
    assert found[-1]["data"]["error"] == rows[2]["content"]["error"]
    assert len(completed) == types.count("tool.completed")


@demands("S2-061g", "S2-061h")
async def test_tools_are_told_between_their_rows(home: Path, outside: Environment) -> None:
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
async def test_a_turn_that_fails_says_why(home: Path, outside: Environment) -> None:
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


@demands("S2-061k")
@pytest.mark.parametrize(
    ("limits", "stop", "code"),
    [
        ({"turn_cap": 1}, "turn_limit", "turn_limit"),
        ({"budget": {"microcents": 1, "on_exceed": "fail"}}, "budget", "budget_exceeded"),
    ],
)
async def test_a_turn_stopped_by_a_limit_has_failed(
    home: Path,
    outside: Environment,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limits: dict[str, Any],
    stop: str,
    code: str,
) -> None:
    priced = Prices(input=300_000_000, output=1_500_000_000, cache_read=0, cache_write=0)
    monkeypatch.setattr("holdfast.llm.router.prices_of", lambda _: priced)
    config = a_config(home, says("one"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session(**limits)
        await visitor.told(session, "hello")
        if "turn_cap" in limits:
            await visitor.told(session, "once more")
        last = (await _events(visitor, session, "types=session.failed,session.completed"))[-1]
        after = (await visitor.get(f"/v1/sessions/{session['id']}")).document
        lists = [
            [
                each["id"]
                for each in (await visitor.get(f"/v1/sessions?status={word}")).document["data"]
            ]
            for word in ("failed", "completed")
        ]

    assert (last["event_type"], last["data"]["stop_reason"]) == ("session.failed", stop)
    assert last["data"]["error"]["code"] == code
    assert (after["status"], after["state"], after["last_stop"]) == ("failed", "idle", stop)
    assert lists == [[session["id"]], []]


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

    assert await _paged(visitor, f"{path}&limit=2") == whole
    assert await _paged(visitor, f"{path}&limit=2&after=3") == whole[3:]
    behind = (await visitor.get(f"{path}&after=3")).document["data"]
    assert behind == whole[3:]
    ahead = await visitor.get(f"{path}&after={whole[-1]['sequence'] + 1}")
    assert refusal(ahead) == (409, "cursor_ahead")
    assert ahead.document["details"] == {"head": whole[-1]["sequence"]}


@each_case("limit", [1, 2, 3, 7])
async def test_a_page_has_no_more_than_its_limit_in_whatever_words(
    visitor: Visitor, limit: int
) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/events?format=json"

    for query in ("deltas=both", "types=step.generating,message.delta,step.generated"):
        whole = await _events(visitor, session, f"{query}&limit=1000")
        words = [each["event_type"] for each in whole]
        assert {"step.generating", "message.delta"} <= set(words)
        assert await _paged(visitor, f"{path}&{query}&limit={limit}", most=limit) == whole


async def test_a_cursor_goes_on_by_itself_and_beside_where_the_first_page_began(
    visitor: Visitor,
) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/events?format=json&limit=2"
    first = (await visitor.get(f"{path}&after=1")).document

    alone = await visitor.get(f"{path}&cursor={first['next_cursor']}")
    beside = await visitor.get(f"{path}&after=1&cursor={first['next_cursor']}")

    assert alone.document == beside.document
    assert [each["sequence"] for each in first["data"] + alone.document["data"]] == [2, 3, 4, 5]


async def test_a_cursor_is_good_for_the_question_that_gave_it_only(visitor: Visitor) -> None:
    session, other = await visitor.session(), await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/events?format=json&limit=1"
    cursor = (await visitor.get(path)).document["next_cursor"]
    wrong = [
        f"{path}&cursor={cursor}x",
        f"{path}&cursor=1",
        f"{path}&cursor={cursor}&types=turn.started",
        f"{path}&cursor={cursor}&deltas=none",
        f"{path}&cursor={cursor}&words=house",
        f"/v1/sessions/{other['id']}/events?format=json&cursor={cursor}",
    ]

    assert (await visitor.get(f"{path}&cursor={cursor}")).status == 200
    for each in wrong:
        assert refusal(await visitor.get(each)) == (400, "invalid_query"), each


async def test_what_was_pruned_is_told_on_the_page_and_in_the_stream_alike(
    visitor: Visitor, clock: SettableClock
) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    (delta, *_) = await _events(visitor, session, "types=step.generating")
    clock.advance(days=2)
    count = await visitor.house.maintenance.prune()
    path = f"/v1/sessions/{session['id']}/events"
    numbers = {"from": delta["sequence"], "to": delta["sequence"] + count - 1}
    gap = {**numbers, "reason": "pruned", "resync": f"/v1/sessions/{session['id']}/messages"}

    async def told(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await visitor.get(path + query)).document["gaps"]
        return found

    async with listening(visitor.app, f"{path}?until=settled", visitor.secret) as reader:
        frames = await reader.ended()
    assert [frame.data for frame in frames if frame.event == "gap"] == [gap]
    assert await told("?format=json") == [gap]
    assert await told("?format=json&types=step.generating") == [gap]
    assert await told("?format=json&types=session.started") == []
    assert await told(f"?format=json&limit={delta['sequence'] - 1}") == []


@pytest.mark.parametrize(
    "types", ["message.created", "message.delta,session.completed", "step.delta", "nothing", ""]
)
@pytest.mark.parametrize("words", ["v1", "house"])
async def test_types_are_the_same_on_the_page_and_in_the_stream(
    visitor: Visitor, types: str, words: str
) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/events?types={types}&words={words}"
    last = (await visitor.get(f"/v1/sessions/{session['id']}")).document["last_event"]

    page = (await visitor.get(f"{path}&format=json")).document
    async with listening(visitor.app, f"{path}&until=settled", visitor.secret) as reader:
        _, *frames, _ = await reader.ended()

    told = [frame.data for frame in frames if frame.event != "gap"]
    # What is stored leaves out what is usual, so whole events are alike in our own words only.
    own = ("id", "sequence") if words == "house" else ("id", "sequence", "event_type", "data")
    assert [{key: each[key] for key in own} for each in told] == [
        {key: each[key] for key in own} for each in page["data"]
    ]
    covered: list[int] = []
    for frame in frames:
        first = frame.data["from"] if frame.event == "gap" else frame.id
        covered += range(first, frame.id + 1) if frame.id is not None else []
    assert covered == list(range(1, last + 1))


@pytest.mark.parametrize("query", ["format=json&since=1", "format=json&until=settled"])
async def test_what_only_a_stream_knows_is_refused_on_a_page(visitor: Visitor, query: str) -> None:
    session = await visitor.session()

    answer = await visitor.get(f"/v1/sessions/{session['id']}/events?{query}")

    assert refusal(answer) == (400, "invalid_query")


@each_case("query", ["after=0", "limit=5", "cursor=x"])
async def test_what_only_a_page_knows_is_refused_on_a_stream(visitor: Visitor, query: str) -> None:
    session = await visitor.session()

    answer = await visitor.get(f"/v1/sessions/{session['id']}/events?{query}")

    assert refusal(answer) == (400, "invalid_query")
    assert answer.document["details"]["parameter"] == query.partition("=")[0]


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


@each_case("query", ["limit=0", "limit=1001", "after=-1", "after=x", "deltas=all"])
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
        connection.execute("DELETE FROM deltas")

    assert [(await visitor.get(path)).body for path in paths] == before


async def _paged(visitor: Visitor, path: str, most: int = 1_000) -> list[dict[str, Any]]:
    """Return the events of all pages."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await visitor.get(path + cursor)).document
        assert len(page["data"]) <= most
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def _events(
    visitor: Visitor, session: dict[str, Any], query: str = ""
) -> list[dict[str, Any]]:
    answer = await visitor.get(f"/v1/sessions/{session['id']}/events?format=json&{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.document["data"]
    return found
