"""Messages of `/api`: read by number or by time, and one row that grows while an agent speaks."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ResultStatus, Role, ToolCall, ToolResult
from tests.houses import raw, unlocked
from tests.http.api.client import Client, playing
from tests.http.v1.client import A_STRANGER, refusal
from tests.marks import demands, each_case
from tests.stand_ins import (
    Gate,
    SettableClock,
    an_answer,
    an_intent,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio


@demands("S1-070", "S1-070c")
async def test_messages_are_a_bare_array_in_order(client: Client) -> None:
    session = await client.opened()
    accepted = await client.prompted(session, " hello ")
    await client.settled(session)

    rows = await client.rows(session)

    assert rows[0] == {
        "id": accepted["messageId"],
        "sessionId": session["id"],
        "role": "user",
        "content": {"type": "text", "text": " hello "},
        "timestamp": rows[0]["timestamp"],
        "sequence": 1,
        "turn": 1,
    }
    assert (rows[1]["role"], rows[1]["content"]["partial"]) == ("agent", False)
    assert [row["sequence"] for row in rows] == [1, 2]
    assert rows[0]["timestamp"] < rows[1]["timestamp"]


async def test_messages_do_not_depend_on_events(client: Client) -> None:
    session = await client.opened()
    await client.prompted(session, "hello")
    await client.settled(session)
    rows = await client.rows(session)
    with raw(client.house.config.home) as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM deltas")

    assert await client.rows(session) == rows
    await client.prompted(session, "again")
    await client.settled(session)
    assert [row["sequence"] for row in await client.rows(session)] == [1, 2, 3, 4]


async def spoken(client: Client, count: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Open a session with so many prompts that nobody answers, and return its rows."""
    session = await client.opened()
    for number in range(count):
        await client.prompted(session, f"number {number}")
    return session, await client.rows(session)


@each_case("limit", [1, 2, 3, 6, 7, 1000])
async def test_any_split_into_pages_is_the_whole(quiet_client: Client, limit: int) -> None:
    session, rows = await spoken(quiet_client, 7)

    seen: list[dict[str, Any]] = []
    after: str | None = "0"
    while after is not None:
        path = f"/api/sessions/{session['id']}/messages?after={after}&limit={limit}"
        answer = await quiet_client.get(path)
        page = answer.document
        assert 0 < len(page) <= limit
        seen += page
        after = answer.headers.get("x-next-after")
        assert after is None or after == str(page[-1]["sequence"])

    assert seen == rows


async def worked(client: Client, *, is_fork: bool) -> dict[str, Any]:
    """Open a session in which calls, results, thoughts and words have come in many orders."""
    session = await client.session(repo_id=client.repo["id"])

    async def record(role: str, content: Any, call: str | None = None) -> None:
        told = {"tool_call_id": call} if call else {}
        path = f"/v1/sessions/{session['id']}/messages"
        answer = await client.post(path, {"role": role, "content": content, **told})
        assert answer.status == 201, answer.body

    for number in range(3):
        await record("assistant", {"text": f"words {number}"})
        for call in (f"a{number}", f"b{number}"):
            await record("tool_call", {"id": call, "name": "look", "arguments": {}})
    if is_fork:
        answer = await client.post(f"/v1/sessions/{session['id']}/fork", {"at": 9})
        assert answer.status == 201, answer.body
        session = answer.document
        return session
    for call in ("b1", "a0", "b0"):
        await record("tool_result", {"result": call}, call)
        await record("system", {"text": f"after {call}"})
    await record("tool_result", {"result": 1}, "a2")
    return session


@pytest.mark.parametrize("is_fork", [False, True])
async def test_any_place_to_go_on_from_shows_what_the_whole_shows_behind_it(
    quiet_client: Client, is_fork: bool
) -> None:
    session = await worked(quiet_client, is_fork=is_fork)
    whole = await quiet_client.rows(session)
    last = (await quiet_client.get(f"/v1/sessions/{session['id']}")).document["message_count"]

    for after in range(last + 1):
        behind = [row for row in whole if row["sequence"] > after]
        assert await quiet_client.rows(session, f"?after={after}") == behind
        for limit in (1, 2, 3, 50):
            page = await quiet_client.rows(session, f"?after={after}&limit={limit}")
            assert page == behind[:limit]
    for row in whole:
        since = await quiet_client.rows(session, f"?since={quote(row['timestamp'])}")
        assert since == [each for each in whole if each["timestamp"] > row["timestamp"]]


async def test_a_fork_shows_results_of_its_own_for_calls_that_it_inherited(
    quiet_client: Client,
) -> None:
    session = await worked(quiet_client, is_fork=True)
    await quiet_client.prompted(session, "go on")
    before = await quiet_client.rows(session)

    assert await quiet_client.rows(session, "?after=9") == before[-1:]
    assert [row["content"]["result"] for row in before if row["content"]["type"] == "tool"] == (
        [None] * 6
    )


