"""R39: opening, talking and closing in a loop leaves nothing behind, however often it is done."""

import asyncio
import ctypes
import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.acp.client.agent_process import AgentProcess
from tests.acp.harness import Aboard, aboard
from tests.acp.scripted_agents import Peer
from tests.houses import texts
from tests.marks import proves
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

# Number of sessions that are open at once.
TOGETHER = 4
# What is made once and kept: caches of the store, of Python, of the loop.
WARM = 10
# Of a mebibyte per thousand turns; noise is what one measurement differs from the next by.
GROWTH, NOISE = 1.0, 8.0


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    descriptors: int
    tasks: int
    threads: int
    children: int
    mebibytes: float

    def beyond(self, other: "Held") -> dict[str, int]:
        """Return what is held now and was not before, without the memory."""
        names = ("descriptors", "tasks", "threads", "children")
        more = {name: getattr(self, name) - getattr(other, name) for name in names}
        return {name: count for name, count in more.items() if count > 0}


@proves("R39")
@pytest.mark.parametrize("size", [1, TOGETHER], ids=["alone", "together"])
def test_what_was_opened_is_closed_again(
    tmp_path: Path, sized: Sized, tell: Tell, size: int
) -> None:
    turns = sized(quick=4, test=20, torture=1_000, release=10_000)

    before, after, wrong = asyncio.run(_looped(tmp_path, turns, size))

    grown = after.mebibytes - before.mebibytes
    left = after.beyond(before) or "nothing"
    tell(f"{turns} turns, {size} at once, left behind {left}, {grown:.1f} MiB more")
    assert wrong == []
    assert after.beyond(before) == {}
    assert grown < NOISE + GROWTH * turns / 1_000


async def _looped(folder: Path, turns: int, size: int) -> tuple[Held, Held, list[int]]:
    """Talk to many agents, one after the other, in a house that is closed in the end.

    Measured without one, because an open house remembers so many sessions, within its bounds.
    """
    await _house(folder / "warm", WARM, size)
    before = await _held()
    wrong = await _house(folder / "loop", turns, size)
    return before, await _held(like=before), wrong


async def _house(folder: Path, turns: int, size: int) -> list[int]:
    async with aboard(folder) as ship:
        return [number for number in range(0, turns, size) if not await _round_trip(ship, size)]


async def _round_trip(ship: Aboard, size: int) -> bool:
    """Talk in so many sessions at once, each with a process of its own, and close them all."""
    sessions = [await ship.open() for _ in range(size)]
    told = await asyncio.gather(*(ship.tell(each, "hello") for each in sessions))
    for session in sessions:
        await ship.house.sessions.close(ship.house.owner, session.id)
    programs = len(ship.peer.log("start"))
    # Written on by every process.
    ship.peer.log_file.unlink()
    whole = [("user", "hello"), ("assistant", "ok")]
    return programs == size and all(texts(rows) == whole for rows in told)


@proves("R39")
def test_control_a_program_that_is_not_ended_is_seen(tmp_path: Path, tell: Tell) -> None:
    left = asyncio.run(_forgotten(Peer(tmp_path / "peer")))

    tell(f"control: {left} left behind by one program")
    assert left.keys() >= {"descriptors", "tasks", "children"}


async def _forgotten(peer: Peer) -> dict[str, int]:
    before = await _held()
    program = await AgentProcess.spawn(peer.start())
    await program.connection.request("initialize", {})
    after = await _held(like=before, seconds=0.5)
    await program.end()
    return after.beyond(before)


async def _held(like: Held | None = None, seconds: float = 30.0) -> Held:
    """Return what is held, when everybody who was told to go has had time for it."""
    for _ in range(int(seconds / 0.05)):
        gc.collect()
        held = _now()
        if like is not None and not held.beyond(like):
            break
        await asyncio.sleep(0.05)
        if like is None and held.beyond(_now()) == {}:
            break
    # What was freed is given back first, or it would look as if it were held.
    ctypes.CDLL(None).malloc_trim(0)
    return _now()


def _now() -> Held:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        descriptors=len(os.listdir("/proc/self/fd")),
        tasks=len(asyncio.all_tasks()),
        # Those of the loop's own pool stay, and are at most as many as the pool has.
        threads=sum(not each.name.startswith("asyncio_") for each in threading.enumerate()),
        children=len(_children()),
        mebibytes=pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20),
    )


def _children() -> list[int]:
    """Return the processes whose parent is this one."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found
