"""The rule that makes a workflow of a session, sentence by sentence."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.agents import AcpRuntime, file_form
from holdfast.domain.ids import CallId, ModelId
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
)
from holdfast.domain.tools import FsTier, Grant
from holdfast.domain.turns import group_by_turn
from holdfast.parsing.workflow_files import parse_workflow, write_workflow
from holdfast.workflows.export import export, find_left_out, open_model, transcript
from holdfast.workflows.model import Workflow
from tests.builders import (
    MODEL_ID,
    a_context,
    a_message,
    a_session,
    a_tool,
    a_tool_result,
    a_transcript,
    an_agent,
)
from tests.domain.strategies import transcripts
from tests.marks import demands, each_case

REFS = {MODEL_ID: "offline:holdfast"}


def exported(*rows: Message, title: str | None = None) -> Workflow:
    """Return the workflow of a session with these rows."""
    return export(a_session(title=title), a_transcript(*rows), REFS)


def said(text: str, turn: int = 1) -> Message:
    """Return a user's row."""
    return a_message(text, turn=turn)


def answered(text: str = "yes", turn: int = 1) -> Message:
    """Return an assistant's row."""
    return a_message(text, role=Role.ASSISTANT, turn=turn, model_id=MODEL_ID)


def called(name: str, id_: str = "c", turn: int = 1) -> Message:
    """Return a row that asks for a tool."""
    part = ToolCall(id=CallId(id_), name=name, arguments={})
    return a_message(role=Role.TOOL_CALL, parts=(part,), turn=turn)


def came(id_: str = "c", code: str | None = None, turn: int = 1) -> Message:
    """Return the row of a result, or of a refusal."""
    error = None if code is None else ToolError(code=code, message="no")
    status = ResultStatus.OK if code is None else ResultStatus.DENIED
    result = None if code else 1
    part = a_tool_result(call_id=CallId(id_), status=status, error=error, result=result)
    return a_message(role=Role.TOOL_RESULT, parts=(part,), turn=turn)


