"""Sessions that Holdfast plays, over MCP: read page by page, and their calls put right."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import Holdfast, Session, SessionRequest
from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.events import TurnEnded
from holdfast.domain.messages import Text
from holdfast.mcp import session_tools
from tests.builders import an_id
from tests.houses import news_until, played
from tests.marks import each_case
from tests.mcp.clients import Client, Line, line_to
from tests.services.test_calls import left_in_doubt
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.tooled import Recorder, open_tooled, own_tool, says

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Doubt:
    """A house in which one call's outcome is unknown, the tool that would run it, and a client."""

    house: Holdfast
    session: Session
    act: Recorder
    line: Line


@pytest.fixture
async def doubt(
    home: Path, outside: Environment, machine: StandInMachine, clock: SettableClock
) -> AsyncIterator[Doubt]:
    """Come after a crash in which a call was cut off."""
    config, session, _ = await left_in_doubt(home, outside, says("never asked"), says("I saw it"))
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    survivor = Environment(clock=clock, randomness=SeededRandomness(1), machine=other)
    act = Recorder()
    async with open_tooled(config, own_tool("post", act), outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
        async with line_to(house) as line:
            yield Doubt(house, session, act, line)


async def test_a_session_is_read_with_all_that_belongs_to_it(holdfast: Holdfast) -> None:
    session = await holdfast.open()
    await holdfast.send(session.id, "Hello there")
    await played(holdfast, session.id)
    async with line_to(holdfast) as line:
        told = (await line.tool("get_session", session_id=session.id.upper())).form
        raw = (await line.tool("get_session", session_id=session.id, include_raw=True)).form

    rows = await holdfast.read(session.id)
    assert [each["id"] for each in told["messages"]] == [row.id for row in rows]
    assert told["messages"][0]["content"] == {"text": "Hello there"}
    assert "parts" not in told["messages"][0]
    assert raw["messages"][0]["parts"] == [{"type": "text", "text": "Hello there"}]
    assert (told["next_after"], told["open_calls"]) == (None, [])
    assert told["costs"]["requests"] == 1
    assert told["session"]["id"] == session.id
    assert told["session"]["agent"]["slug"] == "holdfast"
    assert told["session"]["message_count"] == len(rows)


async def test_a_session_is_read_page_by_page(quiet: Holdfast, client: Client) -> None:
    session = await quiet.open()
    for number in range(5):
        await quiet.send(session.id, f"message {number}")
    seen, after = [], 0
    while after is not None:
        page = (await client.tool("get_session", session_id=session.id, after=after, limit=2)).form
        seen += [each["content"]["text"] for each in page["messages"]]
        after = page["next_after"]

    assert seen == [f"message {number}" for number in range(5)]
    for wrong in ({"limit": 0}, {"limit": 501}):
        refused = await client.tool("get_session", session_id=session.id, **wrong)
        assert refused.error == "invalid_limit"
    behind = await client.tool("get_session", session_id=session.id, after=99)
    assert (behind.form["messages"], behind.form["next_after"]) == ([], None)


async def test_an_answer_has_room_for_so_much(
    quiet: Holdfast, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_tools, "ANSWER_LARGEST", 1_500)
    session = await quiet.open()
    for _ in range(3):
        await quiet.send(session.id, "x" * 1_000)
    first = (await line.tool("get_session", session_id=session.id)).form
    second = (await line.tool("get_session", session_id=session.id, after=1)).form
    third = (await line.tool("get_session", session_id=session.id, after=2)).form

    assert [len(each["messages"]) for each in (first, second, third)] == [1, 1, 1]
    assert [each["next_after"] for each in (first, second, third)] == [1, 2, None]


async def test_a_missing_and_an_odd_session_are_not_there(client: Client) -> None:
    for name in (an_id(7), "nobody", "../../etc/passwd", "x' OR 1=1 --"):
        assert (await client.tool("get_session", session_id=name)).error == "session_not_found"


async def test_a_fork_shows_what_it_inherits(quiet: Holdfast, line: Line) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "the first")
    fork = await quiet.sessions.fork(quiet.owner, session.id)
    await quiet.send(fork.id, "the second")
    told = (await line.tool("get_session", session_id=fork.id)).form

    assert [each.get("inherited") for each in told["messages"]] == [True, None]
    assert told["session"]["forked_from"] == {"session_id": session.id, "sequence": 1}


