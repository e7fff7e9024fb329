"""R52: a session of 20 MB is on the screen before anybody wonders where it is."""

import asyncio
import time
from pathlib import Path

import pytest

from holdfast import Holdfast, RunScope, Session, SessionId, open_holdfast
from holdfast.app import Environment
from holdfast.cli.chat.slash_commands import SHOWN_TURNS
from holdfast.cli.chat.transcript import last_turns, lines_of_turns
from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.messages import Role, Text
from holdfast.domain.sessions import OnBusy, StopReason
from holdfast.services.journal import SessionWriter
from holdfast.services.session_lifecycle import admit
from holdfast.services.turns import begin, end
from tests.houses import House, open_house
from tests.marks import proves
from tests.stand_ins import GatedRuntime
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

EVENTS, SIZE = 10_667, 20_000_000
EVENTS_OF_A_TURN = 5
SMALL = 1_500
FIRST, WHOLE, CHECKED = 0.3, 1.0, 0.1
BATCH = 100


@proves("R52")
def test_a_large_session_is_opened_at_once(
    tmp_path: Path, outside: Environment, sized: Sized, tell: Tell
) -> None:
    home, times = tmp_path / "home", sized(quick=1, test=3, torture=20)
    large, small = asyncio.run(written(home, outside))

    first, whole, checked, lines = asyncio.run(opened(home, (large, small), times))

    tell(
        f"{EVENTS} events of {SIZE // 1_000_000} MB: {first * 1000:.0f} ms to the first screen, "
        f"{whole * 1000:.0f} ms to all of it; {SMALL} events checked in {checked * 1000:.0f} ms"
    )
    # A question, its answer and a blank line for each turn.
    assert lines == 3 * (EVENTS // EVENTS_OF_A_TURN)
    assert first <= sized.within(FIRST)
    assert whole <= sized.within(WHOLE)
    assert checked <= sized.within(CHECKED)


async def written(home: Path, outside: Environment) -> tuple[SessionId, SessionId]:
    """Write a large and a small session, turn by turn; return their ids."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        return await lived(house, EVENTS, SIZE), await lived(house, SMALL, SMALL * 100)


async def lived(house: House, events: int, size: int) -> SessionId:
    """Write a session of so many events and bytes, many turns in each transaction."""
    session = await house.open()
    turns = events // EVENTS_OF_A_TURN
    answer = "so many words " * (size // turns // 14)

    async def write(writer: SessionWriter, count: int) -> None:
        await writer.load_turn()
        for _ in range(count):
            said = MessageDraft(role=Role.USER, parts=(Text(text="tell me more"),))
            await admit(writer, said, OnBusy.QUEUE)
            begin(writer)
            turn = writer.state.settled + 1
            writer.add_event(StepDelta(step=1, channel=Channel.TEXT, offset=0, text="so"), turn)
            told = MessageDraft(role=Role.ASSISTANT, parts=(Text(text=answer),))
            writer.add_message(told, turn)
            end(writer, Outcome(stop_reason=StopReason.STOP))

    for start in range(0, turns, BATCH):
        count = min(BATCH, turns - start)
        await house.journal.write(house.owner, session.id, lambda writer, n=count: write(writer, n))
    return session.id


async def opened(
    home: Path, ids: tuple[SessionId, SessionId], times: int
) -> tuple[float, float, float, int]:
    """Open the sessions so often; return the longest times, and the lines of the whole."""
    firsts, wholes, checks, lines = [], [], [], 0
    for _ in range(times):
        # Each time in a store that has just been opened.
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            large, small = [await house.sessions.get(house.owner, each) for each in ids]
            firsts.append((await read(house, large, SHOWN_TURNS))[0])
            seconds, lines = await read(house, large, None)
            wholes.append(seconds)
            started = time.perf_counter()
            report = await house.sessions.verify(house.owner, small.id)
            checks.append(time.perf_counter() - started)
            assert report.faults == ()
    return max(firsts), max(wholes), max(checks), lines


async def read(house: Holdfast, session: Session, most: int | None) -> tuple[float, int]:
    """Read the last turns as a chat that resumes shows them."""
    started = time.perf_counter()
    lines = lines_of_turns(await last_turns(house, session, most))
    return time.perf_counter() - started, len(lines)
