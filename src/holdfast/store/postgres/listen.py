"""Change notifications between processes: LISTEN/NOTIFY, with polling as a fallback.

A notification names the sessions with new events. It may be lost with its connection, so a listener
also polls once a second for any write.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import GONE, LostError

log = logging.getLogger(__name__)

CHANNEL: Final = "holdfast"
# Seconds between two polls.
INTERVAL: Final = 1.0
# A payload is limited to about 8,000 bytes; with more keys it means any session.
_KEYS_MOST: Final = 300
_ANY: Final = "*"

CURRENT_TRANSACTION = """
-- A number that every writing transaction increases.
SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT)
"""


class ChangeListener:
    """Publishes the writes of this process, and receives those of other processes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._me = secrets.token_hex(8)
        self._seen: str | None = None
        # Increases when any session may have changed.
        self.count = 0
        self.ring: Callable[[SessionKey], None] = lambda _: None
        # Called on each new connection and once a minute.
        self.learn: Callable[[PostgresConnection], Awaitable[None]] = _nothing

    def notification(self, keys: set[int]) -> tuple[str, str | None]:
        """Return the channel and the payload for sessions with new events; None for no sessions."""
        if not keys:
            return CHANNEL, None
        listed = _ANY if len(keys) > _KEYS_MOST else ",".join(map(str, sorted(keys)))
        return CHANNEL, f"{self._me}:{listed}"

    async def listen(self) -> None:
        """Receive notifications of other processes until cancelled."""
        while True:
            connection = None
            try:
                connection = await self._link.open_with_retries()
                await self._receive(connection)
            except (*GONE, asyncpg.PostgresError, LostError, HoldfastError) as error:
                why = error.__cause__ or error
                log.warning("notifications are not received at the moment: %r", why)
            finally:
                if connection is not None:
                    connection.raw.terminate()
            await asyncio.sleep(INTERVAL)

    async def _receive(self, connection: PostgresConnection) -> None:
        await connection.raw.add_listener(CHANNEL, self._on_notification)
        for round_ in range(1 << 62):
            if round_ % 60 == 0:
                await self.learn(connection)
            async with asyncio.timeout(INTERVAL * 10):
                seen = await connection.value(CURRENT_TRANSACTION)
            if seen != self._seen:
                self._seen = seen
                self.count += 1
            await asyncio.sleep(INTERVAL)

    def _on_notification(self, _: Any, __: int, ___: str, payload: str) -> None:
        origin, _, keys = payload.partition(":")
        if origin == self._me:
            return
        if keys == _ANY:
            self.count += 1
            return
        for key in filter(None, keys.split(",")):
            self.ring(SessionKey(int(key)))


async def _nothing(_: PostgresConnection) -> None:
    pass
