"""Group commit on Postgres: jobs run in one transaction, or one by one after a conflict.

The first attempt has no savepoints, because jobs rarely fail after a write. If one does, all run
again with a savepoint each. A job that conflicts with another process runs in its own transaction,
and is retried later if the conflict persists.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg

from holdfast.domain.errors import Conflict
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import LATE, LOST_RACE, LostError, described, meaning
from holdfast.store.postgres.plays import SpoiledError, careful, trusting
from holdfast.store.sqlite.jobs import Job

log = logging.getLogger(__name__)

# Short lock timeout, because the whole group waits for the lock.
_TOGETHER: Final = "BEGIN; SET LOCAL lock_timeout = '100ms'"
_ALONE: Final = "BEGIN; SET LOCAL lock_timeout = '250ms'"
_TRIES: Final = 5

Commit = Callable[[PostgresConnection], Awaitable[None]]
Play = Callable[[PostgresConnection, Sequence[Job]], Awaitable[list[Job]]]


class Group:
    """Jobs to complete, and the jobs that the next commit includes."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.left = list(jobs)
        # Jobs still blocked by locks of other processes.
        self.late: list[Job] = []
        self._inside: list[Job] = []

    async def play(self, connection: PostgresConnection, commit: Commit) -> None:
        """Complete all remaining jobs; raises only for a lost connection."""
        self._commit = commit
        try:
            if len(self.left) > 1:
                await self._together(connection, trusting)
        except LOST_RACE:
            log.debug("others are in the way of a group, which is played one by one")
        except SpoiledError:
            await self._play_carefully(connection)
        while self.left:
            await self._alone(connection, self.left[0])

    def committed(self) -> None:
        """Record that the last commit was applied, and deliver the results of its jobs."""
        ended = set(self._inside)
        self.left = [job for job in self.left if job not in ended]
        for job in self._inside:
            job.tell()

    async def _play_carefully(self, connection: PostgresConnection) -> None:
        try:
            await self._together(connection, careful)
        except (SpoiledError, *LOST_RACE):
            log.debug("others are in the way of a group, which is played one by one")

    async def _together(self, connection: PostgresConnection, play: Play) -> None:
        connection.forget(is_patient=play is trusting)
        await connection.command(_TOGETHER)
        try:
            self._inside = await play(connection, self.left)
            await self._commit(connection)
        except LOST_RACE:
            await connection.command("ROLLBACK")
            raise
        except (SpoiledError, Conflict, asyncpg.PostgresError) as error:
            await connection.command("ROLLBACK")
            raise SpoiledError from error
        self.committed()

    async def _alone(self, connection: PostgresConnection, job: Job) -> None:
        """Run one job in its own transaction; it becomes late if a lock blocks it."""
        self._inside = [job]
        for _ in range(_TRIES):
            job.result = job.error = None
            connection.forget(is_patient=True)
            await connection.command(_ALONE)
            try:
                job.result = await job.work(connection.tables)
                await self._commit(connection)
                break
            except LostError:
                raise
            except LOST_RACE:
                await connection.command("ROLLBACK")
                self.left.remove(job)
                self.late.append(job)
                return
            except Exception as error:  # noqa: BLE001 — raised again in the caller
                await connection.command("ROLLBACK")
                job.error = _told(error)
                if not isinstance(error, LATE):
                    break
        self.committed()


def _told(error: Exception) -> Exception:
    if not isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return error
    log.error("a statement was refused: %s", described(error))
    return meaning(error)
