"""A client that reads and then writes as fast as it can, and times every commit."""

import asyncio
import random
import time
from pathlib import Path

from holdfast import RunScope, SessionId, open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings

AT_ONCE = 2


async def main(home: str, record: str, shared: str, seconds: float, seed: int) -> None:
    """Hammer a shared session and one of its own for so many seconds."""
    luck = random.Random(seed)
    written = Record(Path(record), synced=False)
    async with open_holdfast(config=settings(Path(home)), scope=RunScope.NONE) as house:
        client = Client(house, written)
        own = new_id(luck)
        await client.open(own)
        until = time.monotonic() + seconds
        times: list[float] = []

        async def work() -> None:
            while time.monotonic() < until:
                session = luck.choice([own, shared])
                await house.sessions.get(house.owner, SessionId(session))
                begun = time.monotonic()
                await client.send(session, new_id(luck, "short"))
                times.append(time.monotonic() - begun)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    written.note(commits=times)
