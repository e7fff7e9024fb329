"""The places of programs: what holds of one that is empty, and of one that was given up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.process_registry import ProcessRegistry
from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.domain.agent_processes import ProcessEnding, ProcessExit, ProcessRecord, ProcessState
from holdfast.domain.ids import SessionId, SessionKey
from tests.acp.harness import END, aboard
from tests.builders import an_id
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


class Quay:
    """A berth that keeps what it is told."""

    session = SessionId(an_id(1))
    key = SessionKey(1)

    def __init__(self) -> None:
        self.kept: list[ProcessRecord] = []

    async def keep(self, process_record: ProcessRecord, **_: Any) -> None:
        """Keep it."""
        self.kept.append(process_record)


async def test_an_empty_place_has_nobody_to_talk_to_and_nothing_to_end() -> None:
    quay = Quay()
    fleet = ProcessRegistry()
    slot = fleet.slot(quay)  # type: ignore[arg-type]

    with pytest.raises(ConnectionLost):
        slot.present()
    assert (slot.folder, slot.new_title()) == ("", None)
    assert slot.process_record(ProcessState.EXITED) == ProcessRecord(state=ProcessState.EXITED)
    assert await slot.drop_process() == ProcessExit()
    slot.start_idle_reader()
    await slot.stop_idle_reader()
    assert (fleet.held(), quay.kept) == (frozenset(), [])


async def test_a_place_that_has_ended_is_another_one_afterwards() -> None:
    fleet = ProcessRegistry()
    slot = fleet.slot(Quay())  # type: ignore[arg-type]

    await fleet.end(SessionKey(7))
    assert fleet.has(slot)
    await fleet.end(SessionKey(1), ProcessEnding.DELETED)

    assert not fleet.has(slot)
    assert fleet.slot(Quay()) is not slot  # type: ignore[arg-type]


async def test_of_a_program_without_a_birth_nothing_is_left() -> None:
    async with asyncio.timeout(PATIENCE):
        await ProcessRegistry().reap(
            ProcessRecord(state=ProcessState.STARTING), SessionId(an_id(1))
        )


async def test_a_turn_that_was_given_up_in_an_empty_place_is_over() -> None:
    async def withdraw() -> None:
        raise AssertionError("there is nobody to be told")

    slot = ProcessRegistry().slot(Quay())  # type: ignore[arg-type]
    slot.abandon(asyncio.get_running_loop().create_future(), withdraw, 1.0)

    async with asyncio.timeout(PATIENCE):
        await slot.stop_idle_reader()


async def test_each_session_has_its_own_process(tmp_path: Path) -> None:
    steps = [{"repeat": {"count": 50, "steps": [{"text": "$prompt"}, {"text": " "}]}}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        sessions = [await ship.open() for _ in range(3)]
        words = ["red", "green", "blue"]
        answers = await asyncio.gather(*map(ship.tell, sessions, words))
        now = [await ship.now(each) for each in sessions]

    pids = {each["pid"] for each in ship.peer.log("start")}
    assert [rows[-1].text for rows in answers] == [f"{word} " * 50 for word in words]
    assert {each.program.birth.pid for each in now if each.program and each.program.birth} == pids
    assert len(pids) == len(ship.peer.got("initialize")) == 3
