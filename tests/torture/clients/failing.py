"""A server that is refused memory at the Nth time it asks, and that works in between."""

import asyncio
import importlib
import importlib.util
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import SessionId, open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.clients.starved import Watch, Work, little_memory, modest_work, tried

# Python's own tests bring this along; where they are not installed, little memory has to do.
HOOKS = "_testcapi"
# How often each verb asks, its turn included, and somewhat more: then something later meets it.
REQUESTS = {"send": 2_500, "read": 600, "open": 1_500, "fork": 2_500, "rest": 400}
KIBIBYTES = 3_000
# Seconds for one round, which takes a tenth of one.
PATIENCE = 30.0


async def main(home: str, record: str, first: int, last: int) -> None:
    """Work once for each number, with luck that falls the same way for the same number."""
    written = Record(Path(record), synced=False)
    watch = Watch(asyncio.get_running_loop(), PATIENCE)
    async with open_holdfast(config=settings(Path(home))) as house:
        client = Client(house, written)
        for number in range(first, last):
            watch.begun = time.monotonic()
            written.note(begun=number)
            luck = random.Random(number)
            session = new_id(luck)
            await client.open(session)
            verb = luck.choice(list(REQUESTS))
            work = work_of(verb, client, session, luck)
            with no_memory(luck, REQUESTS[verb]):
                end = await tried(work)
            later = [await tried(each) for each in modest_work(client, session, luck)]
            written.note(number=number, starving=[end], sated=later)


@contextmanager
def no_memory(luck: random.Random, requests: int) -> Iterator[None]:
    """Refuse one of so many requests for memory."""
    if importlib.util.find_spec(HOOKS) is None:
        with little_memory(luck.randrange(KIBIBYTES)):
            yield
        return
    hooks: Any = importlib.import_module(HOOKS)
    refused = luck.randrange(1, requests)
    hooks.set_nomemory(refused, refused + 1)
    try:
        yield
    finally:
        hooks.remove_mem_hooks()


def work_of(verb: str, client: Client, session: str, luck: random.Random) -> Work:
    """Return one piece of work."""
    key = new_id(luck)
    works: dict[str, Work] = {
        "send": lambda: client.send(session, key),
        "read": lambda: client.house.read(SessionId(session)),
        "open": lambda: client.open(key),
        "fork": lambda: client.fork(session, key),
        "rest": client.house.maintenance.prune,
    }
    return works[verb]
