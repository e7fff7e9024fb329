"""R33: a program that several sessions share dies for those who are in a turn, and for no other."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.judgement import judge_notebook
from tests.torture.machine import start_of
from tests.torture.notebooks import read_books
from tests.torture.peered import Ending, Record, Stage, Told, a_stage, a_turn

pytestmark = pytest.mark.slow

SOON = 5.0
REST: list[Any] = [{"text": "At rest."}, {"reply": {"stopReason": "end_turn"}}]
WAIT: list[Any] = [{"text": "I wait."}, {"mark": "in"}, "until_cancel"]
WAITED = Told("I wait.", "", {}, is_answered=False)


@proves("R33")
def test_a_shared_program_may_die_after_any_byte_of_a_turn(
    tmp_path: Path, sized: Sized, luck: random.Random, tell: Tell
) -> None:
    count = sized(test=4, torture=60, release=200)

    faults = asyncio.run(_deaths(tmp_path, luck, count, sized.within(SOON)))

    books = read_books(tmp_path / "home")
    damage = [each for book in books.notebooks.values() for each in judge_notebook(books, book)]
    tell(f"{count} deaths of a shared program, {len(faults) + len(damage)} faults")
    assert (faults, damage) == ([], [])


async def _deaths(folder: Path, luck: random.Random, count: int, within: float) -> list[str]:
    faults: list[str] = []
    async with a_stage(folder) as stage:
        record = await stage.record()
        agent = await stage.agent(*stage.peer.argv, share=True)
        ends = luck.sample(record.boundaries(), min(count // 2, len(record.boundaries())))
        bytes_ = [luck.randrange(1, record.size) for _ in range(count - len(ends))]
        for size in [*ends, *bytes_]:
            found = await _death(stage, agent, record, size, within)
            faults += [f"after {size} bytes: {fault}" for fault in found]
    return faults


async def _death(stage: Stage, agent: str, record: Record, size: int, within: float) -> list[str]:
    """Let the program die in one turn of three sessions: one rests, and one is in its turn, too."""
    stage.peer.log_file.unlink(missing_ok=True)
    die = {"at_byte": size, "how": "KILL" if size % 2 else 3, "from": "session/prompt", "nth": 3}
    prompts = [REST, WAIT, a_turn(stage.repository)]
    stage.plays(runs=[{"on": {"session/prompt": prompts}, "die": die}, {}])
    resting, waiting, dying = [await stage.session(agent) for _ in range(3)]
    await stage.turn(resting)
    beside = asyncio.create_task(stage.turn(waiting))
    await asyncio.to_thread(stage.peer.wait_for, "mark", name="in")
    died = await stage.turn(dying)
    heard = time.monotonic()
    other = await beside
    late = time.monotonic() - heard
    again = await stage.turn(resting, "again")
    await _closed(stage, resting, *([dying] if died.stop == "stop" else []))
    return [
        *(f"who died: {fault}" for fault in died.faults(record.told(size), within)),
        *(f"beside it: {fault}" for fault in _but_for_time(other, late, within)),
        *(f"at rest: {fault}" for fault in again.faults(record.told(record.size), within)),
        *(f"program {pid} lives" for pid in _living(stage)),
    ]


def _but_for_time(other: Ending, late: float, within: float) -> list[str]:
    """Judge a turn whose own time says nothing: it waited for the death."""
    faults = other.faults(WAITED, within=float("inf"))
    return [*faults, *([f"it took {late:.2f} s"] if late > within else [])]


async def _closed(stage: Stage, *sessions: Session) -> None:
    for session in sessions:
        await stage.close(session)


def _living(stage: Stage) -> list[int]:
    return [each["pid"] for each in stage.peer.log("start") if start_of(each["pid"]) is not None]


@proves("R33")
def test_control_in_programs_of_their_own_nobody_else_dies(tmp_path: Path, tell: Tell) -> None:
    found = asyncio.run(_apart(tmp_path))

    tell(f"control: with a program for each the other turn ended with {found[1]}")
    assert found == ("agent_died", "aborted")


async def _apart(folder: Path) -> tuple[str | None, str]:
    """Return how the turns end if one of two programs dies and the other turn is interrupted."""
    async with a_stage(folder) as stage:
        agent = await stage.agent(*stage.peer.argv)
        deaths = [{"text": "So."}, {"exit": 3}]
        stage.plays(runs=[{"on": {"session/prompt": each}} for each in (WAIT, deaths)])
        waiting, dying = await stage.session(agent), await stage.session(agent)
        beside = asyncio.create_task(stage.turn(waiting))
        await asyncio.to_thread(stage.peer.wait_for, "mark", name="in")
        died = await stage.turn(dying)
        await stage.house.sessions.interrupt(stage.house.owner, waiting.id)
        other = await beside
        await stage.close(waiting)
    return died.code, other.stop
