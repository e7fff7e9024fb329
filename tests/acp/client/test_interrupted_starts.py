"""Starts that do not come to their end: stopped by somebody, or impossible from the beginning."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.events import FailureCode
from holdfast.domain.sessions import SessionRequest, Status
from holdfast.process import process_table
from holdfast.process.process_table import boot_id, find_process, group_members
from tests.acp.harness import END, PATIENCE, aboard, hasty, notices, stands
from tests.acp.scripted_agents import Peer

OFFERED = {"modes": {"currentModeId": "a", "availableModes": [{"id": "a"}, {"id": "plan"}]}}
HANGS: dict[str, dict[str, Any]] = {
    "initialize": {},
    "session/new": {},
    "session/set_mode": {"session": OFFERED},
}


@pytest.mark.sampled(1)
@pytest.mark.anyio
@pytest.mark.parametrize("method", HANGS)
async def test_a_turn_that_is_stopped_while_its_program_gets_ready_leaves_nobody(
    tmp_path: Path, method: str
) -> None:
    runs = [{"on": {method: []}}, {"on": {"session/prompt": [{"text": "there"}, END]}}]
    script = {**HANGS[method], "runs": runs}
    acp = hasty(start=60, session=60, option=60)
    async with aboard(tmp_path, options={"mode": "plan"}, config_acp=acp, **script) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "hello")
        await ship.logged("start")
        await asyncio.to_thread(_asked, ship.peer, method)
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.until(session, stands(ProcessState.EXITED))
        (first,) = (each["pid"] for each in ship.peer.log("start"))
        is_there = find_process(first) is not None
        rows = await ship.tell(session, "again")
        now = await ship.now(session)

    assert not is_there
    assert (rows[-1].text, now.status) == ("there", Status.IDLE)


def _asked(peer: Peer, method: str) -> None:
    """Wait, without the loop, until the program has been asked for something."""
    until = time.monotonic() + PATIENCE
    while not peer.got(method):
        assert time.monotonic() < until, method
        time.sleep(0.01)


@pytest.mark.anyio
async def test_a_file_that_the_system_does_not_run_loses_the_session_and_says_so(
    tmp_path: Path,
) -> None:
    program = tmp_path / "agent"
    program.write_bytes(b"\x7fELF, and then nothing that makes sense")
    program.chmod(0o755)
    async with aboard(tmp_path) as ship:
        runtime = AcpRuntime(command=str(program))
        await ship.house.agents.create(ship.house.owner, {"name": "Broken", "runtime": runtime})
        session = await ship.house.open("broken", SessionRequest(repo_id=ship.repo.id))
        rows = await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == (Status.FAILED, FailureCode.AGENT_UNAVAILABLE)
    assert "cannot be started" in notices(rows)[-1][1]


def test_where_the_kernel_tells_nothing_nobody_is_found_and_a_boot_has_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object, **__: object) -> Any:
        raise FileNotFoundError

    group = os.getpgrp()
    assert list(group_members(group)) != []
    monkeypatch.setattr(process_table.os, "listdir", missing)
    monkeypatch.setattr(process_table.Path, "read_text", missing)

    assert list(group_members(group)) == []
    assert boot_id().startswith("booted-")
