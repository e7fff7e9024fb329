"""The rows of `/api`: three roles, one row for a call and its result, and laws for readers."""

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Media,
    Message,
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
    ToolResult,
)
from holdfast.domain.sessions import Status
from holdfast.wire.repo_sessions import AgentMessage, build_agent_messages, session_form
from tests.builders import SESSION_ID, a_message, a_session, a_tool_call, an_id
from tests.domain.strategies import JSON
from tests.marks import demands


def told(*parts: Part, role: Role = Role.SYSTEM) -> list[tuple[str, Any]]:
    row = a_message(role=role, parts=parts)
    return [(each.role, each.content) for each in build_agent_messages(SESSION_ID, [row])]


@demands("S1-050", "S1-050b", "S1-011c")
def test_what_a_user_says_is_a_text_with_its_media() -> None:
    picture = Media(mime_type="image/png", ref=f"media://sha256-{'0' * 64}")

    assert told(Text(text="user's prompt"), role=Role.USER) == [
        ("user", {"type": "text", "text": "user's prompt"})
    ]
    assert told(Text(text="see "), picture, Text(text="this"), role=Role.USER) == [
        ("user", {"type": "text", "text": "see this", "media": [picture.ref]})
    ]


@demands("S1-051b")
def test_what_an_agent_says_is_a_finished_text_and_what_it_thinks_is_not_shown() -> None:
    thought = Reasoning(text="hm")

    assert told(thought, Text(text="Yes."), role=Role.ASSISTANT) == [
        ("agent", {"type": "text", "text": "Yes.", "partial": False})
    ]
    assert told(thought, role=Role.ASSISTANT) == []


@demands("S1-053", "S1-053b")
def test_a_plan_is_a_list_of_steps() -> None:
    steps = (PlanStep(text="one", status="completed", priority="high"), PlanStep(text="two"))

    assert told(Plan(steps=steps)) == [
        (
            "system",
            {
                "type": "plan",
                "steps": [
                    {"content": "one", "priority": "high", "status": "completed"},
                    {"content": "two", "priority": "medium", "status": "pending"},
                ],
            },
        )
    ]


def test_a_notice_says_its_code() -> None:
    assert told(Notice(code=NoticeCode.SESSION_CLOSED, text="It is over.")) == [
        ("system", {"type": "text", "text": "It is over.", "code": "session_closed"})
    ]


@demands("S1-054", "S1-054b")
def test_a_call_and_its_result_are_one_row_at_the_place_of_the_result() -> None:
    messages = transcript(["call", "user", "result"])

    open_row, *_ = build_agent_messages(SESSION_ID, messages[:2])
    rows = build_agent_messages(SESSION_ID, messages)

    assert open_row.content == {"type": "tool", "tool": "look", "args": {"n": 1}, "result": None}
    assert open_row.sequence == 1
    assert [row.id for row in rows] == [messages[1].id, messages[0].id]
    assert rows[1].content == {
        "type": "tool",
        "tool": "look",
        "args": {"n": 1},
        "result": {"status": "ok", "output": 1, "error": None},
    }
    assert (rows[1].sequence, rows[1].role) == (3, "system")


@demands("S1-054")
def test_a_row_keeps_the_title_of_a_call_beside_its_arguments() -> None:
    call = a_tool_call(id="c1", name="Bash", arguments={"command": "ls"}, title="List files")
    message = a_message(id=an_id(1), sequence=1, role=Role.TOOL_CALL, parts=(call,))

    (row,) = build_agent_messages(SESSION_ID, [message])

    assert row.content == {
        "type": "tool",
        "tool": "Bash",
        "title": "List files",
        "args": {"command": "ls"},
        "result": None,
    }


def test_a_failed_call_says_why() -> None:
    error = ToolError(code="denied", message="no")
    result = ToolResult(
        call_id=CallId("c1"), name="look", status=ResultStatus.DENIED, result=None, error=error
    )
    messages = [
        *transcript(["call"]),
        a_message(id=an_id(2), sequence=2, role=Role.TOOL_RESULT, parts=(result,)),
    ]

    assert build_agent_messages(SESSION_ID, messages)[0].content["result"] == {
        "status": "denied",
        "output": None,
        "error": "no",
    }


KINDS = st.lists(st.sampled_from(["user", "agent", "thought", "call", "result"]), max_size=30)


@given(KINDS)
def test_rows_stand_in_the_order_of_their_numbers_and_each_once(kinds: list[str]) -> None:
    messages = transcript(kinds)

    rows = build_agent_messages(SESSION_ID, messages)

    assert all(before.sequence < after.sequence for before, after in pairwise(rows))
    assert len({row.id for row in rows}) == len(rows)
    assert {row.id for row in rows} == {
        message.id
        for message in messages
        if message.role is not Role.TOOL_RESULT
        and not all(isinstance(part, Reasoning) for part in message.parts)
    }


@given(KINDS, st.data())
def test_whoever_reads_on_from_a_number_has_seen_all_rows_as_they_are(
    kinds: list[str], data: st.DataObject
) -> None:
    messages = transcript(kinds)
    seen: dict[str, AgentMessage] = {}
    head = 0
    while head < len(messages):
        further = data.draw(st.integers(head + 1, len(messages)))
        rows = build_agent_messages(SESSION_ID, messages[:further])
        # What has a greater number than the last one seen; a completed call comes again.
        seen |= {row.id: row for row in rows if row.sequence > head}
        head = further

    assert sorted(seen.values(), key=lambda row: row.sequence) == build_agent_messages(
        SESSION_ID, messages
    )


@given(st.text(min_size=1))
def test_every_text_is_the_same_on_the_wire(text: str) -> None:
    clean = text.replace("\x00", "\u2400")
    row = a_message(role=Role.USER, parts=(Text(text=clean),))

    wire = msgspec.json.encode(build_agent_messages(SESSION_ID, [row]))

    assert msgspec.json.decode(wire)[0]["content"] == {"type": "text", "text": clean}


@demands("S1-090d")
@given(
    st.dictionaries(st.text(max_size=8) | st.just("reason"), JSON, max_size=4),
    st.none() | st.text(min_size=1),
)
def test_why_a_session_ended_stands_beside_its_metadata(
    metadata: dict[str, Any], reason: str | None
) -> None:
    session = a_session(
        metadata=metadata,
        reason=reason,
        status=Status.IDLE if reason is None else Status.COMPLETED,
        repo_id=an_id(3),
    )

    shown = session_form(session).metadata

    assert shown == (metadata if reason is None else {**metadata, "reason": reason})


def transcript(kinds: list[str]) -> list[Message]:
    """Return rows of these kinds; a result is that of the first call without one, or a text."""
    rows: list[Message] = []
    waiting: list[int] = []
    for number, kind in enumerate(kinds, start=1):
        role, part = _part(kind, number, waiting)
        rows.append(a_message(id=an_id(number), sequence=number, role=role, parts=(part,)))
    return rows


def _part(kind: str, number: int, waiting: list[int]) -> tuple[Role, Part]:
    match kind:
        case "call":
            waiting.append(number)
            call_id = CallId(f"c{number}")
            return Role.TOOL_CALL, ToolCall(id=call_id, name="look", arguments={"n": number})
        case "result" if waiting:
            of = waiting.pop(0)
            return Role.TOOL_RESULT, ToolResult(
                call_id=CallId(f"c{of}"), name="look", status=ResultStatus.OK, result=of
            )
        case "thought":
            return Role.ASSISTANT, Reasoning(text="hm")
        case "agent":
            return Role.ASSISTANT, Text(text="yes")
        case _:
            return Role.USER, Text(text="hello")