def players(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the nodes between input and output."""
    return list(workflow.nodes.values())[1:-1]


@demands("S0-401c", "S0-405", "S0-408", "S0-408b", "S0-408d", "S0-401", "S0-401b")
def test_answered_turns_are_a_line_of_nodes() -> None:
    workflow = exported(
        said("one"),
        answered(),
        said("two", turn=2),
        called("read_file", turn=2),
        came(turn=2),
        answered(turn=2),
        title="Plan",
    )

    assert workflow.document["schema_version"] == "1.0"
    body = {key: value for key, value in workflow.body.items() if key != "metadata"}
    assert body == {
        "id": "plan",
        "name": "Plan",
        "nodes": [
            {"id": "input", "type": "input"},
            {"id": "turn-1", "type": "agent", "agent_ref": "helper", "prompt_template": "one"},
            {
                "id": "turn-2",
                "type": "agent",
                "agent_ref": "helper",
                "prompt_template": "two",
                "tools": ["read_file"],
            },
            {"id": "output", "type": "output"},
        ],
        "edges": [
            {"from": "input", "to": "turn-1"},
            {"from": "turn-1", "to": "turn-2"},
            {"from": "turn-2", "to": "output"},
        ],
    }


@demands("S0-408c")
def test_without_an_answered_turn_the_line_is_empty() -> None:
    workflow = exported(said("hello"))

    assert list(workflow.nodes) == ["input", "output"]
    assert workflow.body["edges"] == [{"from": "input", "to": "output"}]
    assert "name" not in workflow.body
    assert workflow.id == "exported-session"


@demands("S0-402", "S0-406")
def test_a_turn_is_one_node_however_many_rows_it_has() -> None:
    pictured = a_message(
        parts=(Text(text="b"), Media(mime_type="image/png", ref="r"), Text(text="c"))
    )
    workflow = exported(
        said("a"), pictured, answered("text before"), called("t"), came(), answered()
    )

    assert [node["id"] for node in players(workflow)] == ["turn-1"]
    assert players(workflow)[0]["prompt_template"] == "a\n\nb\n\nc"


@demands("S0-403")
def test_a_turn_without_an_answer_makes_no_node_and_stays_in_the_metadata() -> None:
    notice = Notice(code=NoticeCode.ABORTED, text="stopped")
    closing = a_message(role=Role.SYSTEM, parts=(notice,), turn=2)
    workflow = exported(
        said("one"),
        answered(),
        said("cut", turn=2),
        answered("half", turn=2),
        closing,
        said("tool", turn=3),
        called("read_file", turn=3),
        said("three", turn=4),
        answered("last", turn=4),
    )

    assert [node["prompt_template"] for node in players(workflow)] == ["one", "three"]
    kept = workflow.body["metadata"]["relaviumExport"]["messages"]
    assert [row["sequenceNumber"] for row in kept] == list(range(1, 10))


@demands("S0-411", "S0-406b")
def test_a_prompt_puts_nothing_in_and_is_left_out_when_there_is_none() -> None:
    workflow = exported(
        said("{{x}} {{{"),
        answered(),
        a_message(parts=(Media(mime_type="image/png", ref="r"),), turn=2),
        answered(turn=2),
        answered("first words", turn=3),
    )

    assert [node.get("prompt_template") for node in players(workflow)] == [
        "{ {x}} { { {",
        None,
        None,
    ]
    row = workflow.body["metadata"]["relaviumExport"]["messages"][0]
    assert row["content"] == [{"type": "text", "text": "{{x}} {{{"}]


@demands("S0-407")
def test_tools_are_those_that_were_invoked_in_the_order_of_their_first_use() -> None:
    workflow = exported(
        said("go"),
        *(called("b", "1"), came("1")),
        *(called("a", "2"), came("2", "not_granted")),
        *(called("b", "3"), came("3", "rejected")),
        *(called("a", "4"), came("4")),
        *(called("ghost", "5"), came("5", "unknown_tool")),
        answered(),
    )

    assert players(workflow)[0]["tools"] == ["b", "a"]
    assert find_left_out(workflow) == ["ghost"]
    assert find_left_out(Workflow({"workflow": {"nodes": []}})) == []


@demands("S0-404")
def test_a_node_has_no_other_keys() -> None:
    workflow = exported(said("go"), called("a"), came(), answered())

    assert set(players(workflow)[0]) == {"id", "type", "agent_ref", "prompt_template", "tools"}


def test_the_metadata_is_the_transcript_under_one_key() -> None:
    session = a_session(title="Plan")
    rows = a_transcript(said("hi"))

    (key, kept), *rest = export(session, rows, REFS).body["metadata"].items()

    assert (key, rest) == ("relaviumExport", [])
    assert {name: value for name, value in kept.items() if name != "messages"} == {
        "source": "session",
        "sessionId": session.id,
        "agentSlug": "helper",
        "title": "Plan",
        "createdAt": "2026-01-02T03:04:05.678Z",
        "updatedAt": "2026-01-02T03:04:05.678Z",
    }


@demands("S0-412", "S0-412b", "S0-465")
def test_the_agent_comes_along_where_it_has_a_form() -> None:
    agent = an_agent(tools=(a_tool(),))
    form = file_form(agent, {}, default="offline:holdfast")

    assert export(a_session(agent=agent), (), REFS, form).body["agents"] == [form]
    bare = export(a_session(agent=agent), a_transcript(said("a"), answered()), REFS)
    assert "agents" not in bare.body
    assert parse_workflow(write_workflow(bare), where="it") == bare


@demands("S0-009")
@each_case(
    ("session", "tools"),
    [
        ({}, None),
        ({"tools": ()}, {"allowedTools": []}),
        ({"tools": (a_tool("b"),)}, {"allowedTools": ["b"]}),
        ({"grant": Grant(fs=FsTier.SANDBOXED, commands=("ls",))}, {"fsScopeTier": "sandboxed"}),
        (
            {"grant": Grant(fs=FsTier.PROJECT)},
            {"allowedCommands": [], "allowedCommandGlobs": [], "allowedDomains": []},
        ),
        (
            {"context": a_context(fs_scope_tier=FsTier.SANDBOXED)},
            {"fsScopeTier": "sandboxed"},
        ),
    ],
)
def test_what_was_narrower_than_the_agent_stays_so(
    session: dict[str, Any], tools: dict[str, Any] | None
) -> None:
    granted = Grant(fs=FsTier.PROJECT, commands=("ls",))
    agent = an_agent(tools=(a_tool("a"), a_tool("b")), grant=granted)
    usual = {
        "tools": agent.tools,
        "grant": granted,
        "context": a_context(fs_scope_tier=FsTier.PROJECT),
    }

    workflow = export(a_session(agent=agent, **(usual | session)), (), REFS)

    assert workflow.body.get("tools") == tools
    assert parse_workflow(write_workflow(workflow), where="it") == workflow


def test_the_tools_of_a_program_are_not_narrowed() -> None:
    agent = an_agent(runtime=AcpRuntime(command="x"), tools=(a_tool("a"),), grant=Grant())

    assert "tools" not in export(a_session(agent=agent, grant=Grant()), (), REFS).body


def test_an_open_model_is_the_one_that_was_asked() -> None:
    asked, default = ModelId("asked"), ModelId("default")
    rows = a_transcript(
        said("a"), a_message("b", role=Role.ASSISTANT, model_id=asked), answered("c")
    )

    assert open_model(a_session(), rows, default) == asked
    assert open_model(a_session(), (), default) == default
    assert open_model(a_session(model_id=MODEL_ID), rows, default) == MODEL_ID


@demands("S0-419c")
def test_thoughts_are_kept_and_there_is_no_place_for_a_signature() -> None:
    thought = a_message(role=Role.ASSISTANT, parts=(Reasoning(text="hm"), Text(text="yes")))
    kept = exported(said("a"), thought).body["metadata"]["relaviumExport"]["messages"][1]

    assert kept["content"][0] == {"type": "reasoning", "text": "hm"}


@demands("S0-400", "S0-415", "S0-415b", "S0-416")
@given(transcripts(), st.integers(0, 1 << 30), st.none() | st.text(max_size=30))
def test_any_session_is_exported_read_and_written_the_same(
    rows: list[Message], seed: int, title: str | None
) -> None:
    agent = an_agent(tools=(a_tool(),))
    form = file_form(agent, {}, default="offline:holdfast")
    session = a_session(agent=agent, title=title)
    shuffled = rows[:]
    random.Random(seed).shuffle(shuffled)

    workflow = export(session, rows, REFS, form)
    text = write_workflow(workflow)
    read = parse_workflow(text, where="it")

    assert write_workflow(export(session, iter(shuffled), REFS, form)) == text
    assert read == workflow
    assert read.body["metadata"]["relaviumExport"]["messages"] == transcript(rows, REFS)
    assert write_workflow(read) == text


@demands("S0-346")
@given(transcripts())
def test_there_are_as_many_nodes_as_answered_turns(rows: list[Message]) -> None:
    count = sum(turn.is_answered for turn in group_by_turn(rows))

    nodes = list(export(a_session(), rows, REFS).nodes)

    assert nodes == ["input", *(f"turn-{number}" for number in range(1, count + 1)), "output"]


@each_case("title", ["x" * 255, "\u2028", "# a", "- b", "yes", "12:30"])
def test_any_title_is_read_again(title: str) -> None:
    workflow = exported(said("a"), title=title)

    assert parse_workflow(write_workflow(workflow), where="it").body["name"] == title


@demands("S0-409c")
def test_a_workflow_may_be_renamed() -> None:
    text = write_workflow(exported(said("a"), answered(), title="One"))

    renamed = parse_workflow(text.replace("  id: one\n", "  id: another\n"), where="it")

    assert (renamed.id, renamed.file_name) == ("another", "another.relavium.yaml")
