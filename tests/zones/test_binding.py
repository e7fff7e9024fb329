"""A desk follows the sessions of its agent: opened, replaced, closed, lost, resumed."""

from pathlib import Path

import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.drafts import Outcome
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import Event, Failure, FailureCode, SessionClosed, ZoneArchived
from holdfast.domain.ids import SessionKey
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import Session, Status, StopReason
from holdfast.zones.lines import LineQuery
from tests.houses import news_until, open_house, played, raw
from tests.stand_ins import Gate, GatedRuntime, an_answer, asked

pytestmark = pytest.mark.anyio


async def told(house: Holdfast, session: Session) -> list[object]:
    """Return what a session was told of its desk and its end, in order."""
    news = await house.events.list(house.owner, session.id)
    return [
        item.payload
        for item in news.items
        if isinstance(item, Event) and isinstance(item.payload, ZoneArchived | SessionClosed)
    ]


async def archives(house: Holdfast) -> list[str]:
    """Return the archives of the built-in agent, oldest first."""
    found = await house.zones.list_archives(house.owner, "holdfast")
    return [each.archive_zoneid for each in reversed(found)]


async def key_of(house: Holdfast, session: Session) -> SessionKey:
    head = await house.store.read(lambda tx: tx.sessions.state(house.owner, session.id))
    assert head is not None
    return head.key


async def test_a_session_takes_the_desk_of_its_agent(quiet: Holdfast) -> None:
    session = await quiet.open()

    desk = await quiet.zones.show(quiet.owner, "holdfast")

    assert (desk.zone, desk.session_id) == (f"agent:{session.agent_id}:current", session.id)
    assert desk.files == ()


async def test_the_next_session_finds_the_desk_cleared(quiet: Holdfast) -> None:
    first = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "first")

    second = await quiet.open()

    (archive,) = await archives(quiet)
    assert (await quiet.zones.show(quiet.owner, "holdfast")).session_id == second.id
    assert await told(quiet, first) == [ZoneArchived(zone=archive)]
    assert await told(quiet, second) == []
    await quiet.zones.write_state(quiet.owner, "holdfast", "second")
    await quiet.sessions.close(quiet.owner, first.id)
    assert await archives(quiet) == [archive]
    assert (await quiet.zones.read_state(quiet.owner, "holdfast")).content == "second"


async def test_what_lay_there_before_any_session_is_archived_and_nobody_told(
    quiet: Holdfast,
) -> None:
    await quiet.agents.get(quiet.owner, "holdfast")
    await quiet.zones.append_output(quiet.owner, "holdfast", "left")

    session = await quiet.open()

    assert len(await archives(quiet)) == 1
    assert await told(quiet, session) == []


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_closing_clears_the_desk_before_the_session_ends(
    quiet: Holdfast, status: Status
) -> None:
    session = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "x")

    await quiet.sessions.close(quiet.owner, session.id, status=status)
    await quiet.sessions.close(quiet.owner, session.id, status=status)

    (archive,) = await archives(quiet)
    assert await told(quiet, session) == [ZoneArchived(zone=archive), SessionClosed(status=status)]
    desk = await quiet.zones.show(quiet.owner, "holdfast")
    assert (desk.session_id, desk.files) == (None, ())


async def test_closing_with_an_empty_desk_leaves_no_archive(quiet: Holdfast) -> None:
    session = await quiet.open()

    await quiet.sessions.close(quiet.owner, session.id)

    assert await archives(quiet) == []
    assert (await quiet.zones.show(quiet.owner, "holdfast")).session_id is None


async def test_resuming_restores_nothing_and_takes_no_desk(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "x")
    await quiet.sessions.close(quiet.owner, session.id)

    await quiet.sessions.resume(quiet.owner, session.id)

    desk = await quiet.zones.show(quiet.owner, "holdfast")
    assert (desk.session_id, desk.files) == (None, ())
    assert len(await archives(quiet)) == 1


