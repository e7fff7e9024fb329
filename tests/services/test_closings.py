"""Closing, resuming, failing: what each verb does in each state, and that repeating is harmless."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import (
    MessageAppended,
    SessionClosed,
    SessionOpened,
    SessionResumed,
    TurnEnded,
)
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import Status, StopReason, Verb, transition
from holdfast.services.journal import SessionWriter
from tests.houses import current, key_of, news_until, open_house, payloads, played, texts
from tests.marks import demands, each_case
from tests.stand_ins import Gate, GatedRuntime, SettableClock, asked, streamed

pytestmark = pytest.mark.anyio


@demands("S0-004f", "S1-027", "S1-021", "S1-021c", "S1-022b", "S2-040h")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_a_session_is_closed_with_a_row_that_says_why(
    quiet: Holdfast, clock: SettableClock, status: Status
) -> None:
    session = await quiet.open()
    clock.advance(minutes=5)

    closed = await quiet.sessions.close(
        quiet.owner, session.id, status=status, reason="user_request"
    )

    assert (closed.status, closed.reason) == (status, "user_request")
    assert closed.finished_at == closed.updated_at == clock.now() + timedelta(microseconds=1)
    (row,) = await quiet.read(session.id)
    told = Notice(code=NoticeCode.SESSION_CLOSED, text=f"Session {status}: user_request")
    assert (row.role, row.turn, row.parts) == (Role.SYSTEM, 0, (told,))
    opened, appended, ended = payloads(await news_until(quiet, session.id, SessionClosed))
    assert isinstance(opened, SessionOpened)
    assert appended == MessageAppended(message_id=row.id, role=Role.SYSTEM, sequence=1)
    assert ended == SessionClosed(status=status, reason="user_request")


async def test_a_session_closes_as_completed_and_without_a_reason_by_default(
    quiet: Holdfast,
) -> None:
    session = await quiet.open()

    closed = await quiet.sessions.close(quiet.owner, session.id)

    assert (closed.status, closed.reason) == (Status.COMPLETED, None)
    assert texts(await quiet.read(session.id)) == [("system", "Session completed.")]


async def test_closing_again_gets_the_first_answer(quiet: Holdfast) -> None:
    session = await quiet.open()
    closed = await quiet.sessions.close(quiet.owner, session.id, reason="enough")

    again = await quiet.sessions.close(
        quiet.owner, session.id, status=Status.CANCELLED, reason="other"
    )

    assert again == closed


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.IDLE, Status.FAILED])
async def test_a_session_is_closed_as_completed_or_cancelled_only(
    quiet: Holdfast, status: Status
) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.close(quiet.owner, session.id, status=status)

    assert caught.value.code is Code.INVALID_INPUT
    assert await current(quiet, session) == session


@each_case("reason", ["", "x" * 256, "a\x00b", "\ud800"])
async def test_a_faulty_reason_is_refused(quiet: Holdfast, reason: str) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.close(quiet.owner, session.id, reason=reason)

    assert caught.value.code is Code.INVALID_TEXT


async def test_closing_stops_a_running_turn_and_keeps_its_text(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), (streamed("half"),), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.send(session.id, "two")

        closed = await house.sessions.close(house.owner, session.id, status=Status.CANCELLED)

        assert (closed.status, closed.last_stop) == (Status.CANCELLED, StopReason.ABORTED)
        assert texts(await house.read(session.id)) == [
            ("user", "one"),
            ("user", "two"),
            ("assistant", "half"),
            ("system", "The turn was stopped by its user."),
            ("system", "Session cancelled."),
        ]
        assert (house.coordinator.active(), runtime.closed) == (frozenset(), 1)
        ended = payloads(await news_until(house, session.id, SessionClosed))
        assert [each for each in ended if isinstance(each, TurnEnded)] == [
            TurnEnded(stop_reason=StopReason.ABORTED, priced=False)
        ]


async def test_what_waited_when_a_session_closed_is_played_when_it_is_resumed(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.send(session.id, "two")
        await house.sessions.close(house.owner, session.id)

        await house.sessions.resume(house.owner, session.id)

        assert texts(await played(house, session.id))[-1] == ("assistant", "done")


@demands("S0-005", "S0-004f", "S0-345", "S1-012")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_a_closed_session_can_be_resumed_in_another_process_and_goes_on(
    home: Path, outside: Environment, status: Status
) -> None:
    async with open_holdfast(home, outside=outside) as first:
        session = await first.open()
        await first.send(session.id, "my name is Ada")
        await played(first, session.id)
        await first.sessions.close(first.owner, session.id, status=status, reason="lunch")

    async with open_holdfast(home, outside=outside) as second:
        resumed = (await second.sessions.resume(second.owner, session.id)).session
        await second.send(session.id, "what is my name?")
        rows = await played(second, session.id)

    assert (resumed.status, resumed.reason) == (Status.IDLE, None)
    assert resumed.context == session.context
    assert rows[-1].text == "You said your name is Ada."
    assert [row.sequence for row in rows] == [1, 2, 3, 4, 5]


@demands("S0-004e")
async def test_an_idle_session_is_resumed_in_another_process_as_it_was(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside) as first:
        session = await first.open()
        await first.send(session.id, "2+2?")
        rows = await played(first, session.id)
        idle = await current(first, session)

    async with open_holdfast(home, outside=outside) as second:
        assert (await second.sessions.resume(second.owner, session.id)).session == idle
        assert await second.read(session.id) == rows


async def test_resuming_tells_it_once_and_opens_no_second_time(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.sessions.close(quiet.owner, session.id)

    once = await quiet.sessions.resume(quiet.owner, session.id)
    twice = await quiet.sessions.resume(quiet.owner, session.id)

    assert once == twice
    news = payloads(await news_until(quiet, session.id, SessionResumed))
    assert [type(each) for each in news] == [
        SessionOpened,
        MessageAppended,
        SessionClosed,
        SessionResumed,
    ]
    assert (await current(quiet, session)).last_event == 4


async def test_resuming_an_open_session_changes_nothing(quiet: Holdfast) -> None:
    session = await quiet.open()

    assert (await quiet.sessions.resume(quiet.owner, session.id)).session == session


async def _lose(writer: SessionWriter) -> None:
    writer.update(status=transition(writer.state.status, Verb.LOSE))


@demands("S1-025")
async def test_a_session_that_lost_its_agent_is_complete_readable_and_can_only_be_forked(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        message = await house.send(session.id, "one")
        await house.journal.write(house.owner, session.id, _lose)
        lost = await current(house, session)

        for verb in (house.send(session.id, "two"), house.sessions.resume("local", session.id)):
            with pytest.raises(Conflict) as caught:
                await verb
            assert caught.value.code is Code.SESSION_FAILED
            assert caught.value.details == {"status": Status.FAILED, "remedy": "fork"}

        assert lost.status is Status.FAILED
        assert await house.sessions.close(house.owner, session.id) == lost
        assert (await house.sessions.interrupt(house.owner, session.id)).session == lost
        fork = await house.sessions.fork(house.owner, session.id)
        assert (fork.status, await house.read(fork.id)) == (Status.IDLE, (message,))


async def test_a_lost_session_is_not_played(home: Path, outside: Environment) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await house.journal.write(house.owner, session.id, _lose)

    async with open_house(home, runtime, outside=outside) as house:
        assert (await house.maintenance.recover()).sessions == ()
        assert await house.leases.acquire(await key_of(house, session)) is None
    assert runtime.turns == []
