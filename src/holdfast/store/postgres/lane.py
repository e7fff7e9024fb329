"""The writer's connection: reconnects after a loss, and resolves commits with unknown status.

A write is acknowledged only after Postgres confirmed the commit, or after a new connection found it
applied.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import asyncpg

from holdfast.domain.errors import HoldfastError
from holdfast.store.postgres.commit_status import Fate
from holdfast.store.postgres.connect import PATIENCE, Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.drafts import Draft
from holdfast.store.postgres.errors import (
    LATE,
    LOST_RACE,
    LostError,
    described,
    unknown,
    unreachable,
)
from holdfast.store.postgres.groups import Group
from holdfast.store.postgres.heads import Heads
from holdfast.store.sqlite.store import Tables

log = logging.getLogger(__name__)

_BREATH: Final = 0.05


class Lane:
    """Owns the writer's connection; handles one batch at a time."""

    def __init__(self, link: Link, word: Callable[[set[int]], tuple[str, str | None]]) -> None:
        """`word` returns the channel and the notification for sessions with new events."""
        self._link = link
        self._word = word
        self._fate = Fate()
        self._connection: PostgresConnection | None = None
        # Session rows as last written by this process.
        self.known = Heads()

    async def play(self, group: Group) -> None:
        """Run a group; reconnects and retries after a lost connection."""
        deadline = time.monotonic() + PATIENCE
        while group.left:
            self._fate.settle()
            try:
                await group.play(await self._connected(), self._commit)
            except LostError as error:
                self._lost(error)
                if await self._was_committed():
                    group.committed()
                elif time.monotonic() > deadline:
                    raise unreachable() from error

    async def is_written(self, draft: Draft) -> bool:
        """Write a draft; return `False` if nothing was written."""
        self._fate.settle()
        connection = await self._connected()
        sql, values = draft.statement(*self._fate.draft(), *self._word(draft.keys))
        try:
            made = bool(await connection.value(sql, *values))
        except LostError as error:
            self._lost(error)
            if isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError):
                # The server rejected the write as read-only, so nothing was written.
                self._fate.settle()
            made = await self._was_committed()
        except (*LOST_RACE, *LATE):
            log.debug("others are in the way of a draft, which is played in a transaction")
            made = False
        except asyncpg.PostgresError as error:
            log.warning("a draft was refused: %s", described(error))
            made = False
        if made:
            self.known.keep(draft.moved)
        else:
            self.known.forget(draft.keys)
        return made

    def drop(self) -> None:
        """Close a connection in an unknown state without waiting."""
        if self._connection is not None:
            self._connection.raw.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    def _lost(self, error: LostError) -> None:
        log.warning("the connection to Postgres was lost: %r", error.__cause__)
        self._connection = None

    async def _connected(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = await self._link.patient(may_write=True)
            self._connection.tables = Tables(self._connection, {})
        return self._connection

    async def _commit(self, connection: PostgresConnection) -> None:
        if connection.has_written:
            await self._fate.note(connection, *self._word(connection.touched))
        await connection.command("COMMIT")
        self._fate.settle()
        self.known.forget(connection.moved)
        self.known.keep(connection.heads)

    async def _was_committed(self) -> bool:
        """Return whether a pending commit was applied, after its acknowledgement was lost."""
        if not self._fate.is_open:
            return False
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                made = await self._fate.is_made(await self._connected())
            except LostError:
                self._connection = None
                continue
            except HoldfastError:
                break
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # An error does not answer the question, so ask again.
                log.warning("what became of a commit was not told: %s", described(error))
                made = None
            if made is not None:
                return made
            await asyncio.sleep(_BREATH)
        raise unknown()
