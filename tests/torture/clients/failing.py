"""A server that is refused memory at the Nth time it asks, and that works in between."""

import asyncio
import faulthandler
import importlib
import importlib.util
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import SessionId, open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.clients.starved import Work, little_memory, modest_work, tried
from tests.torture.crew import HUNG, STARVED

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
    watch = Watch(asyncio.get_running_loop())
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


class Watch:
    """Ends a process in which nothing goes on any more: neither by our fault, nor by Python's.

    Python's own loop forgets a task when it finds no memory to note what the task waits for, and
    a callback for which it finds none. Callbacks of the store are not excused: it tells again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.begun = time.monotonic()
        self._loop = loop
        self._has_lost_its_own = False
        loop.set_exception_handler(self._note)
        threading.Thread(target=self._watch, daemon=True).start()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_starved = isinstance(context.get("exception"), MemoryError) and "handle" in context
        if is_starved and "holdfast/store" not in repr(context["handle"]):
            self._has_lost_its_own = True
        loop.default_exception_handler(context)

    def _watch(self) -> None:
        while time.monotonic() - self.begun < PATIENCE:
            time.sleep(1)
        tasks = asyncio.all_tasks(self._loop)
        is_forgotten = self._has_lost_its_own or any(map(forgotten, tasks))
        faulthandler.dump_traceback()
        os._exit(STARVED if is_forgotten else HUNG)


def forgotten(task: asyncio.Task[Any]) -> bool:
    """Tell whether a task waits for nothing, or for what has come long ago."""
    waits_for = getattr(task, "_fut_waiter", None)
    return not task.done() and (waits_for is None or waits_for.done())


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
