"""A town: two places where processes live, a storm over them, calm after it, and a judgement."""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast import Message
from holdfast.domain.ids import SessionKey
from holdfast.ports.store import Store, Tx
from tests.engine.virtual_time import VirtualTimeLoop
from tests.torture.attempts import meant
from tests.torture.audit import judge
from tests.torture.notebooks import read_books
from tests.torture.simulated.clients import Client, Visitor
from tests.torture.simulated.disks import Disk
from tests.torture.simulated.processes import GoneError, Process, make_task
from tests.torture.simulated.worlds import World
from tests.torture.strict import prefix_faults

STORM: Final = 12.0
# Longer than a lease.
LONGEST_STOP: Final = 6.0
# Seconds: a lease, its renewal, and every pause that a provider or a tool may take.
CALM: Final = 120.0
# What waits in a closed session waits until somebody opens it again.
UNSETTLED: Final = """
SELECT id
  FROM sessions
 WHERE status = 'running'
    OR (turn > settled AND status IN ('pending', 'idle'))
"""
ROWS_OF: Final = "SELECT count(*) FROM calls WHERE idempotency_key = :key"
RAISED: Final = """
SELECT session_key, turn
  FROM messages
 WHERE role = 'system'
   AND instr(parts, CAST('Internal error in Holdfast; see the log' AS BLOB))
"""


@dataclass(frozen=True)
class Life:
    """How a seed went: what was wrong with it, and the hash of all that happened."""

    faults: tuple[str, ...]
    trace: str
    deaths: int
    commits: int
    pauses: int


class Town:
    """Implements `Reachable`; wherever nobody lives somebody moves in."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._count = 0
        self._places: list[Process | None] = [None, None]

    async def reach(self) -> Process:
        """Return somebody who lives in the town, moving in if need be."""
        place = self.world.luck.randrange(len(self._places))
        process = self._places[place]
        if process is None or process.is_dead:
            if process is not None:
                await process.ended()
            self._count += 1
            process = self._places[place] = Process(self.world, self._count)
        return process

    @property
    def deaths(self) -> int:
        """Return how many have died, those who stopped in peace among them."""
        return len(self.world.dead)

    async def storm(self) -> None:
        """Stop processes for longer than a lease, kill them, set the clock, until it is over."""
        luck, loop = self.world.luck, asyncio.get_running_loop()
        while loop.time() < STORM:
            await asyncio.sleep(luck.random() * 3)
            process = await self.reach()
            what = luck.choice(("stop", "kill", "clock", "nothing"))
            self.world.note(what)
            if what == "stop":
                process.stopped_until = loop.time() + luck.choice((1.0, LONGEST_STOP))
            elif what == "kill":
                process.die()
            elif what == "clock":
                self.world.skew = timedelta(seconds=luck.choice((-3_600, 86_400, 0)))
        self.world.disk.is_stormy = False

    async def calm(self) -> Iterator[str]:
        """Wait until every turn has settled; return those that did not in time."""
        for _ in range(int(CALM)):
            left = self.world.disk.asked(UNSETTLED)
            if not left:
                break
            try:
                await (await self.reach()).ready()
            except GoneError:
                self.world.note("gone")
            await asyncio.sleep(1)
        return iter([f"STUCK {session}" for (session,) in left])

    async def leave(self) -> None:
        """Let everybody stop in peace."""
        for process in self._places:
            if process is not None and not process.is_dead:
                await process.leave()


def lived(
    folder: Path, template: Path, seed: int, wrap: Callable[[Store], Store] = lambda store: store
) -> Life:
    """Live the life of a seed, and judge it."""
    luck = random.Random(seed)
    disk = Disk(folder, template, luck)
    world = World(disk, luck, wrap)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_task_factory(make_task)
        town = Town(world)
        clients = [Client(town, number) for number in range(luck.choice((1, 2, 3)))]
        faults = [
            *runner.run(_happen(town, clients)),
            *_doubles(world),
            *_illegal(world),
            *_raised(world),
        ]
    disk.close()
    faults += judged(folder, clients)
    return Life(tuple(faults), world.trace, town.deaths, disk.commits, world.pauses)


async def _happen(town: Town, clients: list[Client]) -> list[str]:
    """Let everybody live at once, and return what never came to an end."""
    standing = [asyncio.ensure_future(Visitor(town).live())]
    standing += [asyncio.ensure_future(client.follow()) for client in clients]
    await asyncio.gather(town.storm(), *(client.live() for client in clients))
    stuck = list(await town.calm())
    # What was written last is heard a little later, by a process that is stopped after its stop.
    await asyncio.sleep(LONGEST_STOP + 2)
    for task in standing:
        task.cancel()
    await asyncio.wait(standing)
    await town.leave()
    return [*stuck, *town.world.faults]


def _doubles(world: World) -> Iterator[str]:
    """Yield each unsafe call that has acted more often than it was intended."""
    for key, count in world.acts.items():
        ((intents,),) = world.disk.asked(ROWS_OF, key=key)
        if count > intents:
            yield f"DUP {key} acted {count} times and was intended {intents} times"


def _illegal(world: World) -> Iterator[str]:
    """Yield each prefix of a history that a strict provider would refuse."""

    async def read(tx: Tx) -> list[list[Message]]:
        keys = [SessionKey(key) for (key,) in world.disk.asked("SELECT key FROM sessions")]
        lines = [await tx.sessions.lineage(key) for key in keys]
        return [await tx.messages.span(line[-1], limit=-1) for line in lines]

    for history in world.disk.look(read):
        yield from (f"UNREADABLE {fault}" for fault in prefix_faults(history))


def _raised(world: World) -> Iterator[str]:
    """Yield each turn that a fault of the house has ended; models and tools fail in other words."""
    for session, turn in world.disk.asked(RAISED):
        yield f"RAISED turn {turn} of the session with key {session} ended with an internal error"


def judged(folder: Path, clients: list[Client]) -> Iterator[str]:
    """Yield what the disk and the clients say against the house."""
    attempts = [each for client in clients for each in client.attempts]
    audit = judge(folder, attempts)
    yield from (f"{count} {what}" for count, what in audit.findings)
    books = read_books(folder).by_id()
    for client in clients:
        book = books.get(client.session)
        told = [(news.sequence, meant(news.payload)) for news in book.news] if book else []
        if client.heard != told[: len(client.heard)] or len(client.heard) < len(told):
            yield f"GAP the stream of {client.session} is not what is stored"
