"""What was said elsewhere can be written down: it starts nothing, and every call has one result."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.calls import CallState
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.messages import (
    Media,
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.domain.sessions import Session, Status
from tests.builders import an_id
from tests.houses import House, current, open_house, played, texts
from tests.marks import each_case
from tests.stand_ins import Gate, GatedRuntime, a_start, an_answer, an_intent

pytestmark = pytest.mark.anyio

ID = MessageId(an_id(60))
NOTE = MessageDraft(role=Role.SYSTEM, parts=(Text(text="A note."),))
ANSWER = MessageDraft(role=Role.ASSISTANT, parts=(Text(text="Green or black?"),))
CALL = MessageDraft(
    role=Role.TOOL_CALL,
    parts=(ToolCall(id=CallId("call-9"), name="search", arguments={"query": "tea"}),),
)


def a_result(call_id: str = "call-9", **changes: Any) -> MessageDraft:
    """Return the result of a call; whoever records it need not know the call's name."""
    part = ToolResult(call_id=CallId(call_id), name="", status=ResultStatus.OK, result=["x"])
    return MessageDraft(role=Role.TOOL_RESULT, parts=(replace(part, **changes),))


@pytest.fixture
async def session(quiet: Holdfast) -> Session:
    """Open a session in which nothing happens by itself."""
    return await quiet.open()


async def _refused(house: Holdfast, session: Session, draft: MessageDraft) -> HoldfastError:
    before = await current(house, session)
    with pytest.raises(HoldfastError) as caught:
        await house.messages.record(house.owner, session.id, draft)
    assert await current(house, session) == before
    return caught.value


async def test_a_conversation_is_brought_in_row_by_row(quiet: Holdfast, session: Session) -> None:
    drafts = (NOTE, ANSWER, CALL, a_result())

    made = [
        await quiet.messages.record_idempotent(quiet.owner, session.id, draft) for draft in drafts
    ]

    rows = await quiet.read(session.id)
    assert tuple(each.value for each in made) == rows
    assert [each.is_new for each in made] == [True] * 4
    assert [(row.sequence, row.turn, row.role) for row in rows] == [
        (number, 0, draft.role) for number, draft in enumerate(drafts, 1)
    ]
    assert rows[3].parts == (
        ToolResult(call_id=CallId("call-9"), name="search", status=ResultStatus.OK, result=["x"]),
    )
    shown = await current(quiet, session)
    assert (shown.status, shown.turn, shown.title) == (Status.PENDING, 0, None)


