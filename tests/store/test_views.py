"""The record under the names of a schema that others know, for tools that read the store."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.app import Environment
from holdfast.domain.drafts import MessageDraft, Outcome, Summary
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Media,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.sessions import ForkRequest, Session, SessionRequest, Status, StopReason
from holdfast.services.journal import SessionWriter
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.wire.repo_sessions import rows_of
from tests.houses import House, current, key_of, open_house, played, raw
from tests.marks import demands
from tests.stand_ins import GatedRuntime, an_answer

pytestmark = pytest.mark.anyio


def _row(role: Role, *parts: Part) -> MessageDraft:
    return MessageDraft(role=role, parts=parts)


def _call(call_id: str, **arguments: Any) -> MessageDraft:
    return _row(Role.TOOL_CALL, ToolCall(id=CallId(call_id), name="look", arguments=arguments))


def _result(call_id: str, status: ResultStatus = ResultStatus.OK, **more: Any) -> MessageDraft:
    return _row(
        Role.TOOL_RESULT, ToolResult(call_id=CallId(call_id), name="look", status=status, **more)
    )


STEPS = (PlanStep(text="one", status="completed"), PlanStep(text="two"))
DENIED = ToolError(code="denied", message="no")
PLAY = [
    (_row(Role.SYSTEM, Plan(steps=STEPS)),),
    (_row(Role.ASSISTANT, Reasoning(text="hm")),),
    (_row(Role.ASSISTANT, Reasoning(text="hm"), Text(text="I "), Text(text="löök.")),),
    (_call("c1", path="a", deep={"x": [1, None, True]}), _call("c2"), _call("c3"), _call("c4")),
    (_result("c2", ResultStatus.DENIED, error=DENIED), _result("c1", result=True)),
    (_result("c3", result='a "text"'), _result("c4", result={"a": [1.5, False, None]})),
    an_answer("done"),
]


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose first turn has everything in it, and whose second one fails."""
    failing = [(Outcome(stop_reason=StopReason.ERROR),)]
    async with open_house(home, GatedRuntime(PLAY, failing), outside=outside) as house:
        yield house


@pytest.fixture
async def session(house: House, tmp_path: Path) -> Session:
    """Play both turns in a repository, with a picture in the second question."""
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
    session = await house.open(request=SessionRequest(repo_id=repo.id))
    await house.send(session.id, "hello")
    await played(house, session.id)
    ref = await house.media.keep(house.owner, session.id, b"picture", mime_type="image/png")
    picture = Media(mime_type="image/png", ref=ref)
    await house.send(session.id, (Text(text="see"), picture, Text(text=" this")))
    await played(house, session.id)
    return await current(house, session)


def _read(home: Path, view: str) -> list[dict[str, Any]]:
    with raw(home) as connection:
        cursor = connection.execute(f'SELECT * FROM "{view}"')
        rows = cursor.fetchall()
        if not rows:
            return []
        names = [
            name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (view,))
        ]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _contents(home: Path, session_id: str) -> list[tuple[str, Any]]:
    return [
        (row["role"], msgspec.json.decode(row["content"]))
        for row in _read(home, "AgentMessage")
        if row["sessionId"] == session_id
    ]


def _stamp(at: Any) -> str:
    return f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


@demands("S1-100d")
async def test_a_session_has_the_words_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    await house.open()

    assert _read(home, "AgentSession") == [
        {
            "id": session.id,
            "repoId": session.repo_id,
            "status": "active",
            "createdAt": _stamp(session.created_at),
            "updatedAt": _stamp(session.updated_at),
        }
    ]
    words = {"completed": "completed", "cancelled": "cancelled", "failed": "error"}
    for status in Status:
        with raw(home) as connection:
            connection.execute("UPDATE sessions SET status = ?", (status.value,))
        assert _read(home, "AgentSession")[0]["status"] == words.get(status, "active")


@demands("S1-100k")
async def test_rows_have_the_words_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    rows = {row["id"]: row for row in _read(home, "AgentMessage")}

    stored = await house.read(session.id)
    first = stored[0]
    assert rows[first.id] == {
        "id": first.id,
        "sessionId": session.id,
        "role": "user",
        "content": '{"type":"text","text":"hello"}',
        "timestamp": _stamp(first.created_at),
    }
    assert {row["role"] for row in rows.values()} == {"user", "agent", "system"}


def _tool(result: Any, **arguments: Any) -> tuple[str, Any]:
    return "system", {"type": "tool", "tool": "look", "args": arguments, "result": result}


def _outcome(output: Any, status: str = "ok", error: str | None = None) -> dict[str, Any]:
    return {"status": status, "output": output, "error": error}


