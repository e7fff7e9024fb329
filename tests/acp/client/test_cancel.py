"""Stopping an agent's turn: told once, waited for, ended by force if it does not listen."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.sessions import OnBusy, Session, Status, StopReason
from tests.acp.harness import END, Aboard, aboard, hasty, stands
from tests.marks import demands

pytestmark = pytest.mark.anyio

CALL = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "build", "kind": "execute",
        "rawInput": {"command": "make"}, "status": "in_progress"}  # fmt: skip
WHERE: dict[str, list[Any]] = {
    "in text": [{"text": "so far"}, {"mark": "in"}, "until_cancel"],
    "in a tool": [{"update": CALL}, {"mark": "in"}, "until_cancel"],
    "before the first word": [{"mark": "in"}, "until_cancel"],
}


async def _begun(ship: Aboard, session: Session) -> None:
    await ship.house.send(session.id, "go")
    await ship.logged("mark", name="in")


async def _interrupt(ship: Aboard, session: Session) -> int | None:
    return (await ship.house.sessions.interrupt(ship.house.owner, session.id)).turn


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", WHERE)
async def test_an_agent_that_stops_lives_on(tmp_path: Path, where: str) -> None:
    script = {"session/prompt": [WHERE[where], [{"text": "again"}, END]]}
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await _begun(ship, session)
        stopped = await _interrupt(ship, session)
        first = await ship.settled(session)
        rows = await ship.tell(session, "go on")
        now = await ship.now(session)

    assert stopped == 1
    assert [str(row.role) for row in first][-1] == "system"
    assert (rows[-1].text, now.status, now.last_stop) == ("again", Status.IDLE, StopReason.STOP)
    assert [each["params"] for each in ship.peer.got("session/cancel")] == [
        {"sessionId": "peer-session-1"}
    ]
    assert "id" not in ship.peer.got("session/cancel")[0]
    assert len(ship.peer.log("start")) == 1


async def test_an_interrupt_of_nothing_sends_nothing(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session)
        stopped = await _interrupt(ship, session)
        await ship.tell(session, "more")

    assert (stopped, ship.peer.got("session/cancel")) == (None, [])


async def test_two_interrupts_send_one_cancel(tmp_path: Path) -> None:
    script = {"session/prompt": [WHERE["in text"], [END]]}
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await _begun(ship, session)
        await asyncio.gather(_interrupt(ship, session), _interrupt(ship, session))
        await ship.tell(session, "more")

    assert len(ship.peer.got("session/cancel")) == 1


async def test_an_agent_that_does_not_listen_is_ended_and_the_session_stays(
    tmp_path: Path,
) -> None:
    script = {"session/prompt": [[{"text": "la"}, {"mark": "in"}, "hang"], [{"text": "new"}, END]]}
    acp = hasty(cancel=0.3)
    async with aboard(tmp_path, config_acp=acp, ignore=["cancel", "TERM"], on=script) as ship:
        session = await ship.open()
        await _begun(ship, session)
        started = time.monotonic()
        await _interrupt(ship, session)
        told = time.monotonic() - started
        gone = await ship.until(session, stands(ProcessState.EXITED))
        ship.peer.write(on={"session/prompt": [{"text": "new"}, END]})
        rows = await ship.tell(session, "go on")

    assert told < 5
    assert (gone.status, gone.last_stop) == (Status.IDLE, StopReason.ABORTED)
    assert rows[-1].text == "new"
    assert len(ship.peer.log("start")) == 2


async def test_a_prompt_that_interrupts_waits_for_the_agent_to_stop(tmp_path: Path) -> None:
    slow = [{"text": "one"}, {"mark": "in"}, "until_cancel", {"sleep": 0.3}]
    script = {"session/prompt": [slow, [{"text": "two"}, END]]}
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await _begun(ship, session)
        await ship.house.send(session.id, "stop that", on_busy=OnBusy.INTERRUPT)
        rows = await ship.settled(session)

    assert rows[-1].text == "two"
    log = [
        (each["event"], each.get("message", {}).get("method"))
        for each in ship.peer.log()
        if each["event"] in {"got", "done"}
    ]
    prompts = [place for place, each in enumerate(log) if each[1] == "session/prompt"]
    cancel = log.index(("got", "session/cancel"))
    assert prompts[0] < cancel < prompts[1]


@demands("S1-022c", "S1-073", "S1-073b")
async def test_closing_ends_the_turn_the_program_and_all_that_came_from_it(tmp_path: Path) -> None:
    fork = {"fork": {"seconds": 600, "ignore": ["TERM"]}}
    script = {"session/prompt": [fork, {"mark": "in"}, "until_cancel"]}
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await _begun(ship, session)
        started = time.monotonic()
        closed = await ship.house.sessions.close(
            ship.house.owner, session.id, status=Status.CANCELLED, reason="user_request"
        )
        took = time.monotonic() - started
        pids = [ship.peer.log("start")[0]["pid"], ship.peer.log("forked")[0]["pid"]]
        left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]  # noqa: ASYNC240

    assert (closed.status, took < 10, left) == (Status.CANCELLED, True, [])
    assert len(ship.peer.got("session/cancel")) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("verb", ["close", "delete"])
async def test_the_program_is_told_of_the_end_if_it_wants_to_know(
    tmp_path: Path, verb: str
) -> None:
    offered = {"sessionCapabilities": {verb: {}}}
    async with aboard(tmp_path, capabilities=offered) as ship:
        session = await ship.open()
        await ship.tell(session)
        if verb == "close":
            await ship.house.sessions.close(ship.house.owner, session.id)
        else:
            await ship.house.sessions.delete(ship.house.owner, session.id)
        methods = [each.get("method") for each in ship.peer.got()]

    assert methods[-1] == f"session/{verb}"


async def test_a_natural_end_that_crosses_an_interrupt_stays(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        for _ in range(5):
            await ship.house.send(session.id, "quick")
            await _interrupt(ship, session)
            await ship.settled(session)
        now = await ship.now(session)
        rows = await ship.tell(session, "last")

    assert now.status is Status.IDLE
    assert rows[-1].text == "ok"
