"""Entries of Claude transcripts as messages; needs no package."""

from typing import Any

from holdfast import Usage
from holdfast.domain.messages import (
    Compaction,
    Notice,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
)
from holdfast.integrations.claude_entries import key_of, mapped
from tests.marks import each_case

USED = {"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 4}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, **fields}


def assistant(block: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"id": "m", "model": "claude-x", "content": [block], "usage": USED, **fields}
    return {"type": "assistant", "message": message}


def attachment(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "attachment", "attachment": {"type": kind, **fields}}


@each_case(
    ("entry", "role", "part"),
    [
        (user("Hi\x00"), Role.USER, Text(text="Hi")),
        (user([{"type": "text", "text": "Hi"}]), Role.USER, Text(text="Hi")),
        (
            user("hook", isMeta=True),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="hook"),
        ),
        (
            user("so far", isCompactSummary=True),
            Role.SYSTEM,
            Compaction(summary="so far", dropped_through=0),
        ),
        (assistant({"type": "text", "text": "Yes"}), Role.ASSISTANT, Text(text="Yes")),
        (
            assistant({"type": "text", "text": "No key"}, model="<synthetic>"),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="No key"),
        ),
        (
            {"type": "system", "subtype": "api_error", "content": "Overloaded"},
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="Overloaded"),
        ),
        (
            attachment("hook_success", content="", stdout="ready"),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="hook_success: ready"),
        ),
        (
            attachment("queued_command", prompt=[{"type": "text", "text": "And then\x00"}]),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="queued_command: And then"),
        ),
        (
            attachment("file", content={"type": "text"}, filename="notes.md"),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="file: notes.md"),
        ),
        (
            attachment("todo_reminder", content=[]),
            Role.SYSTEM,
            Notice(code=NoticeCode.HARNESS, text="todo_reminder"),
        ),
        (assistant({"type": "thinking", "thinking": "Hm"}), Role.ASSISTANT, Reasoning(text="Hm")),
        (
            assistant({"type": "tool_use", "id": "t", "name": "Bash", "input": {"a": 1}}),
            Role.TOOL_CALL,
            ToolCall(id="t", name="Bash", arguments={"a": 1}),
        ),
    ],
)
def test_an_entry_is_one_message(entry: dict[str, Any], role: Role, part: Part) -> None:
    (draft,) = mapped(entry).drafts

    assert (draft.role, draft.parts) == (role, (part,))


@each_case(
    "entry",
    [
        {"type": "system", "subtype": "turn_duration"},
        {"type": "system", "subtype": ["x"]},
        {"type": ["system"]},
        {"type": "mode"},
        {"type": "attachment"},
        {"type": "summary"},
        {"type": "user"},
        user([]),
        "text",
        {},
    ],
)
def test_other_entries_say_nothing(entry: Any) -> None:
    assert mapped(entry).drafts == ()


@each_case(
    ("text", "is_error", "status"),
    [
        ("fine", False, ResultStatus.OK),
        ("no such file", True, ResultStatus.ERROR),
        ("[Tool call interrupted: its outcome is unknown.]", True, ResultStatus.UNKNOWN),
    ],
)
def test_results_have_their_outcome(text: str, is_error: bool, status: ResultStatus) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": text, "is_error": is_error}

    (draft,) = mapped(user([block])).drafts

    (part,) = draft.parts
    assert (part.status, part.call_id) == (status, "t")


def test_usage_is_charged_by_the_answers_id() -> None:
    found = mapped(assistant({"type": "text", "text": "x"})).cost

    assert found is not None
    assert (found.request_id, found.model) == ("m", "anthropic:claude-x")
    assert found.usage == Usage(input=3, output=4, cache_read=10)
    assert mapped(assistant({"type": "text", "text": "x"}, model="<synthetic>")).cost is None


def test_titles_and_keys() -> None:
    assert mapped({"type": "ai-title", "aiTitle": "Looking"}).title == "Looking"
    assert (key_of({"uuid": "a"}), key_of({}), key_of("x")) == ("u:a", None, None)
