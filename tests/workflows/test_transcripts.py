"""The rows of an export: four roles, camel case, nothing left out, all of it fit for a file."""

from typing import Any

from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
)
from holdfast.workflows.export import DEEPEST, ROLES, plain, transcript
from tests.builders import MODEL_ID, a_message, a_tool_result, a_transcript
from tests.marks import demands, each_case

HANDLE = "media://sha256-" + "0" * 64


def content_of(role: Role, *parts: Part) -> Any:
    """Return the content of a row as an export has it."""
    (form,) = transcript([a_message(role=role, parts=parts)], {})
    return form["content"]


@demands("S0-033")
def test_every_role_is_one_of_four() -> None:
    call = ToolCall(id=CallId("c"), name="read_file", arguments={})
    rows = a_transcript(
        a_message("hello"),
        a_message(role=Role.TOOL_CALL, parts=(call,)),
        a_message(role=Role.TOOL_RESULT, parts=(a_tool_result(),)),
        a_message("hi", role=Role.ASSISTANT),
        a_message(role=Role.SYSTEM, parts=(Text(text="closed"),)),
    )

    roles = [row["role"] for row in transcript(rows, {})]

    assert roles == ["user", "assistant", "tool", "assistant", "system"]
    assert {row.role for row in rows} == set(ROLES) == set(Role)


@demands("S0-030c")
def test_a_row_keeps_its_id_its_number_its_time_and_its_model() -> None:
    said, answered = a_transcript(
        a_message("hello"), a_message("hi", role=Role.ASSISTANT, model_id=MODEL_ID)
    )

    forms = transcript([answered, said], {MODEL_ID: "offline:holdfast"})

    assert forms == [
        {
            "id": said.id,
            "sessionId": said.session_id,
            "sequenceNumber": 1,
            "role": "user",
            "content": [{"type": "text", "text": "hello"}],
            "timestamp": "2026-01-02T03:04:05.678Z",
        },
        {
            "id": answered.id,
            "sessionId": said.session_id,
            "sequenceNumber": 2,
            "role": "assistant",
            "content": [{"type": "text", "text": "hi"}],
            "timestamp": "2026-01-02T03:04:05.678Z",
            "modelId": "offline:holdfast",
        },
    ]
    assert transcript([answered], {})[0]["modelId"] == MODEL_ID


def test_every_part_has_its_form() -> None:
    call = ToolCall(id=CallId("c"), name="read_file", arguments={"path": "a"})

    assert content_of(Role.USER) == []
    assert content_of(
        Role.ASSISTANT,
        Reasoning(text="hm"),
        Text(text="yes"),
        Media(mime_type="image/png", ref=HANDLE),
    ) == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "yes"},
        {
            "type": "media",
            "mimeType": "image/png",
            "source": {"kind": "handle", "ref": HANDLE},
        },
    ]
    assert content_of(
        Role.USER, Media(mime_type="image/png", ref=HANDLE, name="a.png", byte_length=3)
    )[0] == {
        "type": "media",
        "mimeType": "image/png",
        "source": {"kind": "handle", "ref": HANDLE},
        "name": "a.png",
        "byteLength": 3,
    }
    assert content_of(Role.TOOL_CALL, call) == [
        {"type": "tool_call", "id": "c", "name": "read_file", "args": {"path": "a"}}
    ]


@each_case(
    ("changes", "form"),
    [
        ({"result": [1]}, {"result": [1]}),
        ({"result": None}, {"result": {"status": "ok"}}),
        (
            {"status": ResultStatus.DENIED, "result": None},
            {"result": {"status": "denied"}, "isError": True},
        ),
        (
            {
                "status": ResultStatus.ERROR,
                "result": None,
                "error": ToolError(code="failed", message="no"),
            },
            {"result": {"status": "error", "code": "failed", "message": "no"}, "isError": True},
        ),
        ({"status": ResultStatus.ERROR, "result": "x"}, {"result": "x", "isError": True}),
    ],
)
def test_a_result_is_its_value_or_how_it_came_out(
    changes: dict[str, Any], form: dict[str, Any]
) -> None:
    (part,) = content_of(Role.TOOL_RESULT, a_tool_result(**changes))

    assert part == {"type": "tool_result", "toolCallId": "call-1", **form}


def test_what_holdfast_says_is_one_text() -> None:
    assert content_of(
        Role.SYSTEM,
        Text(text="a"),
        Plan(steps=(PlanStep(text="b"), PlanStep(text="c", status="completed"))),
        Notice(code=NoticeCode.INFORMATION, text="d"),
        Compaction(summary="e", dropped_through=1),
    ) == [{"type": "text", "text": "a\n\n- b (pending)\n- c (completed)\n\nd\n\ne"}]


def test_what_is_too_deep_or_too_long_for_a_file_is_json() -> None:
    deep: Any = 1
    for _ in range(DEEPEST + 2):
        deep = [deep]

    kept = plain({"a": [10**989, 10**990, -(10**990), True, "x"], "b": deep})

    assert kept["a"] == [10**989, str(10**990), str(-(10**990)), True, "x"]
    for _ in range(DEEPEST - 1):
        (kept["b"],) = kept["b"]
    assert kept["b"] == "[[[1]]]"
