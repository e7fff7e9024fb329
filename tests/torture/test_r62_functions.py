"""R62: a process is killed around every commit and every act of a turn that calls a function.

A function that did not start runs once. A pure or idempotent one may run again, with the same key.
An unsafe one never does: its call is unknown, and settling it works.
"""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.config import Config
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ToolResult
from holdfast.services.calls import SettlementAction
from tests.marks import proves
from tests.torture.clients.functions import CALL, SESSION, FunctionLife, lived
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import ROOT
from tests.torture.grounds import Point, points_of

pytestmark = pytest.mark.slow


def a_life(
    folder: Path, effect: str, *, is_async: bool, point: Point | None = None
) -> FunctionLife:
    folder.mkdir(exist_ok=True)
    return FunctionLife(folder=str(folder), effect=effect, is_async=is_async, point=point)


def killed(lives: list[FunctionLife]) -> None:
    """Let lives end at their points, each in a process of its own."""
    given = json.dumps([{k: v for k, v in asdict(life).items() if k != "marks"} for life in lives])
    run = subprocess.run(
        [sys.executable, "-m", "tests.torture.clients.functions", given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    statuses = list(map(int, run.stdout.split()))
    assert statuses == [-signal.SIGKILL] * len(lives), run.stderr[-4000:]


def effects(life: FunctionLife) -> list[list[str]]:
    """Return the key and the attempt of each time the function had its effect."""
    if not life.effects.exists():
        return []
    return [line.split() for line in life.effects.read_text().splitlines()]


async def record(life: FunctionLife) -> tuple[CallState, list[str]]:
    """Return the state of the call, and the statuses of its results and retries."""
    config = Config(home=Path(life.folder) / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as hf:
        state = (await hf.calls.get(hf.owner, SessionId(SESSION), CALL)).state
        rows = await hf.read(SessionId(SESSION))
    parts = [part for row in rows for part in row.parts]
    return state, [str(each.status) for each in parts if isinstance(each, ToolResult)]


def go_on(life: FunctionLife, settles: str = "") -> None:
    asyncio.run(lived(FunctionLife(**{**asdict(life), "point": None, "settles": settles})))


@proves("R62")
@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe"])
def test_a_function_that_is_killed_has_its_effect_as_often_as_it_may(
    tmp_path: Path, effect: str, kind: str, sized: Sized, tell: Tell
) -> None:
    whole = a_life(tmp_path / "whole", effect, is_async=kind == "task")
    asyncio.run(lived(whole))
    assert asyncio.run(record(whole)) == (CallState.FINISHED, ["ok"])
    points = [each for _ in range(sized(test=1, torture=3)) for each in points_of(whole.marks)]
    lives = [
        a_life(tmp_path / str(at), effect, is_async=kind == "task", point=point)
        for at, point in enumerate(points)
    ]
    killed(lives)

    unknown = twice = 0
    for life in lives:
        cut_off = effects(life)
        go_on(life)
        state, statuses = asyncio.run(record(life))
        found = effects(life)
        # One key, whatever the number of attempts.
        assert len({key for key, _ in found}) <= 1, life.point
        attempts = [int(attempt) for _, attempt in found]
        if state is CallState.FINISHED:
            assert attempts == sorted(set(attempts)), life.point
        if state is CallState.FINISHED:
            assert statuses == ["ok"], life.point
            assert len(found) in ({1} if effect == "unsafe" else {1, 2}), life.point
            twice += len(found) == 2
            continue
        unknown += 1
        assert (effect, state, statuses) == ("unsafe", CallState.UNKNOWN, ["unknown"]), life.point
        # Nothing ran again unasked.
        assert found == cut_off, life.point
        how = list(SettlementAction)[unknown % len(SettlementAction)]
        go_on(life, settles=how)
        assert asyncio.run(record(life))[0] is CallState.SETTLED, life.point
        again = how is SettlementAction.RETRY
        assert len(effects(life)) == len(cut_off) + again, life.point
    tell(f"{effect} in a {kind}: {len(lives)} kills, {twice} ran again, {unknown} unknown")
    assert (unknown > 0) == (effect == "unsafe")
    assert (twice > 0) == (effect != "unsafe")
