"""One client, served from its first line to its last: nothing it says ends the conversation."""

import asyncio
import logging
from typing import Final

from holdfast.acp.agent.agent import Agent, Terms
from holdfast.acp.agent.house import House
from holdfast.acp.transport.connection import Connection, Reader
from holdfast.acp.transport.framing import Notification, Request
from holdfast.services.background_tasks import Background

log = logging.getLogger(__name__)

# Seconds that running turns have to come to their end when the client is gone.
PARTING: Final = 5.0


class Input:
    """What a client says; its end is told apart, because what it asked is still to be answered."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.ended = asyncio.Event()

    async def read(self, count: int = -1, /) -> bytes:
        """Return what came; at the end, the end of a last line that has none, and then nothing."""
        chunk = await self._reader.read(count)
        if chunk:
            return chunk
        if not self.ended.is_set():
            self.ended.set()
            return b"\n"
        # For ever: whoever closes the conversation takes the reading back.
        await asyncio.Event().wait()
        return b""


async def serve(house: House, connection: Connection, terms: Terms, ended: asyncio.Event) -> None:
    """Answer a client until it leaves; its running turns are stopped then, unless they go on."""
    async with Background() as background:
        agent = Agent(house, connection, terms, background.start)
        taking = background.start(_take(agent, connection))
        leaving = background.start(_until(ended))
        await asyncio.wait([taking, leaving], return_when=asyncio.FIRST_COMPLETED)
        # What was read before the end is taken by now: it waited in front of this.
        try:
            async with asyncio.timeout(PARTING):
                await agent.part()
        except TimeoutError:
            log.warning("a turn did not stop in time; it can be taken up again")
        await connection.aclose()


async def _take(agent: Agent, connection: Connection) -> None:
    async for item in connection.incoming():
        if isinstance(item, Request):
            connection.handle(item, agent.called(item))
        elif isinstance(item, Notification) and item.method == "session/cancel":
            agent.cancelled(item.params)


async def _until(ended: asyncio.Event) -> None:
    await ended.wait()