async def test_forks_and_repeated_openings_leave_the_desk_alone(quiet: Holdfast) -> None:
    session = await quiet.open(id="0192f0c1-0000-7000-8000-000000000001")
    await quiet.zones.write_state(quiet.owner, "holdfast", "x")

    await quiet.open(id="0192f0c1-0000-7000-8000-000000000001")
    await quiet.sessions.fork(quiet.owner, session.id)

    desk = await quiet.zones.show(quiet.owner, "holdfast")
    assert (desk.session_id, len(desk.files)) == (session.id, 1)
    assert await archives(quiet) == []


async def test_a_deleted_session_leaves_its_seat(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "x")

    await quiet.sessions.delete(quiet.owner, session.id)

    assert (await quiet.zones.show(quiet.owner, "holdfast")).session_id is None
    assert (await quiet.zones.read_state(quiet.owner, "holdfast")).content == "x"


async def test_the_session_at_the_desk_is_told_when_somebody_clears_it(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "1")
    first = await quiet.zones.archive(quiet.owner, "holdfast")
    await quiet.zones.write_state(quiet.owner, "holdfast", "2")
    assert first is not None
    restored = await quiet.zones.restore_archive(quiet.owner, "holdfast", first.archived_at_ms)

    assert restored.displaced is not None
    assert await told(quiet, session) == [
        ZoneArchived(zone=first.archive_zoneid),
        ZoneArchived(zone=restored.displaced),
    ]


@pytest.mark.usefixtures("plain")
async def test_a_damaged_session_does_not_keep_another_from_the_desk(quiet: Holdfast) -> None:
    first = await quiet.open()
    await quiet.zones.write_state(quiet.owner, "holdfast", "x")
    with raw(quiet.config.home) as file:
        file.execute("UPDATE sessions SET checksum = checksum + 1 WHERE id = ?", (first.id,))

    second = await quiet.open()

    assert (await quiet.zones.show(quiet.owner, "holdfast")).session_id == second.id


async def test_nothing_is_brought_back_under_a_running_turn(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), gate, an_answer("done")])
    async with open_house(home, runtime, outside=outside) as house:
        await house.agents.get(house.owner, "holdfast")
        await house.zones.write_state(house.owner, "holdfast", "old")
        old = await house.zones.archive(house.owner, "holdfast")
        session = await house.open()
        await house.send(session.id, "go")
        await gate.reached()
        assert old is not None
        with pytest.raises(Conflict) as caught:
            await house.zones.restore_archive(house.owner, "holdfast", old.archived_at_ms)
        gate.open()
        await played(house, session.id)

    assert caught.value.code is Code.TURN_RUNNING


async def test_a_session_that_lost_its_agent_clears_the_desk(
    home: Path, outside: Environment
) -> None:
    failure = Failure(code=FailureCode.AGENT_DIED, message="It is gone.")
    lost = Outcome(stop_reason=StopReason.ERROR, failure=failure, is_lost=True)
    async with open_house(home, GatedRuntime([(lost,)]), outside=outside) as house:
        session = await house.open()
        await house.zones.append_output(house.owner, "holdfast", "its last words")
        await house.send(session.id, "go")
        await news_until(house, session.id, SessionClosed)
        (archive,) = await archives(house)

        assert await told(house, session) == [
            ZoneArchived(zone=archive),
            SessionClosed(status=Status.FAILED, reason="agent_died"),
        ]


async def test_lines_of_a_program_reach_the_desk_of_its_session(quiet: Holdfast) -> None:
    quiet.secrets.remember("KEY", Secret("hunter2-hunter2"))
    session = await quiet.open()
    key = await key_of(quiet, session)

    raws = [b'{"key":"hunter2-hunter2"}', b"\xffhunter2-hunter2\n"]
    assert await quiet.zones.raw_lines(key, raws)

    page = await quiet.zones.read_lines(quiet.owner, "holdfast", LineQuery())
    assert page.lines == ('{"key":"[secret:KEY]"}', "\ufffd[secret:KEY]")
    await quiet.open()
    assert not await quiet.zones.raw_lines(key, [b"late"])
    assert (await quiet.zones.show(quiet.owner, "holdfast")).files == ()
