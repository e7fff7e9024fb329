"""Sending a message is writing it down, once, into the turn it belongs to."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.events import (
    Event,
    MessageAppended,
    SessionOpened,
    SessionResumed,
    TurnStarted,
)
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Media, Part, Role, Text, ToolCall
from holdfast.domain.sessions import Created, SessionRequest, Status
from tests.builders import a_transcript, an_id
from tests.houses import current, news_until, payloads
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

ID = an_id(80)
PICTURE = Media(mime_type="image/png", ref="media://sha256-" + "0" * 64)


@demands("S0-003c", "S0-030b", "S1-011", "S1-020b")
async def test_a_message_is_on_disk_when_send_returns(quiet: Holdfast, home: Path) -> None:
    session = await quiet.open()

    message = await quiet.send(session.id, "hello")

    assert a_transcript(message) == (message,)
    assert (message.session_id, message.sequence, message.turn) == (session.id, 1, 1)
    assert (message.role, message.parts) == (Role.USER, (Text(text="hello"),))
    async with open_holdfast(home, scope=RunScope.NONE) as other:
        assert await other.read(session.id) == (message,)


@demands("S1-020c", "S1-091b", "S1-100f", "S2-070b", "S2-070i")
async def test_row_event_and_counters_are_one_entry(quiet: Holdfast, clock: SettableClock) -> None:
    session = await quiet.open()
    clock.advance(minutes=1)

    message = await quiet.send(session.id, "hello")

    opened, appended = await news_until(quiet, session.id, MessageAppended)
    assert isinstance(opened.payload, SessionOpened)
    assert appended.payload == MessageAppended(
        message_id=message.id, role=Role.USER, sequence=message.sequence
    )
    assert (appended.turn, appended.at) == (1, message.created_at)
    stored = await current(quiet, session)
    assert (stored.message_count, stored.last_event, stored.turn, stored.settled) == (1, 2, 1, 0)
    assert stored.updated_at == message.created_at == clock.now()


async def test_a_message_that_resumes_opens_a_closed_session_in_the_same_entry(
    quiet: Holdfast,
) -> None:
    session = await quiet.open()
    await quiet.sessions.close(quiet.owner, session.id, reason="done")
    with pytest.raises(Conflict) as caught:
        await quiet.messages.send_idempotent(quiet.owner, session.id, "hello")

    made = await quiet.messages.send_resuming(quiet.owner, session.id, "hello", id=ID)
    await quiet.sessions.close(quiet.owner, session.id)
    again = await quiet.messages.send_resuming(quiet.owner, session.id, "hello", id=ID)

    assert caught.value.code is Code.SESSION_CLOSED
    assert (made.is_new, again) == (True, Created(value=made.value, is_new=False))
    resumed = (await news_until(quiet, session.id, SessionResumed))[-1]
    assert isinstance(resumed, Event)
    after = await news_until(quiet, session.id, MessageAppended, after=resumed.sequence)
    assert payloads(after) == [
        MessageAppended(message_id=made.value.id, role=Role.USER, sequence=made.value.sequence)
    ]
    # A repeated message is answered and opens nothing.
    assert (await current(quiet, session)).status is Status.COMPLETED


@demands("S2-050c")
async def test_a_client_may_choose_the_message_id(quiet: Holdfast) -> None:
    session = await quiet.open()

    message = await quiet.send(session.id, "hello", id=ID.upper())

    assert message.id == ID


async def test_sending_a_message_again_returns_the_stored_one(quiet: Holdfast) -> None:
    session = await quiet.open()
    message = await quiet.send(session.id, "hello", id=ID)
    await quiet.send(session.id, "and more")

    assert await quiet.send(session.id, "hello", id=ID) == message
    assert len(await quiet.read(session.id)) == 2


async def test_a_message_id_counts_for_the_life_of_its_session(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, scope=RunScope.NONE, outside=outside) as first:
        session = await first.open()
        message = await first.send(session.id, "hello", id=ID)
        await first.sessions.close(first.owner, session.id)

    async with open_holdfast(home, scope=RunScope.NONE, outside=outside) as second:
        assert await second.send(session.id, "hello", id=ID) == message
        assert (await current(second, session)).status is Status.COMPLETED


async def test_ten_clients_that_repeat_themselves_write_one_row(quiet: Holdfast) -> None:
    session = await quiet.open()

    answers = await asyncio.gather(*(quiet.send(session.id, "hello", id=ID) for _ in range(10)))

    assert set(answers) == set(await quiet.read(session.id))
    assert len(set(answers)) == 1


async def test_a_message_id_with_other_content_is_refused(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "hello", id=ID)

    with pytest.raises(Conflict) as caught:
        await quiet.send(session.id, "goodbye", id=ID)

    assert caught.value.code is Code.MESSAGE_ID_REUSED
    assert len(await quiet.read(session.id)) == 1


async def test_the_same_message_id_may_be_used_in_another_session(quiet: Holdfast) -> None:
    one, other = await quiet.open(), await quiet.open()
    await quiet.send(one.id, "hello", id=ID)

    assert (await quiet.send(other.id, "goodbye", id=ID)).text == "goodbye"


@each_case(
    ("content", "code"),
    [
        ("", Code.MESSAGE_EMPTY),
        (" \n\t ", Code.MESSAGE_EMPTY),
        ((), Code.MESSAGE_EMPTY),
        ("a\x00b", Code.INVALID_TEXT),
        ("\ud800", Code.INVALID_TEXT),
        ("x" * ((1 << 20) + 1), Code.MESSAGE_TOO_LARGE),
        ("ä" * ((1 << 19) + 1), Code.MESSAGE_TOO_LARGE),
        ((PICTURE,), Code.MEDIA_NOT_FOUND),
        ((ToolCall(id="c", name="n", arguments={}),), Code.MESSAGE_INVALID),
    ],
)
async def test_a_message_that_cannot_be_sent_leaves_nothing_behind(
    quiet: Holdfast, content: str | tuple[Part, ...], code: Code
) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.send(session.id, content)

    assert caught.value.code is code
    assert await current(quiet, session) == session


async def test_a_mebibyte_can_be_sent(quiet: Holdfast) -> None:
    session = await quiet.open()
    parts = (Text(text="x" * (1 << 20)),)

    message = await quiet.send(session.id, parts)

    assert (message.parts, await quiet.read(session.id)) == (parts, (message,))


async def test_a_message_id_must_be_a_uuid(quiet: Holdfast) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.send(session.id, "hello", id="1")

    assert caught.value.code is Code.INVALID_ID


async def test_the_first_message_gives_a_session_its_title(quiet: Holdfast) -> None:
    session = await quiet.open()

    await quiet.send(session.id, f"  What\n\tis {'x' * 60}?")
    await quiet.send(session.id, "another")

    assert (await current(quiet, session)).title == f"What is {'x' * 51}…"


async def test_a_title_that_was_given_stays(quiet: Holdfast) -> None:
    session = await quiet.open(request=SessionRequest(title="Mine"))

    await quiet.send(session.id, "hello")

    assert (await current(quiet, session)).title == "Mine"


async def test_a_picture_that_nobody_stored_is_refused(quiet: Holdfast) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.send(session.id, (Text(text="look"), PICTURE))

    assert caught.value.code is Code.MEDIA_NOT_FOUND
    assert await quiet.read(session.id) == ()


@demands("S1-021b")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_a_closed_session_takes_no_message(quiet: Holdfast, status: Status) -> None:
    session = await quiet.open()
    await quiet.sessions.close(quiet.owner, session.id, status=status)

    with pytest.raises(Conflict) as caught:
        await quiet.send(session.id, "hello")

    assert caught.value.code is Code.SESSION_CLOSED
    assert caught.value.details == {"status": status, "remedy": "resume"}


@each_case("session_id", [an_id(81), "nonsense", ""])
async def test_an_unknown_session_takes_no_message(quiet: Holdfast, session_id: str) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.send(SessionId(session_id), "hello")

    assert caught.value.code is Code.SESSION_NOT_FOUND


async def test_one_message_can_be_read_by_its_id(quiet: Holdfast) -> None:
    session = await quiet.open()
    sent = [await quiet.send(session.id, text) for text in ("one", "two")]

    found = [await quiet.messages.get(quiet.owner, session.id, row.id) for row in sent]

    assert found == sent


async def test_a_message_of_another_session_is_missing(quiet: Holdfast) -> None:
    one, other = await quiet.open(), await quiet.open()
    message = await quiet.send(one.id, "hello")

    with pytest.raises(HoldfastError) as caught:
        await quiet.messages.get(quiet.owner, other.id, message.id)

    assert caught.value.code is Code.MESSAGE_NOT_FOUND


@demands("S1-014b", "S1-100m", "S2-050g")
async def test_times_grow_with_the_numbers_even_when_the_clock_goes_back(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    first = await quiet.send(session.id, "one")
    clock.wall -= timedelta(days=1)

    later = [await quiet.send(session.id, text) for text in ("two", "three")]

    step = timedelta(microseconds=1)
    assert [row.created_at for row in later] == [
        first.created_at + step,
        first.created_at + 2 * step,
    ]


@demands("S0-032", "S2-050d")
async def test_fifty_senders_at_once_get_dense_numbers(quiet: Holdfast) -> None:
    session = await quiet.open()

    sent = await asyncio.gather(*(quiet.send(session.id, f"{n}") for n in range(50)))

    assert sorted(row.sequence for row in sent) == list(range(1, 51))
    assert tuple(sorted(sent, key=lambda row: row.sequence)) == await quiet.read(session.id)
    assert len({row.id for row in sent}) == 50


async def test_a_turn_begins_only_after_its_message_was_written(holdfast: Holdfast) -> None:
    session = await holdfast.open()

    await holdfast.send(session.id, "2+2?")

    kinds = [type(each) for each in payloads(await news_until(holdfast, session.id, TurnStarted))]
    assert kinds == [SessionOpened, MessageAppended, TurnStarted]
