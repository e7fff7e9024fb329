"""A message that arrives while a turn runs: it waits, is refused, or stops the turn."""

from pathlib import Path

import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import Event, Payload, TurnEnded
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import OnBusy, Status, StopReason
from tests.builders import an_id
from tests.houses import current, open_house, played, texts
from tests.marks import demands, each_case
from tests.stand_ins import Gate, GatedRuntime, an_answer

pytestmark = pytest.mark.anyio

ID = an_id(80)


async def endings(house: Holdfast, session_id: SessionId) -> list[Payload]:
    """Return how the turns of a session that rests have ended."""
    page = await house.events.list(house.owner, session_id)
    news = [item.payload for item in page.items if isinstance(item, Event)]
    return [payload for payload in news if isinstance(payload, TurnEnded)]


async def test_what_waits_together_is_one_turn(quiet: Holdfast) -> None:
    session = await quiet.open()

    sent = [await quiet.send(session.id, text) for text in ("one", "two")]

    assert [(row.sequence, row.turn) for row in sent] == [(1, 1), (2, 1)]


@demands("S0-040")
async def test_a_message_that_arrives_in_a_turn_belongs_to_the_next(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("first")], [an_answer("second")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()

        queued = [await house.send(session.id, text) for text in ("two", "three")]
        assert [(row.sequence, row.turn) for row in queued] == [(2, 2), (3, 2)]

        gate.open()
        rows = await played(house, session.id)
        assert [(row.turn, row.text) for row in rows] == [
            (1, "one"),
            (2, "two"),
            (2, "three"),
            (1, "first"),
            (2, "second"),
        ]
        assert await endings(house, session.id) == [
            TurnEnded(stop_reason=StopReason.STOP, more_turns=True),
            TurnEnded(stop_reason=StopReason.STOP),
        ]


async def test_a_message_may_be_refused_while_a_turn_runs(home: Path, outside: Environment) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()

        with pytest.raises(Conflict) as caught:
            await house.send(session.id, "two", on_busy=OnBusy.REJECT)

        assert caught.value.code is Code.TURN_RUNNING
        assert len(await house.read(session.id)) == 1


async def test_a_message_may_stop_the_turn_and_be_played_next(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate], [an_answer("better")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()

        message = await house.send(session.id, "two", on_busy=OnBusy.INTERRUPT)

        assert message.turn == 2
        assert texts(await played(house, session.id)) == [
            ("user", "one"),
            ("system", "The turn was stopped by its user."),
            ("user", "two"),
            ("assistant", "better"),
        ]
        assert await endings(house, session.id) == [
            TurnEnded(stop_reason=StopReason.ABORTED, more_turns=True),
            TurnEnded(stop_reason=StopReason.STOP),
        ]
        assert (await current(house, session)).last_stop is StopReason.STOP


async def test_repeating_a_message_that_stopped_a_turn_stops_nothing_again(
    home: Path, outside: Environment
) -> None:
    first, second = Gate(), Gate()
    async with open_house(home, GatedRuntime([first], [second]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await first.reached()
        message = await house.send(session.id, "two", id=ID, on_busy=OnBusy.INTERRUPT)
        await second.reached()

        assert await house.send(session.id, "two", id=ID, on_busy=OnBusy.INTERRUPT) == message
        assert (await current(house, session)).status is Status.RUNNING


@each_case("on_busy", list(OnBusy))
async def test_how_a_busy_session_is_met_is_no_matter_while_it_is_idle(
    quiet: Holdfast, on_busy: OnBusy
) -> None:
    session = await quiet.open()

    assert (await quiet.send(session.id, "hello", on_busy=on_busy)).turn == 1
