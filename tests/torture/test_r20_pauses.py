"""R20: the process that plays is paused past its lease and then goes on, into a closed door."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.queries import SessionQuery
from tests.marks import proves
from tests.torture.audit import audit
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew, wait_until
from tests.torture.notebooks import News, read_books
from tests.torture.recovery import recovered, waiting
from tests.torture.servers import Servers, holds, said_by, write_lock_is_free
from tests.torture.test_r19_holders import TURN_MS, called

pytestmark = pytest.mark.slow

SESSIONS = 3
CONTROL_TRIES = 20


@proves("R20")
def test_a_paused_holder_writes_nothing_after_it_lost_its_lease(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    pauses = sized(test=1, torture=7, release=34)

    fenced = pausing_spree(tmp_path, crew, luck, pauses=pauses)
    result = audit(tmp_path / "home", records=tmp_path.glob("*.jsonl"), mark=crew.mark)

    tell(f"{fenced} leases lost in {pauses} pauses, 0 writes after fencing")
    assert result.is_clean, result
    assert fenced >= pauses
    assert late_voices(tmp_path / "home") == []


@proves("R20")
def test_the_pause_finds_a_holder_without_a_fence(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    assert finds_late_voices(tmp_path, crew, luck)


def finds_late_voices(folder: Path, crew: Crew, luck: random.Random) -> bool:
    """Pause servers that write without a fence until one speaks inside the step of another.

    Once is not enough: the other server may have finished its turns before the first one wakes.
    """
    home = folder / "home"
    servers, ask = opened(folder, crew, luck)
    for _ in range(CONTROL_TRIES):
        overslept(servers, home, ask, unfenced=True)
        wait_until(lambda: bool(late_voices(home)) or not waiting(home))
        crew.stop(servers.running["two"])
        crew.stop(servers.running["one"])
        if late_voices(home):
            return True
    return False


def pausing_spree(
    folder: Path, crew: Crew, luck: random.Random, *, pauses: int, tools: bool = False
) -> int:
    """Pause one server amid turns until another has ended them; return how many turns it lost."""
    home = folder / "home"
    servers, ask = opened(folder, crew, luck)
    if tools:
        # The house and each session have to agree that nobody is asked.
        (home / "holdfast.toml").write_text('[chat]\napproval = "auto"\n')
        asyncio.run(unasked(home))
    lost = 0
    for _ in range(pauses):
        lost += overslept(servers, home, ask, tools=tools)
        wait_until(lambda: waiting(home) == 0)
        crew.stop(servers.running["two"])
        # When the sleeper plays again, it has tried to say what it still had to say.
        servers.holder_of_a_turn(ask)
        wait_until(lambda: waiting(home) == 0)
        crew.stop(servers.running["one"])
    asyncio.run(recovered(home))
    return lost


def opened(folder: Path, crew: Crew, luck: random.Random) -> tuple[Servers, Callable[[], None]]:
    """Open a few sessions; return the servers to come, and how to ask for a turn in each."""
    sessions = [new_id(luck) for _ in range(SESSIONS)]
    asyncio.run(called(folder, sessions, luck, opening=True))
    return Servers(crew, folder / "home"), lambda: asyncio.run(called(folder, sessions, luck))


async def unasked(home: Path) -> None:
    """Have the tools of all sessions run as soon as they are called."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        for session in (await house.sessions.list(SessionQuery(owner=house.owner))).items:
            await house.sessions.update(house.owner, session.id, {"approval": "auto"})


def overslept(servers: Servers, home: Path, ask: Callable[[], None], **options: bool) -> int:
    """Wake a server up whose turns another one has ended meanwhile; return how many it lost."""
    servers.start("one", delay_ms=TURN_MS, **options)
    lost = len(paused(servers, home, ask))
    servers.start("two", tools=options.get("tools", False))
    wait_until(lambda: waiting(home) == 0)
    # While the other one plays the next turns, the sleeper has every chance to speak.
    ask()
    os.kill(servers.running["one"].pid, signal.SIGCONT)
    return lost


def late_voices(home: Path) -> list[str]:
    """Return every word that was said inside somebody else's step."""
    return [late for book in read_books(home).notebooks.values() for late in voices(book.news)]


def paused(servers: Servers, home: Path, ask: Callable[[], None]) -> list[str]:
    """Stop the server before it speaks in its turns, but not amid a commit; return those."""
    pid = servers.running["one"].pid
    while True:
        servers.holder_of_a_turn(ask)
        # Each time that is asked again adds a turn, and a session has only so many.
        wait_until(lambda: any(is_silent(home, each) for each in holds(home)) or not waiting(home))
        os.kill(pid, signal.SIGSTOP)
        held = [session for session, hold in holds(home).items() if hold.pid == pid]
        if write_lock_is_free(home) and any(is_silent(home, session) for session in held):
            return held
        os.kill(pid, signal.SIGCONT)


def is_silent(home: Path, session: str) -> bool:
    """Tell whether a step has begun in a session in which nothing was said yet."""
    names = [news.name for news in read_books(home).by_id()[session].news]
    return bool(names) and names[-1] == "step.started"


def voices(news: tuple[News, ...]) -> list[str]:
    """Return each delta in which a server speaks although another one began the step."""
    late = []
    speaker = ""
    for each in news:
        if each.name in {"step.failed", "turn.started"}:
            speaker = ""
        if each.name == "step.started":
            # The script of a server's model has the name of the server.
            speaker = Path(each.body["model"]).stem
        if each.name == "step.delta":
            speaker = speaker or said_by(each.payload)
            if said_by(each.payload) != speaker:
                late.append(f"{each.sequence}: {said_by(each.payload)} inside {speaker}")
    return late
