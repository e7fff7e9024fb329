"""Programs end with their sessions, with us, and after us: none is forgotten."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.config import Config
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import Session, Status, StopReason
from tests.acp.harness import PATIENCE, aboard, codes, stands
from tests.acp.scripted_agents import Peer
from tests.acp.steps import asking
from tests.houses import calls_of
from tests.marks import demands

pytestmark = pytest.mark.anyio

CALL = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "build", "kind": "execute",
        "rawInput": {"command": "make"}, "status": "in_progress"}  # fmt: skip
BUSY = [{"text": "so far"}, {"update": CALL}, {"mark": "in"}, {"sleep": 600}]

# A house in a process of its own, which opens sessions, has turns begun, and then waits to be shot.
HOUSE = """
import asyncio, sys
from pathlib import Path
from holdfast import open_holdfast
from holdfast.config import Config
from holdfast.domain.sessions import SessionRequest

async def main(home, repo, count):
    async with open_holdfast(config=Config(home=Path(home))) as house:
        for _ in range(int(count)):
            session = await house.open("peer", SessionRequest(repo_id=repo))
            await house.send(session.id, "go")
            print(session.id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


async def _settled(house: Holdfast, session_id: SessionId, turn: int) -> Session:
    """Wait until a turn has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            now = await house.sessions.get(house.owner, session_id)
            if now.settled >= turn:
                return now
            await asyncio.sleep(0.02)


async def _busy(peer: Peer, count: int) -> None:
    """Wait until so many turns are in their middle."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if len(peer.log("mark")) >= count:
                return
            await asyncio.sleep(0.02)


def _pids(peer: Peer) -> list[int]:
    return [each["pid"] for each in peer.log("start")]


ENDS = [
    ("exits when its input closes", {}),
    ("needs a signal", {"ignore": ["eof"]}),
    ("needs to be killed", {"ignore": ["eof", "TERM"]}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("how", "script"), ENDS)
async def test_leaving_ends_five_programs_at_the_same_time(
    tmp_path: Path, how: str, script: dict[str, Any]
) -> None:
    async with aboard(tmp_path, **script) as ship:
        for _ in range(5):
            await ship.tell(await ship.open())
        pids = _pids(ship.peer)
        assert all(map(_is_alive, pids))
        left_at = time.monotonic()

    assert time.monotonic() - left_at < 10, how
    assert (len(pids), [pid for pid in pids if _is_alive(pid)]) == (5, [])


async def test_leaving_in_the_middle_of_turns_ends_them_too(tmp_path: Path) -> None:
    async with aboard(tmp_path, ignore=["eof", "TERM"], on={"session/prompt": BUSY}) as ship:
        for _ in range(3):
            session = await ship.open()
            await ship.house.send(session.id, "go")
        await _busy(ship.peer, 3)
        pids = _pids(ship.peer)
        left_at = time.monotonic()

    assert time.monotonic() - left_at < 10.5
    assert [pid for pid in pids if _is_alive(pid)] == []


async def test_after_a_crash_no_program_lives_and_every_session_can_go_on(tmp_path: Path) -> None:
    async with aboard(tmp_path, on={"session/prompt": BUSY}) as ship:
        repo, home = ship.repo.id, tmp_path / "home"
    # Died with nobody to end them: these would live on.
    ship.peer.write(on={"session/prompt": BUSY}, ignore=["eof", "HUP", "TERM"])
    bystander = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    house = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOUSE, str(home), repo, "3"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert house.stdout is not None
        ids = [await asyncio.to_thread(house.stdout.readline) for _ in range(3)]
        await _busy(ship.peer, 3)
        # What the program has sent may not be on record yet.
        async with open_holdfast(config=Config(home=home), scope=RunScope.NONE) as beside:
            while not await calls_of(beside, SessionId(ids[0].strip()), turn=1):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        house.send_signal(signal.SIGKILL)
        house.wait()
        ship.peer.write()
        async with open_holdfast(config=Config(home=home)) as again:
            living = [pid for pid in _pids(ship.peer) if _is_alive(pid)]
            sessions = [await _settled(again, SessionId(each.strip()), 1) for each in ids]
            rows = await again.read(sessions[0].id)
            calls = await calls_of(again, sessions[0].id, turn=1)
            await again.send(sessions[0].id, "go on")
            await _settled(again, sessions[0].id, 2)
            answered = await again.read(sessions[0].id)
        assert bystander.poll() is None
    finally:
        house.kill()
        house.wait()
        house.stdout.close()  # type: ignore[union-attr]
        bystander.kill()
        bystander.wait()

    assert living == []
    assert {(each.status, each.last_stop) for each in sessions} == {
        (Status.IDLE, StopReason.INTERRUPTED)
    }
    assert {each.program.state for each in sessions if each.program} == {ProcessState.NOT_STARTED}
    assert codes(rows) == [NoticeCode.INTERRUPTED]
    assert calls == {"c": CallState.UNKNOWN}
    assert answered[-1].text == "ok"


async def test_a_question_dies_with_the_program_that_asked_it(tmp_path: Path) -> None:
    async with aboard(tmp_path, on={"session/prompt": [asking()]}) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
    async with open_holdfast(config=Config(home=tmp_path / "home")) as again:
        now = await _settled(again, session.id, 1)
        (row,) = (await again.approvals.list(again.owner, session.id)).items
        calls = await calls_of(again, session.id, turn=1)

    assert calls == {"call-asked": CallState.UNKNOWN}
    assert (row.state, row.answered_by) == (ApprovalState.EXPIRED, "agent_restarted")
    assert (now.status, now.last_stop) == (Status.IDLE, StopReason.INTERRUPTED)


async def test_a_program_ends_when_another_process_closes_its_session(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session)
        async with open_holdfast(
            config=Config(home=tmp_path / "home"), scope=RunScope.NONE
        ) as other:
            await other.sessions.close(other.owner, session.id)
        now = await ship.until(session, stands(ProcessState.EXITED))
        living = [pid for pid in _pids(ship.peer) if _is_alive(pid)]

    assert (now.status, living) == (Status.COMPLETED, [])


async def test_a_turn_is_stopped_by_another_process(tmp_path: Path) -> None:
    steps = [{"text": "so far"}, {"mark": "in"}, "until_cancel"]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await ship.logged("mark", name="in")
        async with open_holdfast(
            config=Config(home=tmp_path / "home"), scope=RunScope.NONE
        ) as other:
            await other.sessions.interrupt(other.owner, session.id)
        await ship.logged("cancelled")
        now = await ship.now(session)

    assert (now.last_stop, now.status) == (StopReason.ABORTED, Status.IDLE)


async def test_a_session_that_goes_on_elsewhere_has_one_program(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        config = Config(home=tmp_path / "home")
        async with open_holdfast(config=config, scope=RunScope.OWN) as other:
            await other.send(session.id, "two")
            await _settled(other, session.id, 2)
            await asyncio.sleep(1.5)
            living = [pid for pid in _pids(ship.peer) if _is_alive(pid)]

    # Whoever played the second turn has the only one; it may have been either of them.
    assert len(living) == 1


@demands("S1-090c", "S1-091", "S1-091b")
async def test_an_idle_session_is_swept_with_its_program_and_updates_keep_it(
    tmp_path: Path,
) -> None:
    usage = {"update": {"sessionUpdate": "usage_update", "used": "$turn", "size": 100}}
    busy = [{"repeat": {"count": 10, "steps": [usage, {"sleep": 0.4}]}}, {"text": "still here"},
            {"reply": {"stopReason": "end_turn"}}]  # fmt: skip
    idle = 3 / 60
    async with aboard(
        tmp_path, config_idle_timeout_minutes=idle, on={"session/prompt": busy}
    ) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        awake = await ship.now(session)
        swept = await ship.until(session, lambda each: each.status is Status.COMPLETED)
        await ship.until(session, stands(ProcessState.EXITED))
        living = [pid for pid in _pids(ship.peer) if _is_alive(pid)]

    assert rows[-1].text == "still here"
    assert (awake.status, swept.reason, living) == (Status.IDLE, "idle_timeout", [])
    assert len(ship.peer.got("session/cancel")) == 1


async def test_a_slot_is_freed_by_a_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config: dict[str, Any] = {"config_max_concurrent_sessions": 1}
    with caplog.at_level("INFO", logger="holdfast.services.agent_processes"):
        async with aboard(tmp_path, on={"session/prompt": [{"exit": 1}]}, **config) as ship:
            first = await ship.open()
            await ship.tell(first)
            second = await ship.open()

    # Told after the turn's last commit, so possibly after the next session has opened.
    told = [vars(each)["fields"] for each in caplog.records if "active_changed" in each.msg]
    freed = [(each["session_id"], each["cause"]) for each in told if each["delta"] < 0]
    assert freed[:1] == [(first.id, "failed")]
    assert second.id != first.id