async def test_a_recorded_row_starts_no_turn_and_the_next_one_hears_it(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.messages.record(house.owner, session.id, ANSWER)
        await house.send(session.id, "Green.")
        rows = await played(house, session.id)

    assert len(runtime.turns) == 1
    assert runtime.turns[0].history == rows[:2]
    assert texts(rows)[:2] == [("assistant", "Green or black?"), ("user", "Green.")]


async def test_a_recorded_result_settles_its_call(quiet: Holdfast, session: Session) -> None:
    await quiet.messages.record(quiet.owner, session.id, CALL)
    open_call = await quiet.calls.get(quiet.owner, session.id, "call-9")

    await quiet.messages.record(quiet.owner, session.id, a_result())

    call = await quiet.calls.get(quiet.owner, session.id, "call-9")
    assert (open_call.state, open_call.turn) == (CallState.INTENDED, 0)
    assert (call.state, call.result_sequence) == (CallState.FINISHED, 2)


@pytest.mark.parametrize("call_id", ["call-9", "never"])
async def test_a_result_needs_a_call_that_waits_for_it(
    quiet: Holdfast, session: Session, call_id: str
) -> None:
    for draft in (CALL, a_result()):
        await quiet.messages.record(quiet.owner, session.id, draft)

    refused = await _refused(quiet, session, a_result(call_id, result="other"))

    assert isinstance(refused, Conflict)
    assert refused.code is Code.CALL_NOT_OPEN


async def test_a_call_of_a_taken_id_is_refused(quiet: Holdfast, session: Session) -> None:
    await quiet.messages.record(quiet.owner, session.id, CALL)

    assert (await _refused(quiet, session, CALL)).code is Code.ID_REUSED


@pytest.mark.parametrize("draft", [NOTE, CALL, a_result("call-8")])
async def test_a_recorded_row_with_an_id_may_be_repeated(
    quiet: Holdfast, session: Session, draft: MessageDraft
) -> None:
    asked = ToolCall(id=CallId("call-8"), name="x", arguments={})
    await quiet.messages.record(
        quiet.owner, session.id, MessageDraft(role=Role.TOOL_CALL, parts=(asked,))
    )

    first = await quiet.messages.record_idempotent(quiet.owner, session.id, replace(draft, id=ID))
    again = await quiet.messages.record_idempotent(quiet.owner, session.id, replace(draft, id=ID))

    assert (first.is_new, again.is_new, again.value) == (True, False, first.value)
    other = replace(NOTE, id=ID, parts=(Text(text="other"),))
    assert (await _refused(quiet, session, other)).code is Code.MESSAGE_ID_REUSED


async def test_the_id_of_a_sent_message_is_taken_for_recorded_ones(
    quiet: Holdfast, session: Session
) -> None:
    await quiet.send(session.id, "hello", id=ID)

    refused = await _refused(quiet, session, replace(NOTE, id=ID))

    assert refused.code is Code.MESSAGE_ID_REUSED


@pytest.fixture
async def busy(home: Path, outside: Environment) -> AsyncIterator[tuple[House, Session, Gate]]:
    """Open a house in which a turn has started a call and waits."""
    gate = Gate()
    play = [(an_intent(), a_start()), gate, an_answer("done")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        yield house, session, gate


async def test_while_a_turn_runs_only_notes_are_recorded(
    busy: tuple[House, Session, Gate],
) -> None:
    house, session, _ = busy

    for draft in (ANSWER, CALL):
        refused = await _refused(house, session, draft)
        assert isinstance(refused, Conflict)
        assert refused.code is Code.SESSION_RUNNING
    # The call of the turn is open, and nobody's but the turn's.
    assert (await _refused(house, session, a_result("call-1"))).code is Code.CALL_NOT_OPEN
    made = await house.messages.record_idempotent(house.owner, session.id, NOTE)
    assert (made.value.turn, made.value.sequence) == (0, 3)


async def test_a_session_that_has_ended_takes_no_row(quiet: Holdfast, session: Session) -> None:
    await quiet.sessions.close(quiet.owner, session.id)

    assert (await _refused(quiet, session, NOTE)).code is Code.SESSION_CLOSED


def _words(role: Role, *parts: Any) -> MessageDraft:
    return MessageDraft(role=role, parts=parts)


@each_case(
    ("draft", "code"),
    [
        (_words(Role.USER, Text(text="hello")), Code.ROLE_NOT_ALLOWED),
        (_words(Role.ASSISTANT), Code.MESSAGE_EMPTY),
        (_words(Role.ASSISTANT, Text(text=" \n")), Code.MESSAGE_EMPTY),
        (_words(Role.SYSTEM, Text(text="a\x00")), Code.INVALID_TEXT),
        (_words(Role.SYSTEM, Text(text="\ud800")), Code.INVALID_TEXT),
        (_words(Role.SYSTEM, Text(text="a" * (1 << 20))), Code.MESSAGE_TOO_LARGE),
        (_words(Role.SYSTEM, Notice(code=NoticeCode.ERROR, text="x")), Code.MESSAGE_INVALID),
        (_words(Role.ASSISTANT, ToolCall(id=CallId("x"), name="x", arguments={})), None),
        (_words(Role.TOOL_CALL, ToolCall(id=CallId(""), name="x", arguments={})), None),
        (_words(Role.TOOL_CALL, ToolCall(id=CallId("x"), name="", arguments={})), None),
        (
            _words(Role.TOOL_CALL, ToolCall(id=CallId("x"), name="x", arguments={"a": "\ud800"})),
            None,
        ),
        (_words(Role.TOOL_CALL, ToolCall(id=CallId("x"), name="x", arguments={"a": {1j}})), None),
        (a_result("y" * 256), Code.INVALID_TEXT),
        (replace(NOTE, id=MessageId("x")), Code.INVALID_ID),
        (
            _words(Role.ASSISTANT, Media(mime_type="image/png", ref="media://sha256-" + "0" * 64)),
            Code.MEDIA_NOT_FOUND,
        ),
    ],
)
async def test_what_is_not_valid_is_not_recorded(
    quiet: Holdfast, session: Session, draft: MessageDraft, code: Code | None
) -> None:
    refused = await _refused(quiet, session, draft)

    assert isinstance(refused, Invalid)
    assert code in {None, refused.code}


async def test_pictures_of_an_answer_are_recorded_by_their_handles(
    quiet: Holdfast, session: Session
) -> None:
    ref = await quiet.media.keep(quiet.owner, session.id, b"picture", mime_type="image/png")
    draft = _words(Role.ASSISTANT, Media(mime_type="image/png", ref=ref))

    made = await quiet.messages.record_idempotent(quiet.owner, session.id, draft)

    assert isinstance(made.value, Message)
    assert made.value.parts == draft.parts
