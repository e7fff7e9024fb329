"""R61: a program that records turns is killed around and amid its commit, and repeats it."""

import asyncio
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import NotFound, RunScope, open_holdfast
from holdfast.domain.events import Event, TurnEnded
from tests.marks import proves
from tests.torture.clients.asking import SESSION
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew

pytestmark = pytest.mark.slow

TURNS = 200
ROWS = 4 * TURNS


@proves("R61")
def test_a_recording_is_stored_whole_or_not_at_all_and_once(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kills: list[dict[str, Any]] = [{"nth": 1, "when": when} for when in ("before", "after")]
    # The others die at any moment of the time that a recording takes.
    kills += [{}] * sized(quick=2, test=6, torture=60, release=600)
    begun = time.monotonic()
    assert crew.run("asking", home=tmp_path / "home", out=tmp_path / "x", **options()) == 0
    lasts = time.monotonic() - begun
    stored: list[int] = []
    for number, kill in enumerate(kills):
        home = tmp_path / str(number) / "home"
        home.parent.mkdir()
        process = crew.start("asking", home=home, out=home.parent / "dead", **options(), **kill)
        if not kill:
            time.sleep(luck.uniform(0, lasts))
            process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=PATIENCE) in (0, -signal.SIGKILL), crew.log_of(process)
        stored.append(asyncio.run(rows(home)))
        for is_new in (stored[-1] == 0, False):
            made = recorded(crew, home)
            assert (made["is_new"], len(made["messages"]), len(made["turns"])) == (
                is_new,
                ROWS,
                TURNS,
            )
        assert asyncio.run(rows(home)) == ROWS

    whole = sum(count == ROWS for count in stored)
    tell(f"{len(kills)} kills, {whole} whole, {stored.count(0)} not at all, none in part")
    assert set(stored) == {0, ROWS}


def options() -> dict[str, Any]:
    """Return what is recorded."""
    return {"verb": "record", "turns": TURNS}


def recorded(crew: Crew, home: Path) -> dict[str, Any]:
    """Record to the end and return what was returned."""
    out = home.parent / "recorded.json"
    process = crew.start("asking", home=home, out=out, **options())
    assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)
    found: dict[str, Any] = json.loads(out.read_bytes())
    return found


async def rows(home: Path) -> int:
    """Return how many rows the session has; every turn has ended, and none was played."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as hf:
        try:
            count = len(await hf.read(SESSION))
        except NotFound:
            return 0
        session = await hf.sessions.get(hf.owner, SESSION)
        proof = await hf.sessions.verify(hf.owner, SESSION)
        page = await hf.events.list(hf.owner, SESSION, limit=1_000)
    ended = [
        each.payload
        for each in page.items
        if isinstance(each, Event) and isinstance(each.payload, TurnEnded)
    ]
    assert (proof.faults, session.turn) == ((), session.settled)
    assert all(each.recorded is True for each in ended)
    return count
