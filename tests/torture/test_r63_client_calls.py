"""R63: the server is killed while clients are asked to run calls, and while they answer."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, connect, open_holdfast
from holdfast.config import Config
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.services.calls import CallAnswer
from tests.houses import script
from tests.marks import proves
from tests.tooled import asks, call, says
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.served import Server

pytestmark = pytest.mark.slow

REFUND: dict[str, Any] = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {"type": "object"},
}


@proves("R63")
def test_a_call_has_one_answer_however_often_the_server_dies(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    rounds = sized(quick=1, test=6, torture=60, release=600)
    model = script(tmp_path, asks(call("refund", "c1", order="17")), says("done"))
    server = Server(crew, tmp_path / "home", model=model)
    server.start()

    told = asyncio.run(killed_in_rounds(server, luck, rounds))
    server.stop()
    results = asyncio.run(results_of(tmp_path / "home", model, list(told)))

    lost = sum(1 for session, given in told.items() if results[session] != [given])
    tell(f"{rounds} calls of clients, {2 * rounds} kills of the server, {lost} lost or doubled")
    assert results == {session: [given] for session, given in told.items()}


async def killed_in_rounds(server: Server, luck: random.Random, rounds: int) -> dict[str, str]:
    """Have calls requested and answered; return what was told about each session's call."""
    async with asyncio.timeout(PATIENCE), connect(server.url, server.token) as hf:
        await hf.agents.create(hf.owner, {"name": "Clerk", "slug": "clerk", "tools": [REFUND]})
    told = {}
    for number in range(rounds):
        async with asyncio.timeout(2 * PATIENCE), connect(server.url, server.token) as hf:
            session = await hf.open("clerk")
            await hf.send(session.id, "go")
            # Before the call is requested, in the commit of the request, or after it.
            await asyncio.sleep(luck.uniform(0, 0.05))
            await restarted(server)
            await requested(hf, session.id)
            given = CallAnswer(status=ResultStatus.OK, result=f"answer {number}")
            answering = asyncio.create_task(hf.calls.answer(hf.owner, session.id, "c1", given))
            # Before the answer is on disk, or after it and before it is acknowledged.
            await asyncio.sleep(luck.uniform(0, 0.02))
            await restarted(server)
            with contextlib.suppress(HoldfastError):
                await answering
            await repeated(hf, session.id, given)
            await ended(hf, session.id)
            told[str(session.id)] = f"answer {number}"
    return told


async def restarted(server: Server) -> None:
    """Kill the server and wait until it serves again."""
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def requested(hf: Holdfast, session_id: SessionId) -> None:
    """Wait until the call of a session waits for its client."""
    while True:
        with contextlib.suppress(HoldfastError):
            found = (await hf.calls.list(hf.owner, session_id)).items
            if [each.state for each in found] == [CallState.REQUESTED]:
                return
        await asyncio.sleep(0.02)


async def repeated(hf: Holdfast, session_id: SessionId, given: CallAnswer) -> None:
    """Repeat an answer whose fate is not known; then no other one is taken."""
    assert (await hf.calls.answer(hf.owner, session_id, "c1", given)).state is CallState.FINISHED
    with pytest.raises(Conflict) as refused:
        await hf.calls.answer(
            hf.owner, session_id, "c1", CallAnswer(status=ResultStatus.OK, result="another")
        )
    assert refused.value.code is Code.CALL_NOT_OPEN


async def ended(hf: Holdfast, session_id: SessionId) -> None:
    """Wait until the turn has gone on to its end."""
    while (await hf.sessions.get(hf.owner, session_id)).settled < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def results_of(home: Path, model: str, sessions: list[str]) -> dict[str, list[Any]]:
    """Return the results in the record of each session."""
    async with open_holdfast(config=Config(home=home, default_model=model)) as house:
        rows = {each: await house.read(SessionId(each)) for each in sessions}
    return {
        each: [part.result for row in found for part in row.parts if isinstance(part, ToolResult)]
        for each, found in rows.items()
    }
