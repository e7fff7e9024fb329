"""A client that lives a whole life in order, and kills itself around one marked commit."""

import os
import random
import signal
from datetime import timedelta
from pathlib import Path

from holdfast import Event, Holdfast, open_holdfast
from holdfast.app import Environment
from holdfast.domain.events import StepDelta, StepStarted, TurnEnded
from holdfast.domain.ids import LOCAL_OWNER, SessionId
from holdfast.ports.store import Store
from tests.torture.attempts import Record, read_attempts
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.clients.load import repeat
from tests.torture.spies import EarlyStore, SpyStore


async def main(
    home: str, record: str, run: int, point: tuple[str, int, str], lying: bool = False
) -> None:
    """Repeat what earlier runs left unanswered, then live until the point is reached."""
    kind, nth, when = point
    before = read_attempts([Path(record)])
    striking = Striking(kind, nth)
    idle = Striking("", 0)

    def wrap(store: Store) -> Store:
        kept = EarlyStore(store, delay=0.05) if lying else store
        return SpyStore(
            kept,
            before=striking if when == "before" else idle,
            after=striking if when == "after" else idle,
        )

    luck = random.Random(run)
    # A new owner has no agent yet, so that one has to be made.
    owner = f"owner-{run}" if kind == "agent" else LOCAL_OWNER
    async with open_holdfast(
        config=settings(Path(home)), owner=owner, outside=Environment(wrap=wrap)
    ) as house:
        client = Client(house, Record(Path(record)))
        await repeat(client, before, luck)
        await Life(client, house, luck).live()


class Striking:
    """Kills this process at the Nth transaction of a kind."""

    def __init__(self, kind: str, nth: int) -> None:
        self._kind = kind
        self._left = nth

    def __call__(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """Everything that can happen to sessions, once each."""

    def __init__(self, client: Client, house: Holdfast, luck: random.Random) -> None:
        self._client = client
        self._house = house
        self._luck = luck

    async def live(self) -> None:
        """Open, talk, fail, interrupt, rename, fork, close, resume, prune, delete, leave amid."""
        session, other = new_id(self._luck), new_id(self._luck)
        await self._client.open(session)
        await self._talk(session, "long")
        await self._talk(session, "broken")
        await self._interrupted(session)
        await self._house.sessions.update(
            self._house.owner, SessionId(session), {"title": "another title"}
        )
        await self._client.fork(session, other)
        await self._client.act("close", other)
        await self._client.act("resume", other)
        await self._talk(other, "short")
        await self._house.maintenance.prune(timedelta(0))
        await self._client.act("delete", other)
        await self._talk(session, "tardy")
        # However long it takes to leave, the last turn is left open.
        await self._client.send(session, new_id(self._luck, "asleep"))
        await self._seen(session, StepStarted, 5)

    async def _talk(self, session: str, kind: str) -> None:
        stored = await self._client.send(session, new_id(self._luck, kind))
        await self._seen(session, TurnEnded, stored.turn)

    async def _interrupted(self, session: str) -> None:
        # However long it takes to interrupt it, there is more to be said.
        stored = await self._client.send(session, new_id(self._luck, "endless"))
        await self._client.send(session, new_id(self._luck, "short"))
        await self._seen(session, StepDelta, stored.turn)
        await self._client.act("interrupt", session)
        await self._seen(session, TurnEnded, stored.turn)

    async def _seen(self, session: str, kind: type, turn: int) -> None:
        async for item in self._house.follow(SessionId(session)):
            if isinstance(item, Event) and isinstance(item.payload, kind) and item.turn == turn:
                return
