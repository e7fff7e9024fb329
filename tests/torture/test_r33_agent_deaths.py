"""R33: wherever somebody else's agent dies, the turn has an end and the record is whole."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.acp.client.tool_calls import CallTracker
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import wait_until
from tests.torture.judgement import judge_notebook
from tests.torture.machine import start_of
from tests.torture.notebooks import read_books
from tests.torture.peered import Ending, Record, Stage, a_stage

pytestmark = pytest.mark.slow

SOON = 5.0


@proves("R33")
def test_an_agent_may_die_after_any_byte_of_its_turn(
    tmp_path: Path, sized: Sized, luck: random.Random, tell: Tell
) -> None:
    extra = sized(quick=1, test=20, torture=150, release=500)
    # A fork of each, or of some where many tests share a machine.
    forks = sized(test=4, torture=1)
    trial = Trial(luck=luck, extra=extra, forks=forks, within=sized.within(SOON))

    ends, faults = asyncio.run(_deaths(tmp_path, trial))

    faults += _damage(tmp_path / "home")
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    tell(f"{told}; {len(faults)} faults")
    assert faults == []


@dataclass(frozen=True)
class Trial:
    """How often the agent dies beside the boundaries, and which of the deaths are gone on from."""

    luck: random.Random
    extra: int
    forks: int
    within: float


async def _deaths(folder: Path, trial: Trial) -> tuple[Counter[str], list[str]]:
    ends: Counter[str] = Counter()
    faults: list[str] = []
    async with a_stage(folder) as stage:
        record = await stage.record()
        agent = await stage.agent(*stage.peer.argv)
        bytes_ = [trial.luck.randrange(1, record.size) for _ in range(trial.extra)]
        for number, size in enumerate(sorted({*record.boundaries(), *bytes_})):
            session, ending = await _death(stage, agent, size)
            ends[f"{ending.stop}/{ending.code}"] += 1
            found = ending.faults(record.told(size), trial.within)
            if number % trial.forks == 0:
                found += await _gone_on(stage, session, record, trial.within)
            faults += [f"after {size} bytes: {fault}" for fault in found]
        pids = [start["pid"] for start in stage.peer.log("start")]
    faults += [f"program {pid} lives" for pid in pids if start_of(pid) is not None]
    return ends, faults


async def _death(stage: Stage, agent: str, size: int) -> tuple[Session, Ending]:
    """Let the agent die after so many bytes of its turn."""
    how = "KILL" if size % 2 else 3
    stage.plays(die={"at_byte": size, "how": how, "from": "session/prompt"})
    session = await stage.session(agent)
    ending = await stage.turn(session)
    if ending.stop == "stop":
        await stage.close(session)
    return session, ending


async def _gone_on(stage: Stage, session: Session, record: Record, within: float) -> list[str]:
    """Have a fork go on from where the agent died, with one that lives."""
    stage.plays()
    fork = await stage.house.sessions.fork(stage.house.owner, session.id)
    again = await stage.turn(fork, "go on")
    await stage.close(fork)
    return [f"in a fork {fault}" for fault in again.faults(record.told(record.size), within)]


@proves("R33")
def test_an_agent_that_died_between_turns_is_there_for_the_next_message(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    deaths = sized(test=6, torture=50, release=150)

    faults = asyncio.run(_between(tmp_path, deaths, sized.within(SOON)))

    faults += _damage(tmp_path / "home")
    tell(f"{deaths} deaths between turns, {len(faults)} faults")
    assert faults == []


async def _between(folder: Path, deaths: int, within: float) -> list[str]:
    faults: list[str] = []
    async with a_stage(folder) as stage:
        whole = (await stage.record()).told(10**9)
        agent = await stage.agent(*stage.peer.argv)
        for number in range(deaths):
            stage.peer.log_file.unlink(missing_ok=True)
            # Dead before, while and after the next message is on its way.
            pause = 0.002 * (number % 5)
            steps = [{"text": "One."}, {"reply": {"stopReason": "end_turn"}}, {"sleep": pause}]
            stage.plays(runs=[{"on": {"session/prompt": [*steps, {"exit": 3}]}}, {}])
            session = await stage.session(agent)
            first = await stage.turn(session)
            await _gone(stage)
            second = await stage.turn(session)
            if (first.stop, first.told.text) != ("stop", "One."):
                faults.append(f"death {number}: the first turn is {first}")
            faults += [f"death {number}: {fault}" for fault in second.faults(whole, within)]
            await stage.close(session)
    return faults


async def _gone(stage: Stage) -> None:
    """Wait until the program is dead; whether we have heard of it is another matter."""
    pid = stage.peer.log("start")[-1]["pid"]
    await asyncio.to_thread(wait_until, lambda: start_of(pid) is None)


@proves("R33")
def test_control_a_turn_that_leaves_calls_open_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    monkeypatch.setattr(CallTracker, "close", lambda *_: None)

    found = asyncio.run(_control(tmp_path))

    tell(f"control: {len(found)} faults seen")
    assert any("calls without an end" in fault for fault in found)
    assert any("the end is" in fault for fault in found)
    assert any(count == "DANGLING" for count, _ in _judged(tmp_path / "home"))


async def _control(folder: Path) -> list[str]:
    """Judge a death that leaves a call open, and a turn in which nobody died."""
    async with a_stage(folder) as stage:
        record = await stage.record()
        agent = await stage.agent(*stage.peer.argv)
        size = record.boundaries()[4]
        stage.plays(die={"at_byte": size, "from": "session/prompt"})
        dead = await stage.turn(await stage.session(agent))
        stage.plays()
        alive = await stage.turn(await stage.session(agent))
    return [*dead.faults(record.told(size), 60), *alive.faults(record.told(size), 60)]


def _damage(home: Path) -> list[str]:
    return [f"{count}: {what}" for count, what in _judged(home)]


def _judged(home: Path) -> list[tuple[str, str]]:
    books = read_books(home)
    return [found for book in books.notebooks.values() for found in judge_notebook(books, book)]


@proves("R33")
def test_a_death_harms_no_other_session(tmp_path: Path, tell: Tell) -> None:
    died, beside = asyncio.run(_beside_a_death(tmp_path))

    tell(f"one died with {died}, the turn beside it ended with {beside}")
    assert (died, beside) == ("agent_died", "aborted")


async def _beside_a_death(folder: Path) -> tuple[str | None, str]:
    """Return how two turns end if one process dies and the other turn is interrupted after it."""
    waits = [{"text": "I wait."}, {"mark": "in"}, "until_cancel"]
    dies = [{"text": "So."}, {"exit": 3}]
    async with a_stage(folder) as stage:
        agent = await stage.agent(*stage.peer.argv)
        stage.plays(runs=[{"on": {"session/prompt": each}} for each in (waits, dies)])
        waiting, dying = await stage.session(agent), await stage.session(agent)
        beside = asyncio.create_task(stage.turn(waiting))
        await asyncio.to_thread(stage.peer.wait_for, "mark", name="in")
        died = await stage.turn(dying)
        await stage.house.sessions.interrupt(stage.house.owner, waiting.id)
        other = await beside
        await stage.close(waiting)
    return died.code, other.stop
