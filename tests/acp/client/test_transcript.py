"""The record that a program is given when it has forgotten the conversation."""

from holdfast.acp.client.prompt import HEADING, RESULT_LONGEST, TRANSCRIPT_LONGEST, transcript
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolError,
)
from tests.builders import a_message, a_tool_call, a_tool_result, a_transcript

END = "This is the end of the record."


def turn(number: int, *rows: Message) -> list[Message]:
    return [a_message(turn=number, role=row.role, parts=row.parts) for row in rows]


def asked(text: str) -> Message:
    return a_message(text)


def answered(text: str) -> Message:
    return a_message(text, role=Role.ASSISTANT)


def test_without_a_past_there_is_no_record() -> None:
    now = turn(1, asked("hello"))

    assert transcript((), turn=1) is None
    assert transcript(a_transcript(*now), turn=1) is None


def test_the_past_is_told_turn_by_turn_without_what_is_asked_now() -> None:
    picture = Media(mime_type="image/png", ref="media://x", name="a.png")
    call = a_message(role=Role.TOOL_CALL, parts=(a_tool_call(id="c", name="read"),))
    result = a_message(
        role=Role.TOOL_RESULT, parts=(a_tool_result(call_id="c", name="read", result={"n": 1}),)
    )
    failed = a_message(
        role=Role.TOOL_RESULT,
        parts=(
            a_tool_result(
                call_id="d",
                status=ResultStatus.ERROR,
                error=ToolError(code="failed", message="no"),
            ),
        ),
    )
    history = a_transcript(
        *turn(
            1,
            a_message(parts=(Text(text="See "), picture)),
            a_message(role=Role.ASSISTANT, parts=(Reasoning(text="hm"),)),
            call,
            result,
            answered("I see."),
        ),
        *turn(
            2,
            asked("And?"),
            a_message(role=Role.TOOL_CALL, parts=(a_tool_call(id="d", name="run"),)),
            failed,
            a_message(role=Role.TOOL_CALL, parts=(a_tool_call(id="e", name="run"),)),
            a_message(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.ABORTED, text="Stopped."),)),
            a_message(
                role=Role.SYSTEM, parts=(Notice(code=NoticeCode.INFORMATION, text="By the way"),)
            ),
        ),
        *turn(3, asked("now")),
    )

    assert transcript(history, turn=3) == "\n\n".join(
        [
            HEADING,
            "User: See [a.png]",
            'Tool read: {"path":"a.txt"}\n{"n":1}',
            "Assistant: I see.",
            "User: And?",
            'Tool run: {"path":"a.txt"}\n(error: no)',
            'Tool run: {"path":"a.txt"}\n(no result)',
            "(Stopped.)",
            END,
        ]
    )


def test_a_long_result_is_cut_and_says_so() -> None:
    long = a_tool_result(result="x" * (RESULT_LONGEST + 5))
    history = turn(
        1,
        a_message(role=Role.TOOL_CALL),
        a_message(role=Role.TOOL_RESULT, parts=(long,)),
    )

    told = transcript(a_transcript(*history), turn=2)

    cut = "x" * RESULT_LONGEST + "[… 5 characters left out …]"
    assert told == f'{HEADING}\n\nTool read_file: {{"path":"a.txt"}}\n{cut}\n\n{END}'


def test_the_newest_turns_are_kept_and_the_others_are_counted() -> None:
    history = a_transcript(
        *(row for number in range(1, 6) for row in turn(number, asked(str(number) * 30_000)))
    )

    told = transcript(history, turn=6)

    assert told is not None
    assert len(told) <= TRANSCRIPT_LONGEST
    assert told.split("\n\n") == [
        HEADING,
        "[… 2 earlier turns are left out …]",
        *(f"User: {str(number) * 30_000}" for number in (3, 4, 5)),
        END,
    ]


def test_of_one_turn_that_is_too_long_the_end_is_kept() -> None:
    history = a_transcript(
        *turn(1, asked("first")), *turn(2, asked("x" * TRANSCRIPT_LONGEST), answered("the end"))
    )

    told = transcript(history, turn=3)

    assert told is not None
    assert len(told) <= TRANSCRIPT_LONGEST
    assert told.startswith(
        f"{HEADING}\n\n[… 1 earlier turns are left out …]\n\n"
        "[… the beginning of this turn is left out …]\nxxx"
    )
    assert told.endswith(f"x\n\nAssistant: the end\n\n{END}")
