"""A server that runs out of files or memory in the middle of its work, and later has them again."""

import asyncio
import faulthandler
import gc
import inspect
import logging
import os
import random
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import _base
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError, OnBusy, SessionId, open_holdfast
from holdfast.app import Environment
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.crew import HUNG, STARVED
from tests.torture.spies import FrankStore, SulkingStore

PATIENCE = 120.0
# What a control breaks on purpose.
FAULTS: dict[str, Any] = {"frank": FrankStore, "sulking": SulkingStore}
PRODUCT = str(Path(holdfast.__file__).parent)
KIBIBYTE = 1024
MUCH = "long " + "words " * 100_000
Work = Callable[[], Awaitable[Any]]


async def main(home: str, record: str, famine: tuple[str, int], seed: int, fault: str = "") -> None:
    """Work with so many files, or so many kibibytes, to spare; then work with enough."""
    kind, spare = famine
    luck = random.Random(seed)
    written = Record(Path(record), synced=False)
    watch = Watch(asyncio.get_running_loop(), 1.5 * PATIENCE)
    outside = Environment(wrap=FAULTS[fault]) if fault else Environment()
    async with open_holdfast(config=settings(Path(home)), outside=outside) as house:
        client = Client(house, written)
        session = new_id(luck)
        await client.open(session)
        for _ in range(3):
            await client.send(session, new_id(luck), MUCH)
        work = hungry_work(client, session, luck)
        with FAMINES[kind](spare):
            starving = [await watch.tried(each) for each in work]
        written.note(starving=starving)
        later = modest_work(client, session, luck)
        written.note(sated=[await watch.tried(each) for each in later])


class Watch:
    """Ends a process in which nothing goes on any more: neither by our fault, nor by Python's.

    Python's own loop forgets a task when it finds no memory to note what the task waits for, and
    a callback for which it finds none; its executor forgets work, and what waits for it.
    Callbacks of the store are not excused: it tells again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._patience = patience
        self.begun = time.monotonic()
        self._loop = loop
        self._has_lost_its_own = False
        loop.set_exception_handler(self._note)
        logging.getLogger("concurrent.futures").addFilter(self._note_executor)
        threading.Thread(target=self._watch, daemon=True).start()

    async def tried(self, work: Work) -> str:
        """Wait for work, of which this process does not die yet, and return how it ended."""
        self.begun = time.monotonic()
        return await tried(work)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        is_starved = isinstance(context.get("exception"), MemoryError) and "handle" in context
        if is_starved and "holdfast/store" not in repr(context["handle"]):
            self._has_lost_its_own = True
        loop.default_exception_handler(context)

    def _note_executor(self, record: logging.LogRecord) -> bool:
        """Note that a thread of the executor has ended amid its work."""
        self._has_lost_its_own |= record.levelno == logging.CRITICAL
        return True

    def _watch(self) -> None:
        while time.monotonic() - self.begun < self._patience:
            time.sleep(1)
        tasks = asyncio.all_tasks(self._loop)
        is_forgotten = self._has_lost_its_own or any(map(forgotten, tasks)) or executor_is_stuck()
        faulthandler.dump_traceback()
        for task in tasks:
            print(task.get_name(), places(task.get_coro()), file=sys.stderr)
        os._exit(STARVED if is_forgotten else HUNG)


def forgotten(task: asyncio.Task[Any]) -> bool:
    """Tell whether a task waits for nothing, or for what has come long ago."""
    waits_for = getattr(task, "_fut_waiter", None)
    return not task.done() and (waits_for is None or waits_for.done())


def places(awaited: Any) -> list[str]:
    """Return where each coroutine of a chain waits for the next one."""
    found: list[str] = []
    while awaited is not None:
        if inspect.iscoroutine(awaited):
            frame, following = awaited.cr_frame, awaited.cr_await
        elif inspect.isasyncgen(awaited):
            frame, following = awaited.ag_frame, awaited.ag_await
        else:
            # What waits for an asynchronous generator refers to it only in C.
            frame = None
            following = next(filter(inspect.isasyncgen, gc.get_referents(awaited)), None)
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else repr(awaited))
        awaited = following
    return found


def executor_is_stuck() -> bool:
    """Tell whether a thread of Python's executor cannot say that its work is done."""
    frames = sys._current_frames().values()
    stacks = [traceback.extract_stack(frame) for frame in frames]
    return any(each.filename == _base.__file__ for stack in stacks for each in stack)


@contextmanager
def few_files(spare: int) -> Iterator[None]:
    """Let this process open no more than so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def little_memory(spare: int) -> Iterator[None]:
    """Let this process have no more than so many kibibytes beyond what it has and uses."""
    # Data and not address space: threads have set that aside in large, empty stretches.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
    resource.setrlimit(resource.RLIMIT_DATA, (used * KIBIBYTE, hard))
    # What lies free inside the process is taken first, and only then something is given.
    ballast = _all_there_is()
    resource.setrlimit(resource.RLIMIT_DATA, ((used + spare) * KIBIBYTE, hard))
    try:
        yield
    finally:
        ballast.clear()
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


FAMINES = {"files": few_files, "memory": little_memory}


def _all_there_is() -> list[bytearray]:
    """Take all memory that can be had, the largest pieces first and the smallest last."""
    taken: list[bytearray] = []
    size = 1 << 24
    while size >= KIBIBYTE:
        try:
            taken.append(bytearray(size))
        except MemoryError:
            size //= 2
    return taken


def hungry_work(client: Client, session: str, luck: random.Random) -> list[Work]:
    """Return work that wants readers, files and memory, some of it all at once."""
    house = client.house
    keys = [new_id(luck) for _ in range(8)]
    return [
        lambda: client.send(session, keys[0]),
        lambda: asyncio.gather(*(house.read(SessionId(session)) for _ in range(6))),
        lambda: asyncio.gather(*(client.send(session, key, MUCH) for key in keys[1:5])),
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


async def tried(work: Work) -> str:
    """Wait for work and return how it ended; not at all is the worst way."""
    try:
        async with asyncio.timeout(PATIENCE):
            await work()
    except TimeoutError:
        return "hung"
    except HoldfastError as error:
        return f"refused: {error.code}"
    except Exception as error:  # noqa: BLE001 — how else it ends is what we want to know
        return f"raised in {place_of(error)}: {error!r}"
    return "done"


def place_of(error: Exception) -> str:
    """Return whether an error comes out of the store, out of something else of ours, or neither."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [each.filename.removeprefix(PRODUCT) for each in frames if PRODUCT in each.filename]
    if any(file.startswith("/store/") for file in files):
        return "the store"
    if "/app.py" in files:
        return "the house"
    return files[-1].strip("/") if files else "the client"
