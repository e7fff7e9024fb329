"""Loading a long session in a fresh process: all of it, and its end."""

import asyncio
import subprocess
import sys
from pathlib import Path

from bench.figures import Figure, at_most, measures, middle
from bench.yardsticks import raw_appends, raw_read, raw_store
from holdfast import RunScope, open_holdfast

MESSAGES = 10_000
LAST = 50
TIMES = 7

READER = """
import asyncio, sys, time
from bench.reads import timed
print(asyncio.run(timed(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
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
        "load_10k": _figure(home, session_id, raw, MESSAGES, 2),
        "tail_50_of_10k": _figure(home, session_id, raw, LAST, 3),
    }


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


async def _filled(home: Path) -> str:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        for start in range(0, MESSAGES, 100):
            await asyncio.gather(
                *(holdfast.send(session.id, "x" * 200) for _ in range(start, start + 100))
            )
    return session.id
