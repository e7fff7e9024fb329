"""Rows that were brought from elsewhere are told at their place, whatever turn they lie between."""

from holdfast.domain.messages import Role, Text
from holdfast.engine.projection import NO_RESULT, project
from holdfast.ports.llm import LlmMessage, LlmToolCall
from tests.engine.builders import a_row, assistant, call, result, user


def _said(*messages: LlmMessage) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def test_a_conversation_from_elsewhere_is_told_before_the_first_turn() -> None:
    history = [
        a_row(1, Role.SYSTEM, Text(text="They spoke about tea."), turn=0),
        assistant(2, "Green or black?", turn=0),
        user(3, "Green.", turn=1),
    ]

    assert _said(*project(history, turn=1)) == [
        ("user", "(Note: They spoke about tea.)"),
        ("assistant", "Green or black?"),
        ("user", "Green."),
    ]


def test_what_is_recorded_between_two_turns_is_told_between_them() -> None:
    history = [
        user(1, "a", turn=1),
        assistant(2, "b", turn=1),
        assistant(3, "c", turn=0),
        user(4, "d", turn=2),
    ]

    assert _said(*project(history, turn=2)) == [
        ("user", "a"),
        ("assistant", "b\n\nc"),
        ("user", "d"),
    ]


def test_what_is_recorded_while_a_turn_runs_is_told_to_the_next_one() -> None:
    history = [
        user(1, "a", turn=1),
        a_row(2, Role.SYSTEM, Text(text="n"), turn=0),
        assistant(3, "b", turn=1),
        user(4, "c", turn=2),
    ]

    assert _said(*project(history[:2], turn=1)) == [("user", "a")]
    assert _said(*project(history, turn=2)) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "(Note: n)\n\nc"),
    ]


def test_a_recorded_call_is_told_with_its_result_or_without() -> None:
    asked = call(1, "call-1", turn=0)
    answered = result(2, "call-1", "x", turn=0)

    for rows, told in ([asked, answered], "x"), ([asked], NO_RESULT):
        request = project([*rows, user(3, "a", turn=1)], turn=1)

        calls = [message.calls for message in request if message.calls]
        assert [[each.id for each in made] for made in calls] == [["call-1"]]
        assert isinstance(calls[0][0], LlmToolCall)
        assert [message.text for message in request if message.role == "tool"] == [told]
