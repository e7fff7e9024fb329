"""R67: two workers and a client want the same calls, and their server is killed meanwhile.

Each call has one result. What is claimed is answered by its worker alone, and what the client
answers has no effect.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, connect
from holdfast.client.requests import Timeouts
from holdfast.domain.calls import Call, CallState
from holdfast.domain.errors import Code, Conflict, HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.services.calls import CallAnswer
from tests.houses import script
from tests.marks import proves
from tests.tooled import asks, call, says
from tests.torture.clients.working import a_function
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.served import Server

pytestmark = pytest.mark.slow

# Longer than a server needs to start again.
TIMEOUTS = Timeouts(request=60.0)
MINE = CallAnswer(status=ResultStatus.OK, result="client")
# Seconds that a worker needs for a call, so that the client comes while it is claimed.
SECONDS = 0.05


class Race:
    """The calls of a server, and what became of them."""

    def __init__(self, crew: Crew, server: Server, folder: Path, luck: random.Random) -> None:
        self._crew = crew
        self._server = server
        self._folder = folder
        self._luck = luck
        self._act = a_function("unsafe", folder / "unused")
        # The calls that the client has answered, and how often it came too late.
        self.answered: set[SessionId] = set()
        self.late = 0
        self.codes: set[Code] = set()

    def effects(self) -> list[str]:
        """Return the keys of the calls whose effect a worker had."""
        files = self._folder.glob("effects-*.txt")
        return [line.split()[0] for file in files for line in file.read_text().splitlines()]

    async def run(self, calls: int, kills: int) -> dict[str, list[Any]]:
        """Have calls requested and run; return the results in the record by the calls' keys."""
        server = self._server
        async with (
            asyncio.timeout(2 * PATIENCE),
            connect(server.url, server.token, timeouts=TIMEOUTS) as hf,
        ):
            fields = {"name": "Actor", "slug": "actor", "tools": [self._act.definition]}
            await hf.agents.create(hf.owner, fields)
            for number in range(2):
                self._crew.start(
                    "working",
                    url=server.url,
                    token=server.token,
                    effects=str(self._folder / f"effects-{number}.txt"),
                    seconds=SECONDS,
                )
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(hf, calls))
                killing = tasks.create_task(self._kill(kills))
                answering = tasks.create_task(self._answer(hf))
                sessions = await sending
                await killing
                for each in sessions:
                    await ended(hf, each)
                answering.cancel()
            return {key: found for each in sessions for key, found in [await record(hf, each)]}

    async def _send(self, hf: Holdfast, calls: int) -> list[SessionId]:
        sessions = []
        for _ in range(calls):
            session = await hf.open("actor")
            await hf.send(session.id, "go")
            sessions.append(session.id)
        return sessions

    async def _kill(self, kills: int) -> None:
        for _ in range(kills):
            await asyncio.sleep(self._luck.uniform(0.5, 1.5))
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)

    async def _answer(self, hf: Holdfast) -> None:
        """Answer calls without a claim, whether a worker runs them or not."""
        while True:
            for state in (CallState.REQUESTED, CallState.STARTED):
                found = (await hf.calls.list(hf.owner, state=state)).items
                for each in self._luck.sample(found, min(3, len(found))):
                    await self._try(hf, each)
            await asyncio.sleep(0.05)

    async def _try(self, hf: Holdfast, found: Call) -> None:
        try:
            await hf.calls.answer(hf.owner, found.session_id, found.id, MINE)
            self.answered.add(found.session_id)
        except Conflict as error:
            self.late += 1
            self.codes.add(error.code)
        except HoldfastError:
            # The server was away for too long; the next round asks again.
            return


async def ended(hf: Holdfast, session_id: SessionId) -> None:
    while (await hf.sessions.get(hf.owner, session_id)).settled < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def record(hf: Holdfast, session_id: SessionId) -> tuple[str, list[Any]]:
    """Return the key of the call of a session, and its results."""
    (found,) = (await hf.calls.list(hf.owner, session_id)).items
    parts = [part for row in await hf.read(session_id) for part in row.parts]
    return found.idempotency_key, [each.result for each in parts if isinstance(each, ToolResult)]


def a_race(crew: Crew, folder: Path, luck: random.Random, fault: str = "") -> Race:
    model = script(folder, asks(call("act", "c1", order="17")), says("done"))
    server = Server(crew, folder / "home", model=model, fault=fault)
    server.start()
    return Race(crew, server, folder, luck)


def contradictions(results: dict[str, list[Any]], effects: list[str]) -> list[str]:
    """Return the calls with another number of results than one, or with an effect too many."""
    doubled = {key for key in effects if effects.count(key) > 1}
    found = [key for key, given in results.items() if len(given) != 1 or key in doubled]
    # Who answers without a claim says that no worker has run it.
    return found + [key for key, given in results.items() if given == ["client"] and key in effects]


@proves("R67")
def test_each_call_has_one_result_however_many_want_to_give_it(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    calls = sized(quick=20, test=40, torture=300, release=1_000)
    kills = sized(quick=2, test=3, torture=20, release=60)
    race = a_race(crew, tmp_path, luck)
    results = asyncio.run(race.run(calls, kills))

    effects = race.effects()
    tell(
        f"{calls} calls, {kills} kills of the server, {len(effects)} run by workers, "
        f"{len(race.answered)} answered by the client, {race.late} refused"
    )
    assert contradictions(results, effects) == []
    assert len(results) == calls
    assert {tuple(given) for given in results.values()} <= {("client",), ("worker",), (None,)}
    assert race.codes <= {Code.CALL_CLAIMED, Code.CALL_NOT_OPEN}
    assert race.answered


@proves("R67")
def test_a_server_that_takes_any_answer_would_be_seen(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    race = a_race(crew, tmp_path, luck, fault="trusting")
    results = asyncio.run(race.run(20, 0))

    assert contradictions(results, race.effects()) != []
