"""What the store knows of programs: kept, shown, looked after, and cleared away after a crash."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Config, Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.agent_processes import (
    ProcessEnding,
    ProcessExit,
    ProcessIdentity,
    ProcessRecord,
    ProcessState,
    process_state,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Denied, NotFound, Unavailable
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.messages import Media, media_handle
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.services.agent_processes import AgentProcesses, SessionProcessSlot, WorkspaceResolver
from holdfast.store.agent_processes import record_of
from holdfast.store.database import checksum, encode
from tests.houses import key_of, raw
from tests.marks import each_case
from tests.stand_ins import PATIENCE, StandInMachine

pytestmark = pytest.mark.anyio

BIRTH = ProcessIdentity(pid=4_000_000, group=4_000_000, started=1, boot="b")
READY = ProcessRecord(
    state=ProcessState.READY, agent_session="s", birth=BIRTH, about={"mode": "plan"}
)


class StandInHarbour:
    """A harbour whose programs the test says are there."""

    def __init__(self) -> None:
        self.keys: set[SessionKey] = set()
        self.ended: list[SessionKey] = []
        self.reaped: list[tuple[ProcessRecord, SessionId]] = []
        self.has_ended = asyncio.Event()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def held(self) -> frozenset[SessionKey]:
        return frozenset(self.keys)

    async def end(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        self.keys.discard(key)
        self.ended.append(key)
        self.has_ended.set()

    async def reap(self, process_record: ProcessRecord, session: SessionId) -> None:
        self.reaped.append((process_record, session))
        if self.meanwhile is not None:
            await self.meanwhile()


class Doubting:
    """A store that cannot be read as long as the test says so."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.doubts = True
        self.was_asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Any) -> Any:
        if not self.doubts:
            return await self._store.read(work)
        self.was_asked.set()
        raise Unavailable(Code.STORE_BUSY, "busy")


@pytest.fixture
async def session(quiet: Holdfast, tmp_path: Path) -> Session:
    """Open a session with an agent that is a program."""
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    await quiet.agents.create(quiet.owner, {"name": "Cli", "runtime": AcpRuntime(command="sh")})
    repo = await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)
    return await quiet.open("cli", SessionRequest(repo_id=repo.id))


@pytest.fixture
async def process_pool() -> StandInHarbour:
    """Have a harbour without programs."""
    return StandInHarbour()


@pytest.fixture
async def agent_processes(
    quiet: Holdfast, process_pool: StandInHarbour, machine: StandInMachine
) -> AsyncIterator[AgentProcesses]:
    """Look after that harbour."""
    journal: Any = quiet.sessions._journal
    doorbell: Any = quiet.approvals._doorbell
    async with AgentProcesses(
        quiet.store, journal, doorbell, machine, process_pool
    ) as looking_after:
        yield looking_after


async def _berth(
    agent_processes: AgentProcesses, house: Holdfast, session: Session
) -> SessionProcessSlot:
    ground = WorkspaceResolver(house.repos, WorkspaceFolders(house.config.home))
    process_slot = agent_processes.of(ground, session, await key_of(house, session))
    assert process_slot is not None
    return process_slot


