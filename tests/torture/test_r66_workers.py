"""R66: a worker is killed wherever it can be while it runs a call, and another one goes on.

A call that was only offered runs once. A pure or idempotent one may run again, with the same key.
An unsafe one never does: from its claim on it is unknown, unless its result was on disk.
"""

import asyncio
import signal
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RemoteHoldfast, connect
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ToolResult
from holdfast.domain.sessions import Status
from holdfast.domain.waits import WaitReason
from tests.houses import script
from tests.marks import proves
from tests.tooled import asks, call, says
from tests.torture.clients.functions import SESSION
from tests.torture.clients.working import POINTS, a_function
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.nursery import Process
from tests.torture.served import Server
from tests.torture.test_r62_functions import a_life, go_on, killed
from tests.torture.test_r62_functions import effects as effects_of

pytestmark = pytest.mark.slow

# In how many seconds a session says what it waits for.
WAITS_WITHIN = 5.0
EFFECTS = ("pure", "idempotent", "unsafe")


@dataclass(frozen=True, kw_only=True)
class WorkerLife:
    """One call, and the worker that is killed while it runs it."""

    folder: Path
    number: int
    effect: str
    point: str
    unclaimed: bool = False

    @property
    def slug(self) -> str:
        return f"agent-{self.number}"

    @property
    def effects(self) -> Path:
        return self.folder / f"effects-{self.number}.txt"

    def lines(self) -> list[list[str]]:
        """Return the key and the attempt of each time the function had its effect."""
        if not self.effects.exists():
            return []
        return [line.split() for line in self.effects.read_text().splitlines()]


def started(crew: Crew, server: Server, life: WorkerLife, **options: Any) -> Process:
    return crew.start(
        "working",
        url=server.url,
        token=server.token,
        effects=str(life.effects),
        effect=life.effect,
        agent=life.slug,
        **options,
    )


async def sent(hf: Holdfast, life: WorkerLife) -> SessionId:
    """Send a message to the agent of a life, whose tool its worker runs."""
    definition = a_function(life.effect, life.effects).definition
    await hf.agents.create(hf.owner, {"name": life.slug, "slug": life.slug, "tools": [definition]})
    session = await hf.open(life.slug)
    await hf.send(session.id, "go")
    return session.id


async def ended(hf: Holdfast, session_id: SessionId) -> None:
    while (await hf.sessions.get(hf.owner, session_id)).settled < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def record(hf: Holdfast, session_id: SessionId) -> tuple[CallState, list[str]]:
    """Return the state of the call of a session, and the statuses of its results."""
    state = (await hf.calls.get(hf.owner, session_id, "c1")).state
    parts = [part for row in await hf.read(session_id) for part in row.parts]
    return state, [str(each.status) for each in parts if isinstance(each, ToolResult)]


async def lived(
    crew: Crew, server: Server, lives: list[WorkerLife]
) -> list[tuple[CallState, list[str]]]:
    """Let each call be begun by a worker that is killed, and ended by one that is not."""
    async with asyncio.timeout(PATIENCE), connect(server.url, server.token) as hf:
        sessions = [await sent(hf, life) for life in lives]
        for life in lives:
            dying = started(crew, server, life, point=life.point, unclaimed=life.unclaimed)
            status = await asyncio.to_thread(dying.wait, PATIENCE)
            assert status == -signal.SIGKILL, (life, crew.log_of(dying))
        workers = [started(crew, server, life) for life in lives]
        await asyncio.gather(*(ended(hf, each) for each in sessions))
        found = [await record(hf, each) for each in sessions]
        for worker in workers:
            worker.kill()
        return found


def a_server(crew: Crew, folder: Path) -> Server:
    model = script(folder, asks(call("act", "c1", order="17")), says("done"))
    server = Server(crew, folder / "home", model=model)
    server.start()
    return server


@proves("R66")
def test_a_worker_that_is_killed_has_its_effect_as_often_as_it_may(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell
) -> None:
    # Of every third, each point and each effect is among them.
    every = sized(quick=3, test=1, torture=1)
    points = list(product(EFFECTS, POINTS))[every - 1 :: every]
    points *= sized(test=1, torture=3)
    lives = [
        WorkerLife(folder=tmp_path, number=number, effect=effect, point=point)
        for number, (effect, point) in enumerate(points)
        # What may run twice is claimed with its offer.
        if effect == "unsafe" or point != "claim"
    ]
    server = a_server(crew, tmp_path)
    found = asyncio.run(lived(crew, server, lives))
    server.stop()

    for life, (state, statuses) in zip(lives, found, strict=True):
        lines = life.lines()
        # One key, whatever the number of attempts.
        assert len({key for key, _ in lines}) <= 1, life
        attempts = [int(attempt) for _, attempt in lines]
        if life.effect == "unsafe" and life.point in {"claim", "function", "effect"}:
            assert (state, statuses) == (CallState.UNKNOWN, ["unknown"]), life
            assert attempts == ([1] if life.point == "effect" else []), life
            continue
        assert (state, statuses) == (CallState.FINISHED, ["ok"]), life
        is_again = life.effect != "unsafe" and life.point != "result"
        expected = {"effect": [1, 2]} if is_again else {}
        assert attempts == expected.get(life.point, [2] if is_again else [1]), life
    unknown = sum(state is CallState.UNKNOWN for state, _ in found)
    twice = sum(len(life.lines()) == 2 for life in lives)
    tell(f"{len(lives)} workers killed, {twice} calls ran again, {unknown} unknown, 0 doubled")


@proves("R66")
def test_a_worker_that_claims_nothing_would_be_seen(tmp_path: Path, crew: Crew) -> None:
    life = WorkerLife(folder=tmp_path, number=0, effect="unsafe", point="effect", unclaimed=True)
    server = a_server(crew, tmp_path)
    found = asyncio.run(lived(crew, server, [life]))
    server.stop()

    assert found == [(CallState.FINISHED, ["ok"])]
    # Nothing says that the first worker had begun, so the unsafe effect is doubled.
    assert len(life.lines()) == 2


@proves("R66")
def test_a_server_without_the_function_waits_for_a_process_that_has_it(
    tmp_path: Path, crew: Crew, tell: Tell
) -> None:
    life = a_life(tmp_path / "life", "idempotent", is_async=True, point=("effect", 1, "before"))
    killed([life])
    server = Server(crew, Path(life.folder) / "home", model=f"scripted:{life.folder}/model.json")
    took = server.start() and asyncio.run(waiting(server))
    before = effects_of(life)
    server.stop()
    go_on(life)

    tell(f"a server without the function waited for it after {took:.1f} s")
    assert took <= WAITS_WITHIN
    assert before == []
    assert len(effects_of(life)) == 1


async def waiting(server: Server) -> float:
    """Return after how many seconds the session says that it waits for the function."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(PATIENCE), connect(server.url, server.token) as hf:
        while not is_waiting(found := await shown(hf)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        took = loop.time() - began
        # Nor does it play the turn later.
        await asyncio.sleep(1.5)
        assert await shown(hf) == found
    return took


async def shown(hf: RemoteHoldfast) -> Any:
    session = await hf.sessions.get(hf.owner, SessionId(SESSION))
    return session.status, session.waiting, session.last_event


def is_waiting(found: Any) -> bool:
    status, wait, _ = found
    is_open = status in {Status.RUNNING, Status.PENDING}
    return bool(is_open and wait and wait.reason is WaitReason.TOOL and "tool:act" in wait.needs)
