"""Opening a store in a fresh process, and loading a long session: all of it, and its end."""

import asyncio
import subprocess
import sys
from pathlib import Path

from bench.figures import Figure, at_most, below, measures, middle
from bench.yardsticks import raw_appends, raw_read, raw_store
from holdfast import RunScope, open_holdfast

MESSAGES = 10_000
LAST = 50
SESSIONS = 1_000
TIMES = 7
OPENINGS = 15

READER = """
import asyncio, sys, time
from bench.reads import timed
print(asyncio.run(timed(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
"""

OPENER = """
import asyncio, sys
from bench.reads import opened
print(asyncio.run(opened(*sys.argv[1:])))
"""


@measures("load_10k", "tail_50_of_10k")
def reads(folder: Path) -> dict[str, Figure]:
    """Each reading is a process of its own; the yardstick opens its file anew as well."""
    home = folder / "home"
    session_id = asyncio.run(_filled(home))
    raw = folder / "raw.db"
    cursor = raw_store(raw)
    raw_appends(cursor, 1, MESSAGES)
    return {
        "load_10k": _figure(home, session_id, raw, MESSAGES, 1.8),
        "tail_50_of_10k": _figure(home, session_id, raw, LAST, 3),
    }


@measures("open_ms", "open_tail_ms")
def openings(folder: Path) -> dict[str, Figure]:
    """Open a store with many sessions, and read the last messages of a long one, from nothing.

    Importing `open_holdfast` is not counted; what it imports when it is called is.
    """
    many, long = folder / "many", folder / "long"
    asyncio.run(_crowded(many))
    session_id = asyncio.run(_filled(long))
    return {
        "open_ms": below(_opened(many), "ms", 20),
        "open_tail_ms": below(_opened(long, session_id), "ms", 25),
    }


def _opened(home: Path, *session: str) -> float:
    command = [sys.executable, "-c", OPENER, str(home), *session]
    taken = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(OPENINGS)
    ]
    return middle(taken) * 1000


def _figure(home: Path, session_id: str, raw: Path, count: int, goal: float) -> Figure:
    ours, bare = [], []
    for _ in range(TIMES):
        bare.append(raw_read(raw, MESSAGES, count) * 1000)
        command = [sys.executable, "-c", READER, str(home), session_id, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        ours.append(float(done.stdout) * 1000)
    return at_most(middle(ours), "ms", middle(bare), goal)


async def timed(home: str, session_id: str, count: int) -> float:
    """Return the seconds to read the last messages, from an open store to decoded values."""
    import time

    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        started = time.perf_counter()
        page = await holdfast.messages.list(
            holdfast.owner, session_id, before=MESSAGES + 1, limit=count
        )
        seconds = time.perf_counter() - started
    if len(page.items) != count:
        raise AssertionError(f"{len(page.items)} rows")
    return seconds


async def opened(home: str, session_id: str | None = None) -> float:
    """Return the seconds until the store is open, and the last messages of the session are read."""
    import time

    started = time.perf_counter()
    async with open_holdfast(home) as holdfast:
        if session_id is not None:
            await holdfast.messages.list(
                holdfast.owner, session_id, before=MESSAGES + 1, limit=LAST
            )
        return time.perf_counter() - started


async def _crowded(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        for _ in range(SESSIONS):
            session = await holdfast.open()
            await holdfast.send(session.id, "x" * 200)
            await holdfast.sessions.close(holdfast.owner, session.id)


async def _filled(home: Path) -> str:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        for start in range(0, MESSAGES, 100):
            await asyncio.gather(
                *(holdfast.send(session.id, "x" * 200) for _ in range(start, start + 100))
            )
        # Otherwise whoever opens the store next runs a turn for each.
        await holdfast.sessions.close(holdfast.owner, session.id)
    return session.id