async def test_what_is_kept_is_shown_with_the_session(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    before = await process_slot.known()
    await process_slot.keep(READY)
    known = await process_slot.known()
    shown = (await quiet.sessions.get(quiet.owner, session.id)).program

    assert before == ProcessRecord()
    assert known == shown
    assert (known.state, known.agent_session, known.about) == (
        ProcessState.READY,
        "s",
        {"mode": "plan"},
    )
    assert known.holder is not None


async def test_that_a_program_does_something_is_noted_without_writing_all_of_it_again(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    told = {"commands": ({"name": "x"},), "cost": 0.5}
    await process_slot.keep(replace(READY, about=told))
    before = await quiet.sessions.get(quiet.owner, session.id)
    with raw(quiet.config.home) as beside:
        beside.execute("CREATE TABLE written (state TEXT)")
        beside.execute(
            "CREATE TRIGGER noted AFTER UPDATE ON programs "
            "BEGIN INSERT INTO written VALUES (new.state); END"
        )

    await process_slot.keep(replace(READY, about=told), is_activity=True)
    after = await quiet.sessions.get(quiet.owner, session.id)
    await process_slot.keep(replace(READY, about={"mode": "other"}), is_activity=True)

    with raw(quiet.config.home) as beside:
        assert beside.execute("SELECT state FROM written").fetchall() == [("ready",)]
    assert after.updated_at > before.updated_at
    assert (await process_slot.known()).about == {"mode": "other"}


async def test_an_agent_that_is_a_model_has_no_berth(
    quiet: Holdfast, agent_processes: AgentProcesses
) -> None:
    session = await quiet.open()

    assert (
        agent_processes.of(
            WorkspaceResolver(quiet.repos, WorkspaceFolders(quiet.config.home)),
            session,
            SessionKey(1),
        )
        is None
    )


async def test_old_news_of_an_end_are_passed_over(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    other = ProcessIdentity(pid=5, group=5, started=9, boot="b")
    await process_slot.keep(
        ProcessRecord(state=ProcessState.EXITED, birth=other, exit=ProcessExit(code=1))
    )
    alive = await process_slot.known()
    await process_slot.keep(
        ProcessRecord(state=ProcessState.EXITED, birth=BIRTH, exit=ProcessExit(code=2))
    )
    ended = await process_slot.known()

    assert alive.state is ProcessState.READY
    assert (ended.state, ended.exit, ended.holder) == (
        ProcessState.EXITED,
        ProcessExit(code=2),
        None,
    )


async def test_only_activity_moves_the_time(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session, clock: Any
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    clock.advance(minutes=1)
    await process_slot.keep(READY)
    still = await quiet.sessions.get(quiet.owner, session.id)
    await process_slot.keep(READY, is_activity=True)
    moved = await quiet.sessions.get(quiet.owner, session.id)

    assert still.updated_at == session.updated_at
    assert moved.updated_at > session.updated_at


async def test_every_change_of_state_is_logged_once(
    quiet: Holdfast,
    agent_processes: AgentProcesses,
    session: Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    with caplog.at_level(logging.INFO, logger="holdfast.services.agent_processes"):
        await process_slot.keep(ProcessRecord(state=ProcessState.STARTING, birth=BIRTH))
        await process_slot.keep(READY)
        await process_slot.keep(READY)
        await process_slot.keep(
            ProcessRecord(state=ProcessState.EXITED, birth=BIRTH, exit=ProcessExit(signal=9))
        )

    told = [vars(each)["fields"] for each in caplog.records if each.msg == "agent.state_changed"]
    assert [(each["before"], each["state"], each["signal"]) for each in told] == [
        ("not_started", "starting", None),
        ("starting", "ready", None),
        ("ready", "exited", 9),
    ]


@pytest.mark.parametrize("how", ["closed", "deleted"])
async def test_a_program_is_ended_when_its_session_is(
    quiet: Holdfast,
    agent_processes: AgentProcesses,
    process_pool: StandInHarbour,
    session: Session,
    how: str,
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    process_pool.keys.add(process_slot.key)
    await process_slot.keep(READY)
    if how == "closed":
        await quiet.sessions.close(quiet.owner, session.id)
    else:
        await quiet.sessions.delete(quiet.owner, session.id)
    async with asyncio.timeout(PATIENCE):
        await process_pool.has_ended.wait()

    assert process_pool.ended == [process_slot.key]


async def test_what_ended_with_a_deleted_session_is_nobodys_news(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    await quiet.sessions.delete(quiet.owner, session.id)
    await process_slot.keep(ProcessRecord(state=ProcessState.EXITED, birth=BIRTH))

    with pytest.raises(NotFound) as caught:
        await process_slot.keep(READY)
    assert caught.value.code is Code.SESSION_NOT_FOUND


async def test_what_the_dead_left_behind_is_ended_and_what_lives_is_left_alone(
    quiet: Holdfast,
    agent_processes: AgentProcesses,
    process_pool: StandInHarbour,
    session: Session,
    tmp_path: Path,
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    process_pool.keys.add(process_slot.key)
    ours = await agent_processes.recover()
    process_pool.keys.clear()
    left = await agent_processes.recover()
    known = await process_slot.known()
    again = await agent_processes.recover()

    assert (ours, left, again) == ((), (process_slot.key,), ())
    assert [(process_record.birth, name) for process_record, name in process_pool.reaped] == [
        (BIRTH, session.id)
    ]
    assert (known.state, known.agent_session, known.birth) == (
        ProcessState.NOT_STARTED,
        "s",
        None,
    )


async def test_a_program_that_is_started_while_a_dead_one_is_cleared_away_is_kept(
    quiet: Holdfast, agent_processes: AgentProcesses, process_pool: StandInHarbour, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    born = ProcessIdentity(pid=5, group=5, started=9, boot="b")
    process_pool.meanwhile = lambda: process_slot.keep(
        ProcessRecord(state=ProcessState.STARTING, birth=born)
    )

    left = await agent_processes.recover()

    known = await process_slot.known()
    assert (left, known.state, known.birth) == ((), ProcessState.STARTING, born)


async def test_how_a_program_has_ended_is_kept_though_it_was_cleared_away_meanwhile(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    """Its own process has let go of it, and has not said so yet."""
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    left = await agent_processes.recover()
    await process_slot.keep(
        ProcessRecord(state=ProcessState.EXITED, birth=BIRTH, exit=ProcessExit(code=3))
    )

    known = await process_slot.known()
    assert (left, known.state, known.exit) == (
        (process_slot.key,),
        ProcessState.EXITED,
        ProcessExit(code=3),
    )


async def test_of_a_session_that_is_deleted_meanwhile_nothing_is_cleared_away(
    quiet: Holdfast, agent_processes: AgentProcesses, process_pool: StandInHarbour, session: Session
) -> None:
    """While its program is ended, or before anybody looks at it."""
    other = await quiet.open("cli", SessionRequest(repo_id=session.repo_id))
    for each in (session, other):
        await (await _berth(agent_processes, quiet, each)).keep(READY)

    async def delete() -> None:
        for each in (session, other):
            await quiet.sessions.delete(quiet.owner, each.id)

    process_pool.meanwhile = delete
    assert await agent_processes.recover() == ()
    assert [name for _, name in process_pool.reaped] == [session.id]


async def test_a_program_of_which_nobody_says_whose_it_is_is_ended(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    key = await key_of(quiet, session)
    await quiet.store.write(lambda tx: tx.programs.save(key, READY))

    assert await agent_processes.recover() == (key,)


async def test_a_store_that_cannot_be_read_keeps_nobody_from_looking_again(
    quiet: Holdfast, agent_processes: AgentProcesses, process_pool: StandInHarbour, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    process_pool.keys.add(process_slot.key)
    agent_processes.store = doubting = Doubting(quiet.store)
    await process_slot.keep(READY)
    async with asyncio.timeout(PATIENCE):
        await doubting.was_asked.wait()
    nothing = await agent_processes.recover()
    doubting.doubts = False
    await quiet.sessions.close(quiet.owner, session.id)
    async with asyncio.timeout(PATIENCE):
        await process_pool.has_ended.wait()

    assert (nothing, process_pool.ended) == ((), [process_slot.key])


async def test_a_process_that_may_live_keeps_its_program(
    quiet: Holdfast,
    agent_processes: AgentProcesses,
    process_pool: StandInHarbour,
    session: Session,
    machine: Any,
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    other = StandInMachine("second")
    journal: Any = quiet.sessions._journal
    doorbell: Any = quiet.approvals._doorbell
    async with AgentProcesses(quiet.store, journal, doorbell, other, process_pool) as beside:
        alive = await beside.recover()
        other.dead.add(machine.holder())
        dead = await beside.recover()

    assert (alive, dead) == ((), (process_slot.key,))


async def test_the_folder_is_judged_at_each_start(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session, tmp_path: Path
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    folder = await process_slot.folder()
    (tmp_path / "tree").rename(tmp_path / "moved")
    (tmp_path / "tree").symlink_to(tmp_path / "moved")

    with pytest.raises(Denied) as caught:
        await process_slot.folder()
    assert folder == str(tmp_path / "tree")
    assert caught.value.code is Code.REPO_OUTSIDE_ROOT


async def test_an_attachment_is_put_into_a_private_file_once(
    quiet: Holdfast, agent_processes: AgentProcesses, session: Session
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    media = Media(mime_type="image/png", ref=media_handle(b"dots"), name="../a b.png")

    first, second = [await process_slot.put(media, b"dots") for _ in range(2)]

    assert first == second
    path = Path(first)
    content = await asyncio.to_thread(path.read_bytes)
    assert (content, path.name.endswith("-a b.png")) == (b"dots", True)
    assert path.parent.parent == Path(
        WorkspaceFolders(quiet.config.home).of(quiet.owner, session.id)
    )


async def test_a_damaged_row_is_passed_over_and_named_by_the_doctor(
    home: Path,
    outside: Environment,
    quiet: Holdfast,
    agent_processes: AgentProcesses,
    session: Session,
) -> None:
    process_slot = await _berth(agent_processes, quiet, session)
    await process_slot.keep(READY)
    with raw(home) as connection:
        connection.execute("UPDATE programs SET body = x'7b7d'")
    async with open_holdfast(
        config=Config(home=home), outside=outside, scope=RunScope.NONE
    ) as again:
        shown = await again.sessions.get(again.owner, session.id)
        left = await again.agent_processes.recover()
        faults = await again.store.check()

    assert (shown.program, left) == (None, ())
    assert faults == [f"the program of session {session.id} is damaged."]


@each_case(
    ("process_record", "is_running", "state"),
    [
        (None, True, ProcessState.NOT_STARTED),
        (READY, False, ProcessState.READY),
        (READY, True, ProcessState.BUSY),
        (ProcessRecord(state=ProcessState.STARTING), True, ProcessState.STARTING),
        (ProcessRecord(state=ProcessState.EXITED), True, ProcessState.EXITED),
    ],
)
def test_a_program_is_busy_while_a_turn_runs(
    process_record: ProcessRecord | None, is_running: bool, state: ProcessState
) -> None:
    assert process_state(process_record, is_running=is_running) is state


async def test_a_record_of_an_older_version_keeps_what_the_program_said_of_itself() -> None:
    now = encode(replace(READY, about={"charged": 1.5}))
    before = now.replace(b'"about"', b'"told"')

    for body in (now, before):
        assert record_of(body, checksum(body)).about == {"charged": 1.5}
    bare = encode(READY).replace(b',"about":{}', b"")
    assert record_of(bare, checksum(bare)) == READY
