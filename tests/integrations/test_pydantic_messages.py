"""Messages of pydantic-ai as messages of ours, part by part."""

from typing import Any

import pydantic_ai.messages as m

from holdfast.domain.messages import (
    Compaction,
    Media,
    Notice,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.pydantic_ai_messages import entry_of
from tests.marks import each_case

PICTURE = m.BinaryContent(b"\x89PNG", media_type="image/png")
AUDIO = m.BinaryContent(b"RIFF", media_type="audio/wav")


def rows(message: Any) -> list[tuple[Role, list[type]]]:
    """Return the role of each message that is made, and the kinds of its parts."""
    return [
        (draft.role, [type(part) for part in draft.parts]) for draft in entry_of(message).drafts
    ]


@each_case(
    ("part", "role", "kinds"),
    [
        (m.SystemPromptPart("Be short."), Role.SYSTEM, [Notice]),
        (m.UserPromptPart("Hi"), Role.USER, [Text]),
        (m.UserPromptPart(["Look", PICTURE, m.CachePoint()]), Role.USER, [Text, Media]),
        (m.UserPromptPart([m.ImageUrl("https://example.com/a.png")]), Role.USER, [Text]),
        (m.SpeechPart(speaker="user", transcript="Hi", audio=AUDIO), Role.USER, [Media, Text]),
        (m.SpeechPart(speaker="user", transcript="Hi"), Role.USER, [Text]),
        (m.ToolReturnPart("pay", "paid", "t"), Role.TOOL_RESULT, [ToolResult]),
        (m.ToolReturnPart("pay", "again", "t", outcome="retried"), Role.TOOL_RESULT, [ToolResult]),
        (m.RetryFeedbackPart("again", retry=m.RetryInfo(cause="x")), Role.SYSTEM, [Notice]),
    ],
)
def test_a_part_of_a_request_is_one_message(part: Any, role: Role, kinds: list[type]) -> None:
    assert rows(m.ModelRequest(parts=[part])) == [(role, kinds)]


@each_case(
    ("part", "role", "kinds"),
    [
        (m.TextPart("Hi"), Role.ASSISTANT, [Text]),
        (m.ThinkingPart("Hm"), Role.ASSISTANT, [Reasoning]),
        (m.FilePart(PICTURE), Role.ASSISTANT, [Media]),
        (m.SpeechPart(speaker="assistant", transcript="Hi"), Role.ASSISTANT, [Text]),
        (m.ToolCallPart("pay", {"cents": 5}, "t"), Role.TOOL_CALL, [ToolCall]),
        (m.NativeToolCallPart("search", '{"q": 1}', "t"), Role.TOOL_CALL, [ToolCall]),
        (m.NativeToolReturnPart("search", ["a"], "t"), Role.TOOL_RESULT, [ToolResult]),
        (m.CompactionPart("So far."), Role.SYSTEM, [Compaction]),
    ],
)
def test_a_part_of_a_response_is_one_message(part: Any, role: Role, kinds: list[type]) -> None:
    assert rows(m.ModelResponse(parts=[part])) == [(role, kinds)]


def test_instructions_are_shown_when_they_change() -> None:
    request = m.ModelRequest(parts=[m.UserPromptPart("Hi")], instructions="Be short.")

    found = [
        [draft.role for draft in entry_of(request, told).drafts] for told in (None, "Be short.")
    ]

    assert found == [[Role.USER, Role.SYSTEM], [Role.USER]]


def test_what_is_said_in_one_response_is_one_message_up_to_a_call() -> None:
    parts = [m.ThinkingPart("Hm"), m.TextPart("I pay."), m.ToolCallPart("pay", {}, "t")]

    assert rows(m.ModelResponse(parts=parts)) == [
        (Role.ASSISTANT, [Reasoning, Text]),
        (Role.TOOL_CALL, [ToolCall]),
    ]


@each_case(
    ("outcome", "status"),
    [
        ("success", ResultStatus.OK),
        ("failed", ResultStatus.ERROR),
        ("denied", ResultStatus.ERROR),
        ("retried", ResultStatus.ERROR),
        ("interrupted", ResultStatus.UNKNOWN),
    ],
)
def test_a_result_says_how_its_call_ended(outcome: Any, status: ResultStatus) -> None:
    answered = m.ToolReturnPart("pay", "text", "t", outcome=outcome)

    (draft,) = entry_of(m.ModelRequest(parts=[answered])).drafts

    (part,) = draft.parts
    assert isinstance(part, ToolResult)
    assert part.status is status


@each_case(
    ("text", "status"),
    [
        (UNKNOWN_OUTCOME, ResultStatus.UNKNOWN),
        (NOT_RUN, ResultStatus.SKIPPED),
        ("paid", ResultStatus.OK),
    ],
)
def test_what_was_said_of_a_call_is_its_outcome(text: str, status: ResultStatus) -> None:
    (draft,) = entry_of(m.ModelRequest(parts=[m.ToolReturnPart("pay", text, "t")])).drafts

    (part,) = draft.parts
    assert isinstance(part, ToolResult)
    assert part.status is status
