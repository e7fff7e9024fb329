"""A client that does everything at once, in no order, until it is killed or asked to stop.

Started again it first repeats what was left unanswered, with the same keys, and some of what was
answered, too.
"""

import asyncio
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Event, NotFound, OnBusy, open_holdfast
from holdfast.app import Environment
from holdfast.domain.events import TurnEnded
from tests.torture.attempts import Attempt, Record, read_attempts
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.spies import EarlyStore, careless

# Longer than it takes anybody to kill a client that was seen to be told a lie.
LIE_SECONDS = 60.0
# What a control breaks on purpose.
FAULTS: dict[str, Any] = {"lying": partial(EarlyStore, delay=LIE_SECONDS), "careless": careless}
WORKERS = 3
MOST_SESSIONS = 8
VERBS = {
    "open": 2,
    "send": 12,
    "interrupt": 3,
    "fork": 2,
    "close": 1,
    "resume": 2,
    "delete": 1,
    "follow": 2,
}


async def main(home: str, name: str, seed: int, shared: list[str], fault: str = "") -> None:
    """Run until the process ends; its records are `NAME.jsonl` and `NAME.stream`."""
    paths = Path(f"{name}.jsonl"), Path(f"{name}.stream")
    before = read_attempts([paths[0]])
    record, streams = Record(paths[0]), Record(paths[1])
    luck = random.Random(seed)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    outside = Environment(wrap=FAULTS[fault]) if fault else Environment()
    begun = time.monotonic()
    async with open_holdfast(config=settings(Path(home)), outside=outside) as house:
        record.note(ready_ms=round((time.monotonic() - begun) * 1000))
        client = Client(house, record, streams)
        await repeat(client, before, luck)
        load = Load(client, luck, _own(before), shared, stopping)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(load.work())


async def repeat(client: Client, before: list[Attempt], luck: random.Random) -> None:
    """Ask again what was not answered, and a few things that were."""
    keyed = [each for each in before if each.verb in {"open", "send", "fork"}]
    known = {each.key for each in keyed if each.outcome and not _is_of_the_disk(each.outcome)}
    unanswered = [each for each in keyed if each.key not in known]
    answered = [each for each in keyed if each.acknowledged]
    for each in unanswered + luck.sample(answered, min(10, len(answered))):
        match each.verb:
            case "open":
                await client.open(each.key)
            case "fork":
                await client.fork(each.session, each.key)
            case _:
                await client.send(each.session, each.key)


def _is_of_the_disk(outcome: str) -> bool:
    """Tell whether a refusal means that the same request should be repeated."""
    return outcome.startswith(("store_", "storage_"))


def _own(before: list[Attempt]) -> list[str]:
    made = [each.key for each in before if each.verb in {"open", "fork"} and each.acknowledged]
    deleted = {each.session for each in before if each.verb == "delete"}
    return [key for key in dict.fromkeys(made) if key not in deleted][-MOST_SESSIONS:]


class Load:
    """What one client does, verb after verb."""

    def __init__(
        self,
        client: Client,
        luck: random.Random,
        own: list[str],
        shared: list[str],
        stopping: asyncio.Event,
    ) -> None:
        self._client = client
        self._luck = luck
        self._own = own
        self._shared = shared
        self._stopping = stopping

    async def work(self) -> None:
        """Do one thing after the other."""
        while not self._stopping.is_set():
            verb = self._luck.choices(list(VERBS), list(VERBS.values()))[0]
            if verb == "open" or not self._own:
                await self._open()
            else:
                await self._do(verb)
            await asyncio.sleep(self._luck.uniform(0, 0.01))

    async def _open(self) -> None:
        if len(self._own) < MOST_SESSIONS:
            session = await self._client.open(new_id(self._luck))
            self._keep(session)

    async def _do(self, verb: str) -> None:
        own = self._luck.choice(self._own)
        anyones = self._luck.choice([own, *self._shared])
        match verb:
            case "send":
                busy = self._luck.choices(list(OnBusy), [6, 1, 2])[0]
                kind = self._luck.choice(["slow", "slow", "long", "broken", "short", "short"])
                await self._client.send(anyones, new_id(self._luck, kind), on_busy=busy)
            case "fork":
                if len(self._own) < MOST_SESSIONS:
                    self._keep(await self._client.fork(anyones, new_id(self._luck)))
            case "follow":
                await self._follow(anyones)
            case "close" | "delete":
                await self._client.act(verb, own)
                if verb == "delete" and own in self._own:
                    self._own.remove(own)
            case _:
                await self._client.act(verb, anyones)

    async def _follow(self, session: str) -> None:
        seen = 0

        def enough(item: Any) -> bool:
            nonlocal seen
            seen += 1
            ended = isinstance(item, Event) and isinstance(item.payload, TurnEnded)
            return (ended and seen > 5) or seen > 60

        try:
            async with asyncio.timeout(0.3):
                await self._client.follow(session, 0, until=enough)
        except (TimeoutError, NotFound):
            return

    def _keep(self, session: Any) -> None:
        if session is not None:
            self._own.append(session.id)
