"""Agents that are faster than the disk: the order stays, and memory and files stay as they were."""

import asyncio
import ctypes
import gc
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.events import TurnEnded
from holdfast.domain.messages import Message, Plan, Reasoning, Text, ToolCall, ToolResult
from holdfast.domain.sessions import Session
from holdfast.ports.store import Store
from tests.acp.harness import END, Aboard, aboard

pytestmark = pytest.mark.anyio

GROUPS = 1_000


class SlowStore:
    """A store on a disk that takes its time for every commit."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, work: Any, **how: Any) -> Any:
        """Write, after a while."""
        await asyncio.sleep(0.01)
        return await self._store.write(work, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def slow() -> Environment:
    """Return a machine with a slow disk."""
    return Environment(wrap=SlowStore)  # type: ignore[arg-type]


def group(number: int) -> list[dict[str, Any]]:
    """Return five updates of five kinds."""
    call = {"toolCallId": f"c{number}", "kind": "read", "title": f"look {number}"}
    done = {"toolCallId": f"c{number}", "status": "completed", "rawOutput": {"n": number}}
    entry = {"content": f"p{number}", "priority": "low", "status": "pending"}
    return [
        {"thought": f"h{number}"},
        {"text": f"t{number}"},
        {"update": {"sessionUpdate": "tool_call", **call, "rawInput": {"n": number}}},
        {"update": {"sessionUpdate": "tool_call_update", **done}},
        {"update": {"sessionUpdate": "plan", "entries": [entry]}},
    ]


def told(rows: tuple[Message, ...]) -> list[str]:
    """Return what rows say, one word for each part."""
    found = []
    for part in (part for row in rows for part in row.parts):
        match part:
            case Text() | Reasoning():
                found.append(part.text)
            case ToolCall():
                found.append(f"c{part.arguments['n']}")
            case ToolResult():
                found.append(f"r{part.result['n']}")
            case Plan():
                found.append(part.steps[0].text)
    return found


@pytest.mark.torture
async def test_five_thousand_mixed_updates_stay_in_order_behind_a_slow_journal(
    tmp_path: Path,
) -> None:
    steps = [step for number in range(GROUPS) for step in group(number)]
    async with aboard(tmp_path, outside=slow(), on={"session/prompt": [*steps, END]}) as ship:
        rows = await ship.tell(await ship.open())

    expected = (
        word.format(number)
        for number in range(GROUPS)
        for word in ("h{}", "t{}", "c{}", "r{}", "p{}")
    )
    assert told(rows[1:]) == list(expected)


@pytest.mark.torture
async def test_an_agent_that_is_faster_than_the_journal_waits_and_nothing_piles_up(
    tmp_path: Path,
) -> None:
    steps = [{"texts": {"count": 10_000, "size": 500}}, END]
    async with aboard(tmp_path, outside=slow(), on={"session/prompt": steps}) as ship:
        session = await ship.open()
        before = _forgotten_peak()
        rows = await ship.tell(session)
        peak = _mebibytes("VmHWM")

    assert sum(len(row.text) for row in rows[1:]) == 10_000 * 500
    assert peak - before < 64


@pytest.mark.torture
async def test_two_hundred_turns_on_one_program_leave_nothing_behind(tmp_path: Path) -> None:
    async with aboard(tmp_path, config_turn_cap=1_000) as ship:
        session = await ship.open()
        await _talked(ship, session, 20)
        before = _held()
        await _talked(ship, session, 200)
        after = _held()

    assert len(ship.peer.log("start")) == 1
    files, tasks, mebibytes = (now - then for now, then in zip(after, before, strict=True))
    assert files <= 2
    assert tasks <= 2
    # The record itself is remembered: some hundred rows.
    assert mebibytes < 8


async def _talked(ship: Aboard, session: Session, turns: int) -> None:
    """Play so many turns; only what is new of each is followed."""
    for _ in range(turns):
        now = await ship.now(session)
        await ship.house.send(session.id, "hello")
        async with aclosing(ship.house.follow(session.id, after=now.last_event)) as news:
            async for event in news:
                if isinstance(getattr(event, "payload", None), TurnEnded):
                    break


def _held() -> tuple[int, int, float]:
    """Return the open files, the tasks and the memory of this process."""
    gc.collect()
    # What was given back is not ours any more, whether the allocator has said so or not.
    ctypes.CDLL(None).malloc_trim(0)
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), _mebibytes("VmRSS")


def _forgotten_peak() -> float:
    """Have the system forget how much memory we ever had, and return how much we have."""
    Path("/proc/self/clear_refs").write_text("5")
    return _mebibytes("VmRSS")


def _mebibytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024
