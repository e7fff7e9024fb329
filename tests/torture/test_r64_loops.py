"""R64: a program's own loop is killed around every commit and every act, and run again.

What was recorded does not run again; an unsafe call runs once at most, and is unknown if it may
have run. A loop that asks for something else is stopped before it has an effect.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast import ApprovalState, Decision, RunScope, open_holdfast
from holdfast.config import Config
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from tests.marks import proves
from tests.torture.clients.loops import SESSION, LoopLife, lived, parked
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import ROOT
from tests.torture.grounds import Point, points_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Record = tuple[list[tuple[str, str]], list[CallState], int]


def a_life(folder: Path, *, point: Point | None = None, changed: str = "") -> LoopLife:
    folder.mkdir(exist_ok=True)
    return LoopLife(folder=str(folder), point=point, changed=changed)


def killed(lives: list[LoopLife]) -> None:
    """Let lives end at their points, each in a process of its own."""
    given = json.dumps([{k: v for k, v in asdict(life).items() if k != "marks"} for life in lives])
    run = subprocess.run(
        [sys.executable, "-m", "tests.torture.clients.loops", given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert set(map(int, run.stdout.split())) == {-signal.SIGKILL}, run.stderr[-4000:]


async def record(life: LoopLife) -> Record:
    """Return what was said, the states of the calls and the number of cost entries."""
    config = Config(home=Path(life.folder) / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as hf:
        rows = await hf.read(SessionId(SESSION))
        calls = await hf.calls.list(hf.owner, SessionId(SESSION))
        session = await hf.sessions.get(hf.owner, SessionId(SESSION))
        assert (await hf.sessions.verify(hf.owner, SessionId(SESSION))).faults == ()
    said = [(row.role.value, row.text) for row in rows if row.text]
    return said, sorted(call.state for call in calls.items), session.usage.input


def effects(life: LoopLife) -> Counter[str]:
    return Counter(life.effects.read_text().split() if life.effects.exists() else ())


@proves("R64")
def test_a_loop_that_is_killed_and_run_again_is_as_if_it_had_not_been(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    whole = a_life(tmp_path / "whole")
    assert asyncio.run(lived(whole)) == ""
    expected = asyncio.run(record(whole))
    points = list(points_of(whole.marks))[:: sized(quick=6, test=3, torture=1)]
    lives = [a_life(tmp_path / str(at), point=point) for at, point in enumerate(points)]
    killed(lives)

    again = unknown = 0
    for life in lives:
        cut_off = effects(life)
        error = asyncio.run(lived(a_life(Path(life.folder))))
        found = effects(life)
        assert found["c"] <= 1, life.point
        assert max(found.values()) <= 2, life.point
        again += any(count == 2 for count in found.values())
        if error:
            unknown += 1
            _, states, _ = asyncio.run(record(life))
            assert (error, cut_off) == ("turn_ended", found), life.point
            assert CallState.UNKNOWN in states, life.point
            continue
        assert asyncio.run(record(life)) == expected, life.point
    tell(f"{len(lives)} kills, {again} ran an entry again, {unknown} unknown")
    assert again > 0


@proves("R64")
@pytest.mark.parametrize("changed", ["name", "arguments"])
def test_a_loop_that_asks_for_something_else_has_no_effect(tmp_path: Path, changed: str) -> None:
    whole = a_life(tmp_path / "whole")
    asyncio.run(lived(whole))
    last = [point for point in points_of(whole.marks) if point[0] == "effect"][-1]
    life = a_life(tmp_path / "killed", point=last)
    killed([life])
    before = effects(life)

    error = asyncio.run(lived(a_life(Path(life.folder), changed=changed)))

    assert error in {"replay_mismatch", "turn_ended"}
    assert effects(life) == before


@proves("R64")
async def test_a_parked_loop_runs_the_call_that_was_allowed_while_no_process_lived(
    tmp_path: Path,
) -> None:
    life = a_life(tmp_path)
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.clients.loops", "parked", life.folder, cwd=ROOT
    )
    assert await run.wait() == -signal.SIGKILL
    config = Config(home=Path(life.folder) / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as hf:
        (asked,) = (await hf.approvals.list(hf.owner, SessionId(SESSION))).items
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        await hf.approvals.answer(hf.owner, SessionId(SESSION), asked.id, yes)
    before = effects(life)

    await parked(life.folder, dies=False)

    said, states, _ = await record(life)
    assert before == {"a": 1}
    assert effects(life) == {"a": 1, "b": 1}
    assert said == [("user", "Go"), ("assistant", "sent")]
    assert states == [CallState.FINISHED] * 2