async def test_calls_that_were_answered_much_later_come_where_their_answers_are(
    quiet_client: Client,
) -> None:
    session = await quiet_client.session(repo_id=quiet_client.repo["id"])
    path = f"/v1/sessions/{session['id']}/messages"
    calls = [f"c{number}" for number in range(9)]
    for call in calls:
        content = {"id": call, "name": "look", "arguments": {}}
        await quiet_client.post(path, {"role": "tool_call", "content": content})
    for call in reversed(calls):
        body = {"role": "tool_result", "tool_call_id": call, "content": {"result": call}}
        await quiet_client.post(path, body)

    first = await quiet_client.get(f"/api/sessions/{session['id']}/messages?limit=1")
    whole = await quiet_client.rows(session)

    assert [row["content"]["result"]["output"] for row in whole] == list(reversed(calls))
    assert (first.document, first.headers["x-next-after"]) == (whole[:1], "10")


@pytest.mark.parametrize("query", ["?after=5", "?after=5&limit=1", "?since={}"])
async def test_who_polls_costs_what_is_new(
    quiet_client: Client, clock: SettableClock, home: Path, query: str
) -> None:
    session, rows = await spoken(quiet_client, 6)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET parts = zeroblob(9) WHERE sequence = 1")

    # What is not read is not found to be damaged.
    found = await quiet_client.rows(session, query.format(quote(rows[4]["timestamp"])))

    assert found == rows[5:]
    whole = await quiet_client.get(f"/api/sessions/{session['id']}/messages")
    assert refusal(whole) == (500, "corrupt_row")


async def test_rows_after_a_number_are_those_behind_it(quiet_client: Client) -> None:
    session, rows = await spoken(quiet_client, 3)

    for after in range(4):
        assert await quiet_client.rows(session, f"?after={after}") == rows[after:]
    ahead = await quiet_client.get(f"/api/sessions/{session['id']}/messages?after=4")
    assert refusal(ahead) == (409, "cursor_ahead")
    assert ahead.document["details"] == {"head": 3}


@demands("S1-070b", "S1-070")
async def test_rows_since_a_time_are_strictly_behind_it(
    quiet_client: Client, clock: SettableClock
) -> None:
    session = await quiet_client.opened()
    for number in range(3):
        clock.advance(seconds=1)
        await quiet_client.prompted(session, f"number {number}")
    rows = await quiet_client.rows(session)
    second = datetime.fromisoformat(rows[1]["timestamp"])
    milliseconds = int(second.timestamp() * 1000)

    async def since(text: str) -> list[int]:
        return [row["sequence"] for row in await quiet_client.rows(session, f"?since={text}")]

    assert await since(rows[1]["timestamp"]) == [3]
    assert await since(quote((second - timedelta(microseconds=1)).isoformat())) == [2, 3]
    other_zone = second.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
    assert await since(quote(other_zone)) == [3]
    assert await since(other_zone) == [3]
    assert await since(str(milliseconds)) == [2, 3]
    assert await since(str(milliseconds + 1)) == [3]
    assert await since("0") == [1, 2, 3]
    assert await since("0999-01-01T00:00:00Z") == [1, 2, 3]
    assert await since("9999-12-31T00:00:00Z") == []
    assert await since("1999-12-31t23:59:60.123456789z") == [1, 2, 3]


@each_case(
    "query",
    [
        "since=yesterday",
        "since=",
        "since=2026-01-02T03:04:05",
        "since=20260101T000000Z",
        "since=2026-W01-1T00:00:00Z",
        "since=0001-01-01T00:00:00%2B23:00",
        "since=1&after=1",
        "after=-1",
        "after=one",
        "limit=0",
        "limit=1001",
        "partial=perhaps",
        "after=1&after=2",
    ],
)
async def test_a_query_that_is_not_right_is_told_by_its_parameter(
    quiet_client: Client, query: str
) -> None:
    session, _ = await spoken(quiet_client, 1)

    answer = await quiet_client.get(f"/api/sessions/{session['id']}/messages?{query}")

    assert refusal(answer) == (400, "invalid_query")
    assert answer.document["details"]["parameter"] in query


async def test_what_a_client_adds_to_the_query_is_passed_over(quiet_client: Client) -> None:
    session, rows = await spoken(quiet_client, 1)

    assert await quiet_client.rows(session, "?_=12345") == rows
    missing = await quiet_client.get(f"/api/sessions/{A_STRANGER}/messages")
    assert refusal(missing) == (404, "session_not_found")


