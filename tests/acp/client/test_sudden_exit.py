"""A program that has ended a moment ago, and nobody of ours has heard of it yet."""

import os
import time
from pathlib import Path

import pytest

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.domain.sessions import Status
from holdfast.process.process_table import is_leaving
from tests.acp.harness import aboard
from tests.acp.steps import runs

pytestmark = pytest.mark.anyio


async def test_a_program_that_was_killed_a_moment_ago_is_started_again(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        pid = ship.peer.log("start")[0]["pid"]
        os.kill(pid, 9)
        until = time.monotonic() + 10
        # Without the loop, so that the word of its end cannot arrive.
        while not is_leaving(pid) and time.monotonic() < until:
            pass
        rows = await ship.tell(session, "two")
        later = await ship.now(session)

    assert (later.status, rows[-1].text, len(ship.peer.log("start"))) == (Status.IDLE, "ok", 2)


async def test_a_call_that_waited_for_an_answer_when_the_program_died_has_one_result(
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    steps = [
        runs("true", "t", wait=False),
        {"wait_file": str(gone)},
        {"exit": 3},
    ]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "hello")
        await ship.waiting(session)
        gone.touch()
        rows = await ship.settled(session)

    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert [(each.name, each.status) for each in results] == [
        ("terminal.create", ResultStatus.ERROR)
    ]


def test_a_living_process_is_not_leaving_and_one_that_is_gone_is() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    until = time.monotonic() + 10
    while not is_leaving(child) and time.monotonic() < until:
        pass
    waits = is_leaving(child)
    os.waitpid(child, 0)

    assert (is_leaving(os.getpid()), waits, is_leaving(child)) == (False, True, True)
