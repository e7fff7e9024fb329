"""The one grouping of rows, and when a turn is answered."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Compaction,
    Media,
    Message,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    Role,
    Text,
)
from holdfast.domain.turns import (
    Endings,
    TurnRows,
    group_by_turn,
)
from tests.builders import a_message
from tests.domain.strategies import transcripts
from tests.marks import demands, each_case


@given(transcripts())
def test_every_row_of_a_turn_is_in_exactly_one_turn(rows: list[Message]) -> None:
    grouped = group_by_turn(rows)

    told = [row for turn in grouped for row in turn.messages]
    assert told == sorted(
        (row for row in rows if row.turn > 0), key=lambda row: (row.turn, row.sequence)
    )
    assert all(row.turn == turn.number for turn in grouped for row in turn.messages)
    numbers = [turn.number for turn in grouped]
    assert numbers == sorted(set(numbers))
    assert all(turn.messages for turn in grouped)


@given(transcripts(), st.data())
def test_the_grouping_does_not_depend_on_the_order_of_its_input(
    rows: list[Message], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))

    assert group_by_turn(iter(shuffled)) == group_by_turn(rows)


@given(transcripts())
def test_a_turn_of_a_prefix_is_a_prefix_of_the_turn(rows: list[Message]) -> None:
    rows = sorted(rows, key=lambda row: row.sequence)
    whole = {turn.number: turn.messages for turn in group_by_turn(rows)}

    for turn in group_by_turn(rows[: len(rows) // 2]):
        assert turn.messages == whole[turn.number][: len(turn.messages)]


@demands("S0-040")
def test_a_message_queued_in_between_stays_in_its_own_turn() -> None:
    asked = a_message("a", turn=1, sequence=1)
    queued = a_message("b", turn=2, sequence=2)
    answer = a_message("c", turn=1, sequence=3, role=Role.ASSISTANT)
    summary = a_message(
        turn=0,
        sequence=4,
        role=Role.SYSTEM,
        parts=(Compaction(summary="s", dropped_through=1),),
    )

    assert group_by_turn([asked, queued, answer, summary]) == [
        TurnRows(number=1, messages=(asked, answer)),
        TurnRows(number=2, messages=(queued,)),
    ]


def system(*parts: Part) -> Message:
    return a_message(role=Role.SYSTEM, parts=parts)


def assistant(*parts: Part) -> Message:
    return a_message(role=Role.ASSISTANT, parts=parts)


PLAN = Plan(steps=(PlanStep(text="look"),))
ASIDES = {
    "a plan": system(PLAN),
    "a plan and a notice": system(PLAN, Notice(code=NoticeCode.INFORMATION, text="fyi")),
    "an empty row": system(),
    **{
        f"the notice {code}": system(Notice(code=code, text="fyi"))
        for code in NoticeCode
        if code not in sorted(CLOSING_NOTICES)
    },
}
ANSWERS = {
    "text": assistant(Text(text="4")),
    "thought and text": assistant(Reasoning(text="hm"), Text(text="4")),
}
NO_ANSWERS = {
    "a question": a_message("2+2?"),
    "a call": a_message(role=Role.TOOL_CALL),
    "a result": a_message(role=Role.TOOL_RESULT),
    "a thought": assistant(Reasoning(text="hm")),
    "empty text": assistant(Text(text="")),
    "a picture": assistant(Media(mime_type="image/png", ref="media://x")),
    "nothing": assistant(),
    "the system's words": system(Text(text="4")),
    "a summary": system(Compaction(summary="s", dropped_through=1)),
    "a plan that closes": system(PLAN, Notice(code=NoticeCode.ERROR, text="e")),
    **{
        f"the notice {code}": system(Notice(code=code, text="e"))
        for code in sorted(CLOSING_NOTICES)
    },
}
ANY_ROWS = st.lists(
    st.sampled_from([*ASIDES.values(), *ANSWERS.values(), *NO_ANSWERS.values()]), max_size=6
)


def is_answered(rows: Sequence[Message]) -> bool:
    return TurnRows(number=1, messages=tuple(rows)).is_answered


def test_a_turn_without_rows_is_unanswered() -> None:
    assert not is_answered([])


@demands("S0-041")
@pytest.mark.parametrize("row", ANSWERS.values(), ids=ANSWERS)
@given(rows=ANY_ROWS)
def test_a_turn_that_ends_with_text_is_answered(row: Message, rows: list[Message]) -> None:
    assert is_answered([*rows, row])


@pytest.mark.parametrize("row", NO_ANSWERS.values(), ids=NO_ANSWERS)
@given(rows=ANY_ROWS)
def test_a_turn_that_ends_with_anything_else_is_not(row: Message, rows: list[Message]) -> None:
    assert not is_answered([*rows, row])


@pytest.mark.parametrize("row", ASIDES.values(), ids=ASIDES)
@given(rows=ANY_ROWS)
def test_a_plan_or_a_piece_of_information_changes_nothing(
    row: Message, rows: list[Message]
) -> None:
    assert is_answered([*rows, row]) == is_answered(rows)


@demands("S0-041")
def test_text_before_a_tool_call_is_no_answer() -> None:
    question, text = NO_ANSWERS["a question"], ANSWERS["text"]
    call, result = NO_ANSWERS["a call"], NO_ANSWERS["a result"]

    assert not is_answered([question, text, call])
    assert not is_answered([question, text, call, result])
    assert is_answered([question, call, result, text])


def _closing(sequence: int, turn: int, code: NoticeCode) -> Message:
    notice = Notice(code=code, text="x")
    return a_message(role=Role.SYSTEM, parts=(notice,), sequence=sequence, turn=turn)


@each_case("code", sorted(NoticeCode))
def test_the_last_text_of_a_turn_that_ended_badly_was_cut_off(code: NoticeCode) -> None:
    rows = [
        a_message(sequence=1),
        a_message("a", role=Role.ASSISTANT, sequence=2),
        a_message("b", role=Role.ASSISTANT, sequence=3),
        _closing(4, 1, code),
        a_message("c", role=Role.ASSISTANT, sequence=5, turn=2),
        a_message("d", role=Role.ASSISTANT, sequence=6, turn=0),
        _closing(7, 3, NoticeCode.ERROR),
    ]

    endings = Endings()
    endings.add(rows)

    assert endings.interrupted(rows) == ({rows[2].id} if code in CLOSING_NOTICES else frozenset())
    assert not endings.is_undecided(rows[:4])


def test_how_a_text_ended_is_decided_when_a_later_turn_speaks() -> None:
    rows = [
        a_message("a", role=Role.ASSISTANT, sequence=1),
        a_message("waits", sequence=2, turn=2),
        a_message("b", role=Role.ASSISTANT, sequence=3),
        _closing(4, 1, NoticeCode.ABORTED),
        a_message("c", role=Role.ASSISTANT, sequence=5, turn=2),
    ]
    endings = Endings()

    endings.add(rows[:2])
    assert endings.is_undecided(rows[:1])
    endings.add(rows[2:4])
    assert not endings.is_undecided(rows[:1])
    assert endings.is_undecided(rows[2:3])
    endings.add(rows[4:])

    assert not endings.is_undecided(rows[:4])
    assert endings.interrupted(rows) == {rows[2].id}
