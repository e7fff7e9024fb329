"""Items of the OpenAI Agents SDK as messages; needs no package."""

import json
from base64 import b64encode
from typing import Any

import pytest

from holdfast.domain.messages import (
    Compaction,
    Media,
    Notice,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
    media_handle,
)
from holdfast.domain.recordings import NotJsonError
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.openai_items import (
    encode_item,
    entry_of,
    kind_of,
    match_key,
)
from tests.marks import each_case

PICTURE = b"\x89PNG"
CALL = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "pay", "status": "completed"}
OUTPUT = {"type": "function_call_output", "call_id": "c1"}


def messages_of(item: Any) -> list[tuple[Role, tuple[Part, ...]]]:
    return [(draft.role, draft.parts) for draft in entry_of(item).drafts]


def result(value: Any, **fields: Any) -> ToolResult:
    return ToolResult(call_id="c1", name="", status=ResultStatus.OK, result=value, **fields)


@each_case(
    ("item", "role", "part"),
    [
        ({"role": "user", "content": "Hi"}, Role.USER, Text(text="Hi")),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a\x00\ud800"}]},
            Role.USER,
            Text(text="a?"),
        ),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "x"}],
            },
            Role.ASSISTANT,
            Text(text="x"),
        ),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
            },
            Role.ASSISTANT,
            Text(text="no"),
        ),
        (
            {"role": "developer", "content": "Be brief."},
            Role.SYSTEM,
            Notice(code=NoticeCode.INSTRUCTIONS, text="Be brief."),
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
            Role.ASSISTANT,
            Reasoning(text="Hm"),
        ),
        (
            {**CALL, "arguments": '{"cents": 5}'},
            Role.TOOL_CALL,
            ToolCall(id="c1", name="pay", arguments={"cents": 5}),
        ),
        (
            {**CALL, "arguments": "[1"},
            Role.TOOL_CALL,
            ToolCall(id="c1", name="pay", arguments={"_raw": "[1"}),
        ),
        (
            {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"},
            Role.TOOL_CALL,
            ToolCall(id="c1", name="sh", arguments={"input": "ls"}),
        ),
        (
            {"type": "computer_call", "call_id": "c1", "action": {"type": "click"}},
            Role.TOOL_CALL,
            ToolCall(id="c1", name="computer", arguments={"action": {"type": "click"}}),
        ),
        ({**OUTPUT, "output": "5"}, Role.TOOL_RESULT, result("5")),
        (
            {"type": "compaction", "encrypted_content": "zz"},
            Role.SYSTEM,
            Compaction(summary="The provider has compacted the conversation.", dropped_through=0),
        ),
    ],
)
def test_an_item_is_one_message(item: dict[str, Any], role: Role, part: Part) -> None:
    assert messages_of(item) == [(role, (part,))]


@each_case(
    "item",
    [
        {},
        {"type": "mcp_list_tools"},
        {"type": "item_reference", "id": "x"},
        {"type": "reasoning", "summary": [], "encrypted_content": "zz"},
        {"type": "function_call", "name": "pay"},
        {"role": "user", "content": []},
        {"role": ["user"], "content": "Hi"},
        "text",
    ],
)
def test_other_items_are_kept_as_they_are(item: Any) -> None:
    entry = entry_of(item)

    assert (entry.drafts, json.loads(entry.raw)) == ((), item)


def test_a_call_that_the_provider_ran_has_its_result_beside_it() -> None:
    item = {"type": "web_search_call", "id": "w1", "action": {"query": "x"}, "status": "completed"}

    (_, (call,)), (_, (found,)) = messages_of(item)

    assert (call.name, call.arguments) == ("web_search", {"action": {"query": "x"}})
    assert (found.call_id, found.result) == ("w1", "completed")


@each_case(
    ("output", "status"),
    [(UNKNOWN_OUTCOME, ResultStatus.UNKNOWN), (NOT_RUN, ResultStatus.SKIPPED)],
)
def test_what_was_said_of_a_call_is_its_outcome(output: str, status: ResultStatus) -> None:
    ((_, (part,)),) = messages_of({**OUTPUT, "output": output})

    assert (part.status, part.result, part.error.message) == (status, None, output)


def test_pictures_become_media() -> None:
    url = f"data:image/png;base64,{b64encode(PICTURE).decode()}"
    pieces = [{"type": "input_image", "image_url": url}, {"type": "input_image", "image_url": "x"}]

    entry = entry_of({"role": "user", "content": pieces})

    handle = media_handle(PICTURE)
    picture = Media(mime_type="image/png", ref=handle, byte_length=len(PICTURE))
    assert entry.drafts[0].parts == (picture, Text(text="[x]"))
    assert entry.media == (("image/png", PICTURE),)


def test_two_forms_of_an_item_are_the_same_item() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x"}],
    }

    assert match_key({**said, "id": "m1"}) == match_key({**said, "id": "m2", "status": "completed"})
    assert match_key({**CALL, "arguments": "{}"}) == match_key({**CALL, "id": "f2"})
    assert match_key(said) != match_key({**said, "role": "user"})
    assert kind_of({"role": "user"}) == "message"


@each_case("value", [object(), {1, 2}, b"x"])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(NotJsonError):
        encode_item({"content": value})
