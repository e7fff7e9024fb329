"""A client that asks the same things again and again, all copies at once."""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from holdfast import open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, settings

AT_ONCE = 100


async def main(
    home: str, record: str, asked: list[tuple[str, str, str]], copies: int, seed: int
) -> None:
    """Ask everything so many times, in no order; `asked` are verb, session and key."""
    luck = random.Random(seed)
    written = Record(Path(record))
    async with open_holdfast(config=settings(Path(home))) as house:
        client = Client(house, written)
        waiting = [each for each in asked for _ in range(copies)]
        luck.shuffle(waiting)
        for start in range(0, len(waiting), AT_ONCE):
            await asyncio.gather(*(ask(client, *each) for each in waiting[start : start + AT_ONCE]))


def ask(client: Client, verb: str, session: str, key: str) -> Coroutine[Any, Any, Any]:
    """Open, fork or send with a key."""
    match verb:
        case "open":
            return client.open(key)
        case "fork":
            return client.fork(session, key)
        case _:
            return client.send(session, key)