async def test_what_nobody_knows_the_outcome_of_is_listed(doubt: Doubt) -> None:
    every = (await doubt.line.tool("list_unknown_calls")).form
    own = (await doubt.line.tool("list_unknown_calls", session_id=doubt.session.id)).form
    shown = (await doubt.line.tool("get_session", session_id=doubt.session.id)).form
    lost = await doubt.line.tool("list_unknown_calls", session_id=an_id(7))

    (call,) = every["calls"]
    assert {
        name: call[name] for name in ("call_id", "session_id", "turn", "name", "arguments")
    } == {
        "call_id": "c1",
        "session_id": doubt.session.id,
        "turn": 1,
        "name": "post",
        "arguments": {"line": "x"},
    }
    assert (call["effect"], call["state"]) == ("unsafe", "unknown")
    assert call["since"]
    assert call["idempotency_key"]
    assert own == every
    assert shown["open_calls"] == every["calls"]
    statuses = [each.get("result_status") for each in shown["messages"]]
    assert statuses[-3:-1] == ["unknown", "skipped"]
    assert lost.error == "session_not_found"


async def test_a_call_is_marked_done_once_and_then_it_is_closed(doubt: Doubt) -> None:
    bare = await doubt.line.tool("settle_call", call_id="c1", how="mark_done")
    done = await doubt.line.tool("settle_call", call_id="c1", how="mark_done", result={"ok": True})
    again = await doubt.line.tool("settle_call", call_id="c1", how="mark_done", result={"ok": True})
    other = await doubt.line.tool("settle_call", call_id="c1", how="skip")
    finished = await doubt.line.tool("settle_call", call_id="c2", how="skip")

    assert bare.error == "invalid_input"
    assert done.form == {
        "call_id": "c1",
        "state": "settled",
        "settled": "marked_done",
        "by": "mcp",
        "session_id": doubt.session.id,
    }
    assert again.form == done.form
    assert other.error == finished.error == "call_not_open"
    assert (await doubt.line.tool("list_unknown_calls")).form["calls"] == []


async def test_a_retried_call_runs_again_with_its_key(doubt: Doubt) -> None:
    (call,) = (await doubt.line.tool("list_unknown_calls")).form["calls"]
    told = await doubt.line.tool("settle_call", call_id="c1", how="retry", note="it was not there")
    await played(doubt.house, doubt.session.id)

    assert told.form["settled"] == "retried"
    assert [each.idempotency_key for each in doubt.act.asked] == [call["idempotency_key"]]


async def test_a_call_that_several_have_needs_its_session(doubt: Doubt) -> None:
    other = await doubt.house.open("worker", SessionRequest(approval=ApprovalMode.AUTO))
    await doubt.house.send(other.id, "go")
    await played(doubt.house, other.id)
    # There, too, a call is called c1; it came to its end, so the unknown one is meant.
    found = await doubt.house.calls.named(doubt.house.owner, "c1")
    named = await doubt.line.tool("settle_call", call_id="c1", how="skip", session_id=other.id)
    meant = await doubt.line.tool("settle_call", call_id="c1", how="skip")

    assert {each.session_id for each in found} == {doubt.session.id, other.id}
    assert named.error == "call_not_open"
    assert meant.form["session_id"] == doubt.session.id


@each_case("how", ["undo", None])
async def test_a_call_cannot_be_settled_otherwise(client: Client, how: str | None) -> None:
    refused = await client.tool("settle_call", call_id="c1", how=how)
    lost = await client.tool("settle_call", call_id="c1", how="skip")

    assert refused.error == "schema_validation_failed"
    assert lost.error == "call_not_found"


async def test_a_notice_and_an_empty_row_have_words(quiet: Holdfast, line: Line) -> None:
    session = await quiet.open()
    await quiet.messages.send(quiet.owner, session.id, (Text(text="a"), Text(text="b")))

    told = (await line.tool("get_session", session_id=session.id)).form
    assert told["messages"][0]["content"] == {"text": "ab"}
