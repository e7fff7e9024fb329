"""The record under the names of a schema that others know, for tools that read the store."""

import sqlite3
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from holdfast.app import Environment
from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.costs import CostSum
from holdfast.domain.drafts import MessageDraft, Outcome, Summary
from holdfast.domain.events import Event, SessionExported, ToolEnded, ToolStarted
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Media,
    Output,
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
from holdfast.domain.sessions import (
    ForkRequest,
    Selection,
    Session,
    SessionContext,
    SessionRequest,
    Status,
    StopReason,
)
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.services.journal import SessionWriter
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.services.session_views import SessionOverview
from holdfast.wire.agents import agent_form
from holdfast.wire.events import event_forms
from holdfast.wire.messages import message_form
from holdfast.wire.repo_sessions import build_agent_messages
from holdfast.wire.sessions import session_form
from holdfast.workflows.export import transcript
from tests.houses import House, current, key_of, open_house, played, raw
from tests.marks import demands, each_case
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


@demands("S1-010", "S1-100d", "S1-010b")
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


@demands("S1-011b", "S1-011d", "S1-100k", "S1-100l", "S1-011c", "S1-100n", "S1-100j")
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


@demands("S1-011")
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
    child = (await house.sessions.make_fork(house.owner, session.id, ForkRequest())).value
    await house.sessions.close(house.owner, child.id, reason="enough")

    for each in (session, child):
        rows = build_agent_messages(each.id, await house.read(each.id))
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
    fork = (await house.sessions.make_fork(house.owner, session.id, wish)).value
    assert _contents(home, fork.id)[3:] == [
        _tool(None, path="a", deep={"x": [1, None, True]}),
        _tool(None),
        _tool(None),
        _tool(None),
    ]


async def test_a_fork_shows_what_it_inherits_as_its_own(
    house: House, session: Session, home: Path
) -> None:
    child = (await house.sessions.make_fork(house.owner, session.id, ForkRequest())).value
    await house.send(child.id, "own")
    await played(house, child.id)
    grandchild = (await house.sessions.make_fork(house.owner, child.id, ForkRequest(at=5))).value

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


@demands("S1-011d")
async def test_what_no_text_can_hold_is_shown_as_it_was_written(
    house: House, session: Session, home: Path
) -> None:
    said = {"a\x00": ["\x00\x00b", "\\u0000", "\\\x00", "\x7f\x01/\u2028"]}
    await house.messages.record(house.owner, session.id, _call("c9", **said))
    await house.messages.record(house.owner, session.id, _result("c9", result=said))

    row = _read(home, "AgentMessage")[-1]

    assert row["content"] == msgspec.json.encode(_tool(_outcome(said), **said)[1]).decode()


@demands("S1-010c")
async def test_a_repository_has_the_names_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    assert session.repo_id is not None
    repo = await house.repos.get(house.owner, session.repo_id)

    assert _read(home, "Repo") == [
        {
            "id": repo.id,
            "name": repo.name,
            "path": repo.path,
            "createdAt": _stamp(repo.created_at),
        }
    ]


SPENT = CostSum(key="")


def _answered(form: Struct, *names: str) -> dict[str, Any]:
    """Return these members of what `/v1` answers."""
    told = msgspec.json.decode(msgspec.json.encode(form))
    return {name: told[name] for name in names}


AGENT = {
    "name": "Helper",
    "description": "helps",
    "system_prompt": "Be terse.",
    "models": ["openai:gpt-5", "offline:holdfast"],
    "runtime": LlmRuntime(temperature=0.5, max_tokens=9),
    "tools": ["read_file"],
    "tags": ["a", "b"],
}


@demands("S2-035", "S2-120c", "S2-120d", "S2-121")
async def test_agents_and_models_have_the_columns_of_the_other_schema(
    house: House, home: Path
) -> None:
    full = await house.agents.create(house.owner, AGENT)
    bare = await house.agents.create(house.owner, {"name": "Bare"})
    await house.agents.archive(house.owner, bare.slug)
    columns = ("id", "slug", "name", "description", "system_prompt", "default_model_id")
    columns += ("temperature", "max_tokens", "tags", "status", "created_at", "updated_at")

    rows = {row["slug"]: row for row in _read(home, "s2_agents")}
    models = {row["id"]: row for row in _read(home, "llm_models")}

    for agent in (full, await house.agents.get(house.owner, bare.slug)):
        row = rows[agent.slug]
        assert [tool["name"] for tool in msgspec.json.decode(row.pop("tools"))] == [
            tool.name for tool in agent.tools
        ]
        row["tags"] = msgspec.json.decode(row["tags"])
        assert row == _answered(agent_form(agent), *columns)
    model = models[rows["helper"]["default_model_id"]]
    assert (model["provider"], model["name"]) == ("openai", "gpt-5")