@demands("S1-051", "S1-051c")
@settings(max_examples=10)
@given(
    st.lists(
        st.text(
            st.characters(exclude_categories=("Cs",), exclude_characters="\x00"),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_text_so_far_is_one_last_row_that_grows_under_the_id_it_keeps(
    pieces: list[str],
) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(grows(Path(folder), pieces))


def answered(text: str) -> tuple[Draft, ...]:
    """Return the end of a turn whose answer was streamed."""
    row, *rest = an_answer(text)
    assert isinstance(row, MessageDraft)
    return (msgspec.structs.replace(row, id=asked().message_id), *rest)


async def grows(folder: Path, pieces: Sequence[str]) -> None:
    gates = [Gate() for _ in pieces]
    play: list[Any] = [(asked(),)]
    for number, piece in enumerate(pieces):
        play += [(streamed(piece, offset=len("".join(pieces[:number]))),), gates[number]]
    async with playing(folder, *play, answered("".join(pieces))) as (client, session):
        for number, gate in enumerate(gates):
            await gate.reached()
            user, partial = await client.rows(session)
            assert partial["content"] == {
                "type": "text",
                "text": "".join(pieces[: number + 1]),
                "partial": True,
            }
            assert (partial["id"], partial["sequence"]) == (asked().message_id, None)
            assert (await client.whole(session))["messages"] == [user, partial]
            assert await client.rows(session, "?after=1") == [partial]
            assert await client.rows(session, f"?since={partial['timestamp']}") == [partial]
            assert await client.rows(session, "?limit=1") == [user]
            assert await client.rows(session, "?partial=false") == [user]
            gate.open()
        await client.settled(session)
        user, answer = await client.rows(session)
    assert answer["content"] == {"type": "text", "text": "".join(pieces), "partial": False}
    assert (answer["id"], answer["sequence"]) == (partial["id"], 2)


async def test_an_open_call_is_a_row_that_comes_again_with_its_result(tmp_path: Path) -> None:
    gate = Gate()
    play = [(an_intent(),), gate, (a_result(),), an_answer("done")]
    async with playing(tmp_path, *play) as (client, session):
        await gate.reached()
        _, open_row = await client.rows(session)
        gate.open()
        await client.settled(session)
        again = await client.rows(session, f"?after={open_row['sequence']}")

    assert (open_row["role"], open_row["content"]["result"]) == ("system", None)
    assert [row["id"] for row in again if row["content"]["type"] == "tool"] == [open_row["id"]]
    completed = next(row for row in again if row["id"] == open_row["id"])
    assert completed["content"]["result"] == {"status": "ok", "output": [1], "error": None}
    assert completed["sequence"] > open_row["sequence"]


async def test_the_views_of_the_store_show_what_the_surface_shows(tmp_path: Path) -> None:
    play = [(an_intent(),), (a_result(),), an_answer("done")]
    async with playing(tmp_path, *play) as (client, session):
        await client.settled(session)
        await client.post(f"/api/sessions/{session['id']}/complete")
        rows = await client.rows(session)
        listed = (await client.get("/api/sessions")).document["sessions"]
        with raw(tmp_path / "home") as connection:
            seen = [
                {**dict(zip(KEYS, row, strict=True)), "content": msgspec.json.decode(row[3])}
                for row in connection.execute(f'SELECT {_columns(KEYS)} FROM "AgentMessage"')
            ]
            sessions = list(
                connection.execute(f'SELECT {_columns(SESSION_KEYS)} FROM "AgentSession"')
            )

    assert seen == [{key: row[key] for key in KEYS} for row in rows]
    assert sessions == [tuple(each[key] for key in SESSION_KEYS) for each in listed]


def a_result() -> MessageDraft:
    """Return what came of the call of `an_intent()`."""
    call = an_intent().parts[0]
    assert isinstance(call, ToolCall)
    part = ToolResult(call_id=call.id, name=call.name, status=ResultStatus.OK, result=[1])
    return MessageDraft(role=Role.TOOL_RESULT, parts=(part,))


KEYS = ("id", "sessionId", "role", "content", "timestamp")
SESSION_KEYS = ("id", "repoId", "status", "createdAt", "updatedAt")


def _columns(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


async def test_a_session_of_another_door_is_read_here_with_all_it_holds(
    quiet_client: Client,
) -> None:
    client = quiet_client
    session = await client.session(repo_id=client.repo["id"])
    path = f"/v1/sessions/{session['id']}/messages"
    await client.post(path, {"role": "system", "content": {"text": "Be brief."}})
    call = {"id": "c1", "name": "look", "arguments": {"q": 1}}
    await client.post(path, {"role": "tool_call", "content": call})
    result = {"role": "tool_result", "tool_call_id": "c1", "content": {"result": [1]}}
    await client.post(path, result)

    rows = await client.rows(session)

    assert [(row["role"], row["content"], row["sequence"]) for row in rows] == [
        ("system", {"type": "text", "text": "Be brief."}, 1),
        (
            "system",
            {
                "type": "tool",
                "tool": "look",
                "args": {"q": 1},
                "result": {"status": "ok", "output": [1], "error": None},
            },
            3,
        ),
    ]
    assert SessionId(rows[0]["sessionId"]) == session["id"]
