"""What may be recorded: any role but a user's, in words, calls and results of a decent size."""

import pytest

from holdfast.domain.drafts import MessageDraft, require_recordable
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    Role,
    Text,
)
from tests.builders import a_tool_call, a_tool_result
from tests.marks import each_case


def _draft(role: Role, *parts: Part) -> MessageDraft:
    return MessageDraft(role=role, parts=parts)


PICTURE = Media(mime_type="image/png", ref="media://sha256-0")


@each_case(
    "draft",
    [
        _draft(Role.SYSTEM, Text(text="x")),
        _draft(Role.ASSISTANT, Reasoning(text="x")),
        _draft(Role.ASSISTANT, Text(text=" "), PICTURE),
        _draft(Role.TOOL_CALL, a_tool_call()),
        _draft(Role.TOOL_RESULT, a_tool_result(name="")),
    ],
)
def test_what_is_valid_is_returned_as_it_is(draft: MessageDraft) -> None:
    assert require_recordable(draft) is draft


@each_case(
    ("draft", "code"),
    [
        (_draft(Role.USER, Text(text="x")), Code.ROLE_NOT_ALLOWED),
        (_draft(Role.SYSTEM, Plan(steps=(PlanStep(text="x"),))), Code.MESSAGE_INVALID),
        (_draft(Role.SYSTEM, Compaction(summary="x", dropped_through=1)), Code.MESSAGE_INVALID),
        (_draft(Role.SYSTEM, PICTURE), Code.MESSAGE_INVALID),
        (_draft(Role.ASSISTANT), Code.MESSAGE_EMPTY),
        (_draft(Role.SYSTEM, Text(text=" \n")), Code.MESSAGE_EMPTY),
        (_draft(Role.TOOL_CALL, a_tool_call(), a_tool_call()), Code.MESSAGE_INVALID),
        (_draft(Role.TOOL_CALL, a_tool_call(id=CallId("a\x00"))), Code.INVALID_TEXT),
        (_draft(Role.TOOL_CALL, a_tool_call(arguments={"a": object()})), Code.MESSAGE_INVALID),
        (_draft(Role.TOOL_RESULT, a_tool_result(result="x" * (1 << 20))), Code.MESSAGE_TOO_LARGE),
        (_draft(Role.ASSISTANT, Reasoning(text="a\ud800")), Code.INVALID_TEXT),
    ],
)
def test_what_is_not_valid_is_refused(draft: MessageDraft, code: Code) -> None:
    with pytest.raises(Invalid) as caught:
        require_recordable(draft)

    assert caught.value.code is code
