"""Run the jobs of a group in one transaction, without savepoints or with one per job.

Jobs usually begin with a query for their session state. Without savepoints, all jobs are started up
to this query, all rows are read in one statement, and the jobs continue one by one.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

import asyncpg
from msgspec import Struct

from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import LOST_RACE, LostError
from holdfast.store.postgres.heads import Wish, going_on
from holdfast.store.sqlite.jobs import Job


class SpoiledError(Exception):
    """Work failed after it had changed rows inside a transaction shared with other jobs."""


async def trusting(connection: PostgresConnection, jobs: Sequence[Job]) -> list[Job]:
    """Run jobs without savepoints; raises if the transaction must be rolled back."""
    begun = _begun(connection, jobs)
    try:
        wishes = [each.wish for each in begun if isinstance(each.wish, Wish)]
        places = [wish.place for wish in wishes if wish.place is not None]
        if places:
            await connection.read_ahead(places)
        for each in begun:
            await _trusted(connection, each)
    finally:
        for each in begun:
            each.work.close()
    return list(jobs)


class _Begun(Struct):
    """A job that is suspended at its first query."""

    job: Job
    work: Coroutine[Any, Any, Any]
    wish: Any


def _begun(connection: PostgresConnection, jobs: Sequence[Job]) -> list[_Begun]:
    """Start jobs up to their first query; a job that ends before it gets its result."""
    found = []
    connection.is_opening = True
    for job in jobs:
        job.result = job.error = None
        work = job.work(connection.tables)
        try:
            found.append(_Begun(job, work, work.send(None)))
        except StopIteration as done:
            job.result = done.value
        except Exception as error:  # noqa: BLE001 — raised again in the caller
            job.error = error
    connection.is_opening = False
    return found


async def _trusted(connection: PostgresConnection, begun: _Begun) -> None:
    before, connection.has_written = connection.has_written, False
    try:
        begun.job.result = await going_on(begun.work, begun.wish)
    except (LostError, *LOST_RACE):
        raise
    except asyncpg.PostgresError as error:
        # Any error aborts the whole transaction.
        raise SpoiledError from error
    except Exception as error:
        # Buffered rows of other jobs may have been sent, and rejected, only now.
        if connection.has_written or connection.has_failed:
            raise SpoiledError from error
        begun.job.error = error
    finally:
        connection.has_written = connection.has_written or before


async def careful(connection: PostgresConnection, jobs: Sequence[Job]) -> list[Job]:
    """Run jobs in savepoints; return those that need no retry."""
    return [job for job in jobs if await _saved(connection, job)]


async def _saved(connection: PostgresConnection, job: Job) -> bool:
    """Run one job in a savepoint; return `False` if it must be retried."""
    job.result = job.error = None
    touched = set(connection.touched)
    await connection.command("SAVEPOINT job")
    try:
        job.result = await job.work(connection.tables)
        connection.require_sound()
        await connection.command("RELEASE job")
    except (LostError, *LOST_RACE):
        raise
    except Exception as error:  # noqa: BLE001 — raised again in the caller
        await connection.command("ROLLBACK TO job; RELEASE job")
        connection.touched, connection.has_failed = touched, False
        job.error = error
    return not isinstance(job.error, asyncpg.PostgresError)
