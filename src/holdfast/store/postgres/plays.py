"""How the jobs of a group are played in one transaction: trusting that all goes well, or carefully.

Work mostly begins by asking where its session stands. Who trusts begins all work up to there, asks
for all heads at once, and goes on with one after another.
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
    """Work was refused in its middle, and what it had changed is among the work of others."""


async def trusting(connection: PostgresConnection, jobs: Sequence[Job]) -> list[Job]:
    """Run jobs without savepoints; it raises where something has to be undone."""
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
    """A job whose work has come to where it asks for something."""

    job: Job
    work: Coroutine[Any, Any, Any]
    wish: Any


def _begun(connection: PostgresConnection, jobs: Sequence[Job]) -> list[_Begun]:
    """Begin work up to where it asks for something; what ends before that has its result."""
    found = []
    connection.is_opening = True
    for job in jobs:
        job.result = job.error = None
        work = job.work(connection.tables)
        try:
            found.append(_Begun(job, work, work.send(None)))
        except StopIteration as done:
            job.result = done.value
        except Exception as error:  # noqa: BLE001 — the caller's own, told to the caller
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
        # After any error the transaction is over for everybody.
        raise SpoiledError from error
    except Exception as error:
        # What others had written may be sent, and refused, only now.
        if connection.has_written or connection.has_failed:
            raise SpoiledError from error
        begun.job.error = error
    finally:
        connection.has_written = connection.has_written or before


async def careful(connection: PostgresConnection, jobs: Sequence[Job]) -> list[Job]:
    """Run jobs in savepoints; return those that need not be played again."""
    return [job for job in jobs if await _saved(connection, job)]


async def _saved(connection: PostgresConnection, job: Job) -> bool:
    """Run one job in a savepoint; `False` when it has to be played again."""
    job.result = job.error = None
    touched = set(connection.touched)
    await connection.command("SAVEPOINT job")
    try:
        job.result = await job.work(connection.tables)
        connection.require_sound()
        await connection.command("RELEASE job")
    except (LostError, *LOST_RACE):
        raise
    except Exception as error:  # noqa: BLE001 — the caller's own, told to the caller
        await connection.command("ROLLBACK TO job; RELEASE job")
        connection.touched, connection.has_failed = touched, False
        job.error = error
    return not isinstance(job.error, asyncpg.PostgresError)