async def test_calls_are_folded_with_their_results_and_thoughts_left_out(
    house: House, session: Session, home: Path
) -> None:
    media = (await house.read(session.id))[-2].parts[1]
    assert isinstance(media, Media)

    assert _contents(home, session.id) == [
        ("user", {"type": "text", "text": "hello"}),
        (
            "system",
            {
                "type": "plan",
                "steps": [
                    {"content": "one", "priority": "medium", "status": "completed"},
                    {"content": "two", "priority": "medium", "status": "pending"},
                ],
            },
        ),
        ("agent", {"type": "text", "text": "I löök.", "partial": False}),
        _tool(_outcome(None, "denied", "no")),
        _tool(_outcome(True), path="a", deep={"x": [1, None, True]}),
        _tool(_outcome('a "text"')),
        _tool(_outcome({"a": [1.5, False, None]})),
        ("agent", {"type": "text", "text": "done", "partial": False}),
        ("user", {"type": "text", "text": "see this", "media": [media.ref]}),
        ("system", {"type": "text", "text": "Turn failed: The turn failed.", "code": "error"}),
    ]


async def test_the_rows_are_those_that_the_interface_shows(
    house: House, session: Session, home: Path
) -> None:
    empty = _row(Role.ASSISTANT, Reasoning(text="hm"), Text(text=""))
    await house.messages.record(house.owner, session.id, empty)
    summary = Summary(text="They spoke.", dropped_through=2, kept=1, reason="auto")
    key = await key_of(house, session)

    async def compact(writer: SessionWriter) -> None:
        writer.add([summary], 0)

    await house.journal.write_by_key(key, compact)
    child = (await house.sessions.make_fork(house.owner, session.id, ForkRequest())).thing
    await house.sessions.close(house.owner, child.id, reason="enough")

    for each in (session, child):
        rows = rows_of(each.id, await house.read(each.id))
        told = [(row.id, row.role, row.timestamp, row.content) for row in rows]
        assert [
            (row["id"], row["role"], row["timestamp"], msgspec.json.decode(row["content"]))
            for row in _read(home, "AgentMessage")
            if row["sessionId"] == each.id
        ] == told


async def test_a_folded_row_stands_at_its_result_and_an_open_one_at_its_call(
    house: House, session: Session, home: Path
) -> None:
    stored = await house.read(session.id)
    calls = [row for row in stored if row.role is Role.TOOL_CALL]
    results = [row for row in stored if row.role is Role.TOOL_RESULT]
    rows = {row["id"]: row for row in _read(home, "AgentMessage")}

    assert rows[calls[0].id]["timestamp"] == _stamp(results[1].created_at)
    # A fork that leaves between the call and its result.
    wish = ForkRequest(at=calls[3].sequence)
    fork = (await house.sessions.make_fork(house.owner, session.id, wish)).thing
    assert _contents(home, fork.id)[3:] == [
        _tool(None, path="a", deep={"x": [1, None, True]}),
        _tool(None),
        _tool(None),
        _tool(None),
    ]


async def test_a_fork_shows_what_it_inherits_as_its_own(
    house: House, session: Session, home: Path
) -> None:
    child = (await house.sessions.make_fork(house.owner, session.id, ForkRequest())).thing
    await house.send(child.id, "own")
    await played(house, child.id)
    grandchild = (await house.sessions.make_fork(house.owner, child.id, ForkRequest(at=5))).thing

    whole = _contents(home, session.id)
    assert _contents(home, child.id) == [
        *whole,
        ("user", {"type": "text", "text": "own"}),
        ("agent", {"type": "text", "text": "done", "partial": False}),
    ]
    assert _contents(home, grandchild.id) == [
        *whole[:3],
        _tool(None, path="a", deep={"x": [1, None, True]}),
    ]
    await house.sessions.delete(house.owner, session.id, policy=DeletePolicy.DETACH)
    assert _contents(home, child.id)[: len(whole)] == whole


async def test_what_no_text_can_hold_is_shown_as_it_was_written(
    house: House, session: Session, home: Path
) -> None:
    said = {"a\x00": ["\x00\x00b", "\\u0000", "\\\x00", "\x7f\x01/\u2028"]}
    await house.messages.record(house.owner, session.id, _call("c9", **said))
    await house.messages.record(house.owner, session.id, _result("c9", result=said))

    row = _read(home, "AgentMessage")[-1]

    assert row["content"] == msgspec.json.encode(_tool(_outcome(said), **said)[1]).decode()


@pytest.mark.parametrize(
    "view",
    [
        *("AgentSession", "AgentMessage", "agent_sessions"),
        *("news", "session_events", "session_messages"),
    ],
)
async def test_views_are_for_reading_only(
    house: House, session: Session, home: Path, view: str
) -> None:
    with raw(home) as connection, pytest.raises(apsw.SQLError):
        connection.execute(f'DELETE FROM "{view}"')


def test_the_schema_is_understood_by_the_sqlite_that_comes_with_python(tmp_path: Path) -> None:
    from holdfast.store.sqlite.migrate import migrations

    connection = sqlite3.connect(tmp_path / "plain.db")
    try:
        for migration in migrations():
            connection.executescript(migration.up)
        for view in ("AgentSession", "AgentMessage"):
            assert connection.execute(f'SELECT * FROM "{view}"').fetchall() == []
    finally:
        connection.close()
