"""The past of a session as text."""

import pytest

from holdfast.api import Holdfast
from holdfast.cli.chat.transcript import last_turns, lines_of, lines_of_turns
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolError,
)
from tests.builders import a_message, a_tool_call, a_tool_result
from tests.marks import each_case


@each_case(
    ("row", "lines"),
    [
        (a_message("one\ntwo"), ["> one\n  two"]),
        (a_message("yes", role=Role.ASSISTANT), ["yes"]),
        (a_message(role=Role.TOOL_CALL, parts=(a_tool_call(),)), ['[read_file {"path":"a.txt"}]']),
        (
            a_message(role=Role.TOOL_RESULT, parts=(a_tool_result(result="a\nb"),)),
            ["[read_file: ok: a b]"],
        ),
        (
            a_message(
                role=Role.TOOL_RESULT,
                parts=(
                    a_tool_result(
                        status=ResultStatus.DENIED,
                        result=None,
                        error=ToolError(code="denied", message="you may not"),
                    ),
                ),
            ),
            ["[read_file: denied: you may not]"],
        ),
        (
            a_message(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.ABORTED, text="stopped"),)),
            ["[stopped]"],
        ),
        (a_message(role=Role.ASSISTANT, parts=(Reasoning(text="hm"),)), []),
    ],
)
def test_a_row_is_shown_as_who_said_it(row: Message, lines: list[str]) -> None:
    assert lines_of(row) == lines


def test_pictures_are_not_text() -> None:
    parts: tuple[Part, ...] = (Text(text="look"), Media(mime_type="image/png", ref="media://x"))

    assert lines_of(a_message(parts=parts)) == ["> look"]


@pytest.mark.anyio
async def test_the_last_turns_are_read_backwards_page_by_page(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.chat.transcript.PAGE", 2)
    session = await quiet.open()
    for number in range(5):
        await quiet.send(session.id, str(number))
        await quiet.sessions.close(quiet.owner, session.id)
        await quiet.sessions.resume(quiet.owner, session.id)
    seen = await quiet.sessions.get(quiet.owner, session.id)

    every = await last_turns(quiet, seen, None)
    few = await last_turns(quiet, seen, 1)

    assert [turn.number for turn in every] == [1]
    assert few == every
    assert lines_of_turns(few) == ["> 0", "> 1", "> 2", "> 3", "> 4", ""]


@pytest.mark.anyio
async def test_a_session_without_messages_has_no_past(quiet: Holdfast) -> None:
    assert await last_turns(quiet, await quiet.open(), 20) == []
