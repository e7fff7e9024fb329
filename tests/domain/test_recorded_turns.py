"""Whole turns that were played elsewhere: what is refused, and which rows they become."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.calls import CallState
from holdfast.domain.commits import CommitBuilder, events_of
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.messages import (
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
    to_exported_message,
)
from holdfast.domain.recordings import (
    RECORD_MOST,
    RecordedDraft,
    add_recording,
    recorded,
    require_recording,
)
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import SessionState, Status, StopReason
from holdfast.domain.time import microseconds
from holdfast.domain.tools import Effect
from tests.builders import a_head, a_model, an_id, some_prices
from tests.marks import each_case

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EARLIER = NOW - timedelta(days=1)


def user(text: str = "go", **more: Any) -> RecordedDraft:
    """Return what a person said."""
    return RecordedDraft(role=Role.USER, parts=(Text(text=text),), **more)


def said(text: str = "ok", **more: Any) -> RecordedDraft:
    """Return what a model said."""
    return RecordedDraft(role=Role.ASSISTANT, parts=(Text(text=text),), **more)


def called(id_: str = "c1", **more: Any) -> RecordedDraft:
    """Return a call."""
    part = ToolCall(id=CallId(id_), name="refund", arguments={"order": "17"})
    return RecordedDraft(role=Role.TOOL_CALL, parts=(part,), **more)


def given(id_: str = "c1", status: ResultStatus = ResultStatus.OK) -> RecordedDraft:
    """Return the result of a call."""
    part = ToolResult(call_id=CallId(id_), name="", status=status, result="done")
    return RecordedDraft(role=Role.TOOL_RESULT, parts=(part,))


def odd(*parts: Part, role: Role = Role.USER) -> RecordedDraft:
    """Return a message with any parts."""
    return RecordedDraft(role=role, parts=parts)


WRONG: list[tuple[Any, Code]] = [
    ([], Code.MESSAGE_EMPTY),
    (["go"], Code.INVALID_INPUT),
    ([user(" ")], Code.MESSAGE_EMPTY),
    ([odd(Reasoning(text="x"))], Code.MESSAGE_INVALID),
    ([odd(Text(text="x"), role=Role.TOOL_CALL)], Code.MESSAGE_INVALID),
    ([user()] * (RECORD_MOST + 1), Code.TOO_LARGE),
    ([user("x" * (1 << 20))] * 65, Code.TOO_LARGE),
    ([user(id=MessageId(an_id(1))), said(id=MessageId(an_id(1)))], Code.MESSAGE_ID_REUSED),
    ([user(), given()], Code.CALL_NOT_OPEN),
    ([user(), given(), called()], Code.CALL_NOT_OPEN),
    ([user(), called(), called()], Code.ID_REUSED),
    ([user(), said(usage=Usage(input=1))], Code.INVALID_INPUT),
    ([user(at=NOW), said(at=EARLIER)], Code.INVALID_INPUT),
    ([user(at=NOW + timedelta(seconds=1))], Code.INVALID_INPUT),
    ([user(at=datetime(2026, 1, 1))], Code.INVALID_INPUT),
]


@each_case(("drafts", "code"), WRONG)
def test_a_recording_is_refused_whole(drafts: Any, code: Code) -> None:
    with pytest.raises(HoldfastError) as caught:
        require_recording(drafts, "unknown", now=microseconds(NOW))

    assert caught.value.code is code


def test_calls_without_a_result_may_be_refused() -> None:
    both = [user(), called("a"), called("b"), given("a")]
    odd_choice: Any = "maybe"

    with pytest.raises(HoldfastError) as caught:
        require_recording(both, "reject", now=microseconds(NOW))
    assert caught.value.details == {"calls": ["b"]}
    with pytest.raises(HoldfastError) as caught:
        require_recording(both, odd_choice, now=microseconds(NOW))
    assert caught.value.details == {"field": "on_open_calls"}


def test_a_plain_draft_is_enough_and_a_result_gets_the_name_of_its_call() -> None:
    plain = MessageDraft(role=Role.USER, parts=(Text(text="go"),))

    first, _, result = require_recording(
        [plain, called(), given()], "reject", now=microseconds(NOW)
    )

    assert first == user()
    assert result.parts[0] == replace(given().parts[0], name="refund")


def written(*drafts: RecordedDraft, state: SessionState | None = None, turn: int = 0) -> Any:
    """Return the commit of a recording, and the rows of its messages."""
    ids = iter(range(100, 200))
    builder = CommitBuilder(
        state or a_head(),
        now=microseconds(NOW),
        new_id=lambda _: an_id(next(ids)),
        scrubber=Scrubber(),
    )
    wanted = require_recording(drafts, "unknown", now=microseconds(NOW))
    models = {"maker:model": a_model("maker:model", prices=some_prices()), "a:b": a_model("a:b")}
    rows = add_recording(builder, wanted, models, turn=turn)
    return builder.commit(), rows


def test_a_user_message_begins_a_turn() -> None:
    commit, rows = written(said("before"), user("one"), said(), user("two"))

    assert [row.turn for row in rows] == [0, 1, 1, 2]
    assert recorded(rows, is_new=True).turns == (1, 2)
    assert [(event.turn, event.name) for event in events_of(commit)] == [
        (None, "message.appended"),
        (1, "message.appended"),
        (1, "turn.started"),
        (1, "message.appended"),
        (1, "turn.ended"),
        (2, "message.appended"),
        (2, "turn.started"),
        (2, "turn.ended"),
    ]
    assert b'"recorded":true' in commit.events[1].content
    state = commit.state
    assert (state.turn, state.settled, state.status) == (2, 2, Status.IDLE)
    assert (state.title, state.last_stop) == ("one", StopReason.STOP)


def test_messages_after_a_recording_continue_its_turn() -> None:
    state = a_head(turn=3, settled=3, status=Status.IDLE, title="x")

    commit, rows = written(said("more"), state=state, turn=3)

    assert [row.turn for row in rows] == [3]
    assert commit.events == ()
    assert (commit.state.settled, commit.state.title) == (3, "x")


def test_a_call_is_finished_by_its_result_and_unknown_without_one() -> None:
    commit, rows = written(
        user(),
        called("a", effect=Effect.PURE),
        called("b"),
        given("a"),
        said(),
        called("c"),
        given("c", ResultStatus.DENIED),
    )

    states = {call.id: (call.state, call.effect) for call in commit.calls}
    assert states == {
        "a": (CallState.FINISHED, Effect.PURE),
        "b": (CallState.UNKNOWN, Effect.UNSAFE),
        "c": (CallState.FINISHED, Effect.UNSAFE),
    }
    stored = [row.message for row in commit.messages]
    # The missing result comes before what was said next, so that the turn counts as answered.
    assert [row.role for row in stored[3:6]] == [Role.TOOL_RESULT, Role.TOOL_RESULT, Role.ASSISTANT]
    assert [row for row in stored if row not in rows] == [stored[4]]


def test_times_models_and_costs_are_kept() -> None:
    usage = Usage(input=1_000_000, output=10)
    commit, rows = written(
        user(at=EARLIER),
        said(at=EARLIER, model="maker:model", usage=usage),
        said(model="a:b", usage=usage),
    )

    assert [to_exported_message(row).created_at for row in rows[:2]] == [EARLIER, EARLIER]
    assert rows[2].created_at >= NOW
    assert rows[1].model_id == a_model("maker:model").id
    assert [(entry.request_id, entry.turn, entry.priced) for entry in commit.costs] == [
        (rows[1].id, 1, True),
        (rows[2].id, 1, False),
    ]
    assert commit.costs[0].microcents > 0 == commit.costs[1].microcents
    assert commit.state.microcents == commit.costs[0].microcents
    assert b'"usage":{"input":2000000,"output":20}' in commit.events[-1].content


@each_case(
    ("state", "code"),
    [
        (a_head(turn=1, status=Status.RUNNING), Code.SESSION_RUNNING),
        (a_head(turn=1, status=Status.PENDING), Code.SESSION_RUNNING),
        (a_head(status=Status.COMPLETED), Code.SESSION_CLOSED),
    ],
)
def test_nothing_is_recorded_beside_a_turn_or_in_a_closed_session(
    state: SessionState, code: Code
) -> None:
    with pytest.raises(Conflict) as caught:
        written(user(), state=state)

    assert caught.value.code is code