@demands("S2-035b", "S2-121b", "S2-121c", "S2-121e", "S2-120e")
async def test_sessions_have_the_columns_and_words_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    request = SessionRequest(title="Mine", tags=("x",), model="offline:holdfast")
    opened = await house.open(request=request)
    columns = ("id", "agent_id", "title", "tags", "model_id", "status")
    columns += ("created_at", "started_at", "finished_at")

    for status, stop, turn in product(Status, (None, *StopReason), (2, 3)):
        with raw(home) as connection:
            changed = "UPDATE sessions SET status = ?, last_stop = ?, turn = ?, settled = 2"
            connection.execute(changed, (status.value, stop and stop.value, turn))
        rows = {row["id"]: row for row in _read(home, "s2_sessions")}
        for each in (session, opened):
            # Not read again, because its checksum does not fit any more.
            shown = replace(each, status=status, last_stop=stop, turn=turn, settled=2)
            form = session_form(SessionOverview(session=shown, spent=SPENT))
            row = rows[each.id]
            row["tags"] = msgspec.json.decode(row["tags"])
            assert row == _answered(form, *columns)


@demands("S2-120f", "S2-120g")
async def test_messages_have_the_columns_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    lost = ToolError(code="unknown", message="lost")
    started = ToolStarted(call_id=CallId("c8"), name="look", arguments={})
    summary = Summary(text="They spoke.", dropped_through=2, kept=1, reason="auto")

    async def go_on(writer: SessionWriter) -> None:
        unknown = _result("c8", ResultStatus.UNKNOWN, error=lost)
        writer.add([_call("c8", a="\x00"), started, unknown, summary], 0)

    await house.journal.write_by_key(await key_of(house, session), go_on)
    columns = ("id", "session_id", "sequence", "role", "content", "tool_call_id", "created_at")

    rows = sorted(_read(home, "s2_messages"), key=lambda row: row["sequence"])

    for row in rows:
        row["content"] = msgspec.json.decode(row["content"])
    stored = await house.read(session.id)
    assert rows == [_answered(message_form(each, session.id), *columns) for each in stored]


@demands("S2-120h", "S2-121d")
async def test_events_have_the_ids_and_types_of_the_other_schema(
    house: House, session: Session, home: Path
) -> None:
    refused = ToolEnded(call_id=CallId("c8"), name="look", status=ResultStatus.ERROR)

    async def refuse(writer: SessionWriter) -> None:
        writer.add([_call("c8"), refused, _result("c8", ResultStatus.ERROR, error=DENIED)], 0)

    await house.journal.write_by_key(await key_of(house, session), refuse)
    await house.sessions.close(house.owner, session.id, reason="enough")
    page = await house.events.list(house.owner, session.id, limit=1000)
    forms = [event_forms(each)[0] for each in page.items if isinstance(each, Event)]

    rows = sorted(_read(home, "s2_events"), key=lambda row: row["sequence"])

    assert [
        (row["id"], row["session_id"], row["sequence"], row["event_type"], row["created_at"])
        for row in rows
    ] == [
        (each.id, each.session_id, each.sequence, each.event_type, each.created_at)
        for each in forms
    ]
    types = {row["event_type"] for row in rows}
    assert {"tool.refused", "session.failed", "session.completed", "message.created"} <= types
    told = {row["sequence"]: msgspec.json.decode(row["data"]) for row in rows}
    assert all("type" not in data for data in told.values())
    first = next(row for row in rows if row["event_type"] == "message.created")
    assert told[first["sequence"]]["role"] == "user"


def _stamp_ms(at: Any) -> str:
    return format_iso8601(milliseconds(at))


