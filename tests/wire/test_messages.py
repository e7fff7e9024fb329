"""Content of messages and results in JSON, whatever their parts are."""

from datetime import datetime

from hypothesis import given
from msgspec import to_builtins

from holdfast.domain.calls import Call
from holdfast.domain.events import ToolEnded
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolError,
)
from holdfast.domain.time import microseconds
from holdfast.wire.calls import call_result_form, retried_call_form
from holdfast.wire.events import event_forms
from holdfast.wire.messages import message_form
from holdfast.wire.repo_sessions import build_agent_messages
from holdfast.wire.scalars import format_microseconds, format_time
from holdfast.wire.stream_events import StreamVocabulary
from tests.builders import SESSION_ID, a_message, a_tool_call, a_tool_result, an_event
from tests.domain.strategies import INSTANTS
from tests.marks import each_case

CALL = Call(
    id=CallId("call-1"),
    session_id=SESSION_ID,
    turn=1,
    name="read_file",
    arguments={},
    idempotency_key="k",
)


@each_case(
    ("error", "text"),
    [
        (None, "outcome unknown"),
        (ToolError(code="unknown", message="cut off"), "outcome unknown: cut off"),
        (ToolError(code="unknown", message="outcome unknown: cut off"), "outcome unknown: cut off"),
    ],
)
def test_an_unknown_outcome_has_the_same_text_in_every_form(
    error: ToolError | None, text: str
) -> None:
    result = a_tool_result(status=ResultStatus.UNKNOWN, result=None, error=error)
    rows = (
        a_message(role=Role.TOOL_CALL, parts=(a_tool_call(),), sequence=1),
        a_message(role=Role.TOOL_RESULT, parts=(result,), sequence=2),
    )
    ended = ToolEnded(call_id=CALL.id, name="x", status=ResultStatus.UNKNOWN, failure=error)
    event = an_event(ended)

    assert message_form(rows[1], SESSION_ID).content == {"result": None, "error": text}
    assert build_agent_messages(SESSION_ID, rows)[0].content["result"]["error"] == text
    assert event_forms(event)[0].data["error"] == text
    assert StreamVocabulary("a", {}, "m").line(event)["outputSummary"] == text
    shown = call_result_form(CALL, result).error
    assert (shown.message if shown else text) == text


@each_case(
    ("part", "text"),
    [
        (Text(text="plain"), "plain"),
        (Notice(code=NoticeCode.ABORTED, text="stopped"), "stopped"),
        (Compaction(summary="in short", dropped_through=3), "in short"),
        (Plan(steps=(PlanStep(text="look"),)), ""),
    ],
)
def test_a_system_message_has_its_text_and_its_parts(part: Part, text: str) -> None:
    form = to_builtins(message_form(a_message(role=Role.SYSTEM, parts=(part,)), SESSION_ID))

    assert form["content"] == {"text": text}
    assert ("parts" in form) is not isinstance(part, Text)


def test_reasoning_is_a_part_and_not_text() -> None:
    row = a_message(role=Role.ASSISTANT, parts=(Reasoning(text="hm"), Text(text="yes")))

    form = to_builtins(message_form(row, SESSION_ID))

    assert form["content"] == {"text": "yes"}
    assert [part["type"] for part in form["parts"]] == ["reasoning", "text"]


def test_a_call_is_shown_with_its_result_and_its_retry() -> None:
    fine = call_result_form(CALL, a_tool_result(result={"a": 1}))
    error = ToolError(code="rejected", message="No.")
    denied = call_result_form(CALL, a_tool_result(status=ResultStatus.DENIED, error=error))
    retried = to_builtins(retried_call_form(CALL, fine))

    assert (fine.status, fine.result, fine.error) == (ResultStatus.OK, {"a": 1}, None)
    assert to_builtins(denied)["error"] == {"code": "rejected", "message": "No."}
    assert to_builtins(call_result_form(CALL, None))["status"] is None
    assert retried.pop("retry") == to_builtins(fine)
    assert "status" not in retried


@given(INSTANTS)
def test_times_of_rows_are_formatted_like_all_others(at: datetime) -> None:
    assert format_microseconds(microseconds(at)) == format_time(at)
