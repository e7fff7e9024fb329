"""A server that runs out of files or memory in the middle of its work, and later has them again."""

import asyncio
import os
import random
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, OnBusy, SessionId, open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings

PATIENCE = 20.0
Work = Callable[[], Awaitable[Any]]
LIMITS = {"files": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}


async def main(home: str, record: str, kind: str, spare: int, seed: int) -> None:
    """Work with so many files, or so many kibibytes, to spare; then work with enough."""
    luck = random.Random(seed)
    written = Record(Path(record), synced=False)
    async with open_holdfast(config=settings(Path(home))) as house:
        client = Client(house, written)
        session = new_id(luck)
        await client.open(session)
        work = hungry_work(client, session, luck)
        limit = LIMITS[kind]
        soft, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (used(kind) + spare * (1024 if kind == "memory" else 1), hard))
        starving = [await _tried(each) for each in work]
        resource.setrlimit(limit, (soft, hard))
        written.note(starving=starving)
        written.note(sated=[await _tried(each) for each in modest_work(client, session, luck)])


def used(kind: str) -> int:
    """Return how many files are open, or how many bytes of address space are taken."""
    if kind == "files":
        return max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def hungry_work(client: Client, session: str, luck: random.Random) -> list[Work]:
    """Return work that wants readers, files and memory, some of it all at once."""
    house = client.house
    text = "long " + "words " * 100_000
    keys = [new_id(luck) for _ in range(8)]
    return [
        lambda: client.send(session, keys[0]),
        lambda: asyncio.gather(*(house.read(SessionId(session)) for _ in range(6))),
        lambda: asyncio.gather(*(client.send(session, key, text) for key in keys[1:5])),
        lambda: client.open(keys[5]),
        lambda: client.fork(session, keys[6]),
        lambda: client.send(session, keys[7], on_busy=OnBusy.INTERRUPT),
        lambda: asyncio.gather(*(house.read(SessionId(session)) for _ in range(6))),
    ]


def modest_work(client: Client, session: str, luck: random.Random) -> list[Work]:
    """Return what must work when there is enough of everything."""
    return [
        lambda: client.send(session, new_id(luck, "short")),
        lambda: client.house.read(SessionId(session)),
        lambda: client.open(new_id(luck)),
    ]


async def _tried(work: Work) -> str:
    """Wait for work and return how it ended; not at all is the worst way."""
    try:
        async with asyncio.timeout(PATIENCE):
            await work()
    except TimeoutError:
        return "hung"
    except HoldfastError as error:
        return f"refused: {error.code}"
    except Exception as error:  # noqa: BLE001 — how else it ends is what we want to know
        return f"raised: {error!r}"
    return "done"