@demands("S0-321e")
async def test_agent_sessions_have_the_columns_and_words_of_their_schema(
    house: House, session: Session, home: Path
) -> None:
    context = SessionContext(
        working_dir="/",
        active_file="a.py",
        selection=Selection(file="a.py", start_line=1, end_line=2),
        variables={"a": "b"},
    )
    request = SessionRequest(title="Mine", model="openai:gpt-5", context=context)
    opened = await house.open(request=request)
    for target in ("first.yaml", 'se"cond.yaml'):

        async def export(writer: SessionWriter, target: str = target) -> None:
            writer.add([SessionExported(target=target)], 0)

        await house.journal.write_by_key(await key_of(house, opened), export)
    opened = await current(house, opened)

    rows = {row["id"]: row for row in _read(home, "agent_sessions")}

    row = rows[opened.id]
    assert msgspec.json.decode(row.pop("agent_snapshot"), type=Agent) == opened.agent
    assert msgspec.json.decode(row.pop("context")) == {
        "workingDir": "/",
        "activeFile": "a.py",
        "selection": {"file": "a.py", "startLine": 1, "endLine": 2},
        "fsScopeTier": opened.context.fs_scope_tier,
        "variables": {"a": "b"},
    }
    assert row == {
        "id": opened.id,
        "agent_slug": opened.agent.slug,
        "agent_id": opened.agent_id,
        "title": "Mine",
        "model_id": "openai:gpt-5",
        "status": "idle",
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "total_cost_microcents": 0,
        "exported_workflow_path": 'se"cond.yaml',
        "created_at": _stamp_ms(opened.created_at),
        "updated_at": _stamp_ms(opened.updated_at),
    }
    assert rows[session.id]["exported_workflow_path"] is None
    assert set(msgspec.json.decode(rows[session.id]["context"])) == {
        *("workingDir", "fsScopeTier", "variables")
    }
    words = {Status.PENDING: "idle", Status.IDLE: "idle", Status.RUNNING: "streaming"}
    for status in Status:
        with raw(home) as connection:
            connection.execute("UPDATE sessions SET status = ?", (status.value,))
        assert _read(home, "agent_sessions")[0]["status"] == words.get(status, "ended")


@demands("S0-033", "S0-321", "S1-057")
async def test_session_messages_are_the_transcript_of_an_export(
    house: House, session: Session, home: Path
) -> None:
    said = {"a": [None, "\x00", {"b": None}], "text": 'a "text"'}
    lost = ToolError(code="unknown", message="lost")
    started = ToolStarted(call_id=CallId("c8"), name="look", arguments={})
    summary = Summary(text="They spoke.", dropped_through=2, kept=1, reason="auto")

    async def go_on(writer: SessionWriter) -> None:
        unknown = _result("c8", ResultStatus.UNKNOWN, error=lost)
        failed = _result("c9", ResultStatus.ERROR, result=said)
        answer = _row(Role.ASSISTANT, Reasoning(text="h"), Text(text="{}"), Output(value={}))
        writer.add([_call("c8", **said), started, unknown, summary], 0)
        writer.add([_call("c9"), failed, answer], 0)

    await house.journal.write_by_key(await key_of(house, session), go_on)
    child = (await house.sessions.make_fork(house.owner, session.id, ForkRequest(at=9))).value
    await house.send(child.id, "own")
    await played(house, child.id)
    refs = {model.id: model.ref for model in await house.models.list()}

    for each in (session, child):
        rows = [row for row in _read(home, "session_messages") if row["session_id"] == each.id]
        stored = await house.read(each.id)
        assert len(stored) > 9
        assert [
            {
                "id": row["id"],
                "sequenceNumber": row["sequence_number"],
                "role": row["role"],
                "content": msgspec.json.decode(row["content"]),
                "timestamp": row["timestamp"],
                **({"modelId": row["model_id"]} if row["model_id"] else {}),
            }
            for row in sorted(rows, key=lambda row: row["sequence_number"])
        ] == [
            {key: value for key, value in row.items() if key != "sessionId"}
            for row in transcript(stored, refs)
        ]
        numbers = [
            row["sequence"] for row in _read(home, "s2_messages") if row["session_id"] == each.id
        ]
        assert sorted(numbers) == [row.sequence for row in stored]


@each_case(
    "view",
    [
        *("Repo", "llm_models", "s2_agents", "s2_sessions", "s2_messages", "s2_events"),
        *("AgentSession", "AgentMessage", "agent_sessions"),
        *("line_messages", "stored_events", "session_events", "session_messages"),
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
        for view in ("AgentSession", "AgentMessage", "agent_sessions", "session_messages"):
            assert connection.execute(f'SELECT * FROM "{view}"').fetchall() == []
        for view in ("s2_messages", "s2_events"):
            assert connection.execute(f'SELECT * FROM "{view}"').fetchall() == []
    finally:
        connection.close()
