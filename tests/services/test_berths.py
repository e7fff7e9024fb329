"""What the store knows of programs: kept, shown, looked after, and cleared away after a crash."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Config, Holdfast, Scope, open_holdfast
from holdfast.app import Outside
from holdfast.domain.agent_processes import Birth, Ending, Exit, Mooring, ProcessState, state_of
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Denied, NotFound, Unavailable
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.messages import Media, media_handle
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.execution.workspace_folders import Workspaces
from holdfast.services.agent_processes import Berths, Ground, SessionBerth
from tests.houses import key_of, raw
from tests.stand_ins import PATIENCE, StandInMachine

pytestmark = pytest.mark.anyio

BIRTH = Birth(pid=4_000_000, group=4_000_000, started=1, boot="b")
READY = Mooring(state=ProcessState.READY, agent_session="s", birth=BIRTH, told={"mode": "plan"})


class StandInHarbour:
    """A harbour whose programs the test says are there."""

    def __init__(self) -> None:
        self.keys: set[SessionKey] = set()
        self.ended: list[SessionKey] = []
        self.reaped: list[tuple[Mooring, SessionId]] = []
        self.has_ended = asyncio.Event()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def held(self) -> frozenset[SessionKey]:
        return frozenset(self.keys)

    async def end(self, key: SessionKey, why: Ending = Ending.CLOSED) -> None:
        self.keys.discard(key)
        self.ended.append(key)
        self.has_ended.set()

    async def reap(self, mooring: Mooring, session: SessionId) -> None:
        self.reaped.append((mooring, session))
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
async def harbour() -> StandInHarbour:
    """Have a harbour without programs."""
    return StandInHarbour()


@pytest.fixture
async def berths(
    quiet: Holdfast, harbour: StandInHarbour, machine: StandInMachine
) -> AsyncIterator[Berths]:
    """Look after that harbour."""
    journal: Any = quiet.sessions._journal
    doorbell: Any = quiet.approvals._doorbell
    async with Berths(quiet.store, journal, doorbell, machine, harbour) as looking_after:
        yield looking_after


async def _berth(berths: Berths, house: Holdfast, session: Session) -> SessionBerth:
    ground = Ground(house.repos, Workspaces(house.config.home))
    berth = berths.of(ground, session, await key_of(house, session))
    assert berth is not None
    return berth


async def test_what_is_kept_is_shown_with_the_session(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    before = await berth.known()
    await berth.keep(READY)
    known = await berth.known()
    shown = (await quiet.sessions.get(quiet.owner, session.id)).program

    assert before == Mooring()
    assert known == shown
    assert (known.state, known.agent_session, known.told) == (
        ProcessState.READY,
        "s",
        {"mode": "plan"},
    )
    assert known.holder is not None


async def test_that_a_program_does_something_is_noted_without_writing_all_of_it_again(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    told = {"commands": ({"name": "x"},), "cost": 0.5}
    await berth.keep(replace(READY, told=told))
    before = await quiet.sessions.get(quiet.owner, session.id)
    with raw(quiet.config.home) as beside:
        beside.execute("CREATE TABLE written (state TEXT)")
        beside.execute(
            "CREATE TRIGGER noted AFTER UPDATE ON programs "
            "BEGIN INSERT INTO written VALUES (new.state); END"
        )

    await berth.keep(replace(READY, told=told), is_activity=True)
    after = await quiet.sessions.get(quiet.owner, session.id)
    await berth.keep(replace(READY, told={"mode": "other"}), is_activity=True)

    with raw(quiet.config.home) as beside:
        assert beside.execute("SELECT state FROM written").fetchall() == [("ready",)]
    assert after.updated_at > before.updated_at
    assert (await berth.known()).told == {"mode": "other"}


async def test_an_agent_that_is_a_model_has_no_berth(quiet: Holdfast, berths: Berths) -> None:
    session = await quiet.open()

    assert (
        berths.of(Ground(quiet.repos, Workspaces(quiet.config.home)), session, SessionKey(1))
        is None
    )


async def test_old_news_of_an_end_are_passed_over(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    other = Birth(pid=5, group=5, started=9, boot="b")
    await berth.keep(Mooring(state=ProcessState.EXITED, birth=other, exit=Exit(code=1)))
    alive = await berth.known()
    await berth.keep(Mooring(state=ProcessState.EXITED, birth=BIRTH, exit=Exit(code=2)))
    ended = await berth.known()

    assert alive.state is ProcessState.READY
    assert (ended.state, ended.exit, ended.holder) == (ProcessState.EXITED, Exit(code=2), None)


async def test_only_activity_moves_the_time(
    quiet: Holdfast, berths: Berths, session: Session, clock: Any
) -> None:
    berth = await _berth(berths, quiet, session)
    clock.advance(minutes=1)
    await berth.keep(READY)
    still = await quiet.sessions.get(quiet.owner, session.id)
    await berth.keep(READY, is_activity=True)
    moved = await quiet.sessions.get(quiet.owner, session.id)

    assert still.updated_at == session.updated_at
    assert moved.updated_at > session.updated_at


async def test_every_change_of_state_is_logged_once(
    quiet: Holdfast, berths: Berths, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    berth = await _berth(berths, quiet, session)
    with caplog.at_level(logging.INFO, logger="holdfast.services.agent_processes"):
        await berth.keep(Mooring(state=ProcessState.STARTING, birth=BIRTH))
        await berth.keep(READY)
        await berth.keep(READY)
        await berth.keep(Mooring(state=ProcessState.EXITED, birth=BIRTH, exit=Exit(signal=9)))

    told = [vars(each)["fields"] for each in caplog.records if each.msg == "agent.state_changed"]
    assert [(each["before"], each["state"], each["signal"]) for each in told] == [
        ("not_started", "starting", None),
        ("starting", "ready", None),
        ("ready", "exited", 9),
    ]


@pytest.mark.parametrize("how", ["closed", "deleted"])
async def test_a_program_is_ended_when_its_session_is(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session, how: str
) -> None:
    berth = await _berth(berths, quiet, session)
    harbour.keys.add(berth.key)
    await berth.keep(READY)
    if how == "closed":
        await quiet.sessions.close(quiet.owner, session.id)
    else:
        await quiet.sessions.delete(quiet.owner, session.id)
    async with asyncio.timeout(PATIENCE):
        await harbour.has_ended.wait()

    assert harbour.ended == [berth.key]


async def test_what_ended_with_a_deleted_session_is_nobodys_news(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    await quiet.sessions.delete(quiet.owner, session.id)
    await berth.keep(Mooring(state=ProcessState.EXITED, birth=BIRTH))

    with pytest.raises(NotFound) as caught:
        await berth.keep(READY)
    assert caught.value.code is Code.SESSION_NOT_FOUND


async def test_what_the_dead_left_behind_is_ended_and_what_lives_is_left_alone(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session, tmp_path: Path
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    harbour.keys.add(berth.key)
    ours = await berths.recover()
    harbour.keys.clear()
    left = await berths.recover()
    known = await berth.known()
    again = await berths.recover()

    assert (ours, left, again) == ((), (berth.key,), ())
    assert [(mooring.birth, name) for mooring, name in harbour.reaped] == [(BIRTH, session.id)]
    assert (known.state, known.agent_session, known.birth) == (
        ProcessState.NOT_STARTED,
        "s",
        None,
    )


async def test_a_program_that_is_started_while_a_dead_one_is_cleared_away_is_kept(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    born = Birth(pid=5, group=5, started=9, boot="b")
    harbour.meanwhile = lambda: berth.keep(Mooring(state=ProcessState.STARTING, birth=born))

    left = await berths.recover()

    known = await berth.known()
    assert (left, known.state, known.birth) == ((), ProcessState.STARTING, born)


async def test_how_a_program_has_ended_is_kept_though_it_was_cleared_away_meanwhile(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    """Its own process has let go of it, and has not said so yet."""
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    left = await berths.recover()
    await berth.keep(Mooring(state=ProcessState.EXITED, birth=BIRTH, exit=Exit(code=3)))

    known = await berth.known()
    assert (left, known.state, known.exit) == ((berth.key,), ProcessState.EXITED, Exit(code=3))


async def test_of_a_session_that_is_deleted_meanwhile_nothing_is_cleared_away(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session
) -> None:
    """While its program is ended, or before anybody looks at it."""
    other = await quiet.open("cli", SessionRequest(repo_id=session.repo_id))
    for each in (session, other):
        await (await _berth(berths, quiet, each)).keep(READY)

    async def delete() -> None:
        for each in (session, other):
            await quiet.sessions.delete(quiet.owner, each.id)

    harbour.meanwhile = delete
    assert await berths.recover() == ()
    assert [name for _, name in harbour.reaped] == [session.id]


async def test_a_program_of_which_nobody_says_whose_it_is_is_ended(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    key = await key_of(quiet, session)
    await quiet.store.write(lambda tx: tx.programs.save(key, READY))

    assert await berths.recover() == (key,)


async def test_a_store_that_cannot_be_read_keeps_nobody_from_looking_again(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    harbour.keys.add(berth.key)
    berths.store = doubting = Doubting(quiet.store)
    await berth.keep(READY)
    async with asyncio.timeout(PATIENCE):
        await doubting.was_asked.wait()
    nothing = await berths.recover()
    doubting.doubts = False
    await quiet.sessions.close(quiet.owner, session.id)
    async with asyncio.timeout(PATIENCE):
        await harbour.has_ended.wait()

    assert (nothing, harbour.ended) == ((), [berth.key])


async def test_a_process_that_may_live_keeps_its_program(
    quiet: Holdfast, berths: Berths, harbour: StandInHarbour, session: Session, machine: Any
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    other = StandInMachine("second")
    journal: Any = quiet.sessions._journal
    doorbell: Any = quiet.approvals._doorbell
    async with Berths(quiet.store, journal, doorbell, other, harbour) as beside:
        alive = await beside.recover()
        other.dead.add(machine.holder())
        dead = await beside.recover()

    assert (alive, dead) == ((), (berth.key,))


async def test_the_folder_is_judged_at_each_start(
    quiet: Holdfast, berths: Berths, session: Session, tmp_path: Path
) -> None:
    berth = await _berth(berths, quiet, session)
    folder = await berth.folder()
    (tmp_path / "tree").rename(tmp_path / "moved")
    (tmp_path / "tree").symlink_to(tmp_path / "moved")

    with pytest.raises(Denied) as caught:
        await berth.folder()
    assert folder == str(tmp_path / "tree")
    assert caught.value.code is Code.REPO_OUTSIDE_ROOT


async def test_an_attachment_is_put_into_a_private_file_once(
    quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    media = Media(mime_type="image/png", ref=media_handle(b"dots"), name="../a b.png")

    first, second = [await berth.put(media, b"dots") for _ in range(2)]

    assert first == second
    path = Path(first)
    content = await asyncio.to_thread(path.read_bytes)
    assert (content, path.name.endswith("-a b.png")) == (b"dots", True)
    assert path.parent.parent == Path(Workspaces(quiet.config.home).of(quiet.owner, session.id))


async def test_a_damaged_row_is_passed_over_and_named_by_the_doctor(
    home: Path, outside: Outside, quiet: Holdfast, berths: Berths, session: Session
) -> None:
    berth = await _berth(berths, quiet, session)
    await berth.keep(READY)
    with raw(home) as connection:
        connection.execute("UPDATE programs SET body = x'7b7d'")
    async with open_holdfast(config=Config(home=home), outside=outside, scope=Scope.NONE) as again:
        shown = await again.sessions.get(again.owner, session.id)
        left = await again.berths.recover()
        faults = await again.store.check()

    assert (shown.program, left) == (None, ())
    assert faults == [f"the program of session {session.id} is damaged."]


@pytest.mark.parametrize(
    ("mooring", "is_running", "state"),
    [
        (None, True, ProcessState.NOT_STARTED),
        (READY, False, ProcessState.READY),
        (READY, True, ProcessState.BUSY),
        (Mooring(state=ProcessState.STARTING), True, ProcessState.STARTING),
        (Mooring(state=ProcessState.EXITED), True, ProcessState.EXITED),
    ],
)
def test_a_program_is_busy_while_a_turn_runs(
    mooring: Mooring | None, is_running: bool, state: ProcessState
) -> None:
    assert state_of(mooring, is_running=is_running) is state
