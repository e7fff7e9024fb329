"""A group of jobs on Postgres: played together where that goes, and alone where others interfere.

First without savepoints, because mostly nobody is refused who has written already. Where somebody
was, all are played again, each in a savepoint of its own. What others are in the way of is played
in a transaction of its own, and later again where they still are.
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

# Together nobody waits long for a row: the others of the group would wait with them.
_TOGETHER: Final = "BEGIN; SET LOCAL lock_timeout = '100ms'"
_ALONE: Final = "BEGIN; SET LOCAL lock_timeout = '250ms'"
_TRIES: Final = 5

Commit = Callable[[PostgresConnection], Awaitable[None]]
Play = Callable[[PostgresConnection, Sequence[Job]], Awaitable[list[Job]]]


class Group:
    """Jobs that have to be brought to their end, and which of them the next commit holds."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.left = list(jobs)
        # Those that others are still in the way of.
        self.late: list[Job] = []
        self._inside: list[Job] = []

    async def play(self, connection: PostgresConnection, commit: Commit) -> None:
        """Bring all that is left to its end; only a lost connection is raised."""
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
        """Notice that the last commit was made, and tell those whose work it holds."""
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
        """Play one job; it comes too late if somebody is in its way for more than a moment."""
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
            except Exception as error:  # noqa: BLE001 — the caller's own, told to the caller
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
