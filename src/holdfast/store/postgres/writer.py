"""Writes of a process to Postgres: commits in groups, other work in transactions.

All waiting commits of different sessions are written by one statement, which commits by itself. A
commit that cannot be written so is written in a transaction of its own, which waits for row locks.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import asyncpg
from msgspec import Struct

from holdfast.domain.commits import SessionCommit, VersionConflictError
from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.ports.store import Tx
from holdfast.store.postgres.commit import CommitRows, build_commit_rows, group_statement
from holdfast.store.postgres.connect import RECONNECT_TIMEOUT, Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import (
    LOST_RACE,
    RULE_VIOLATIONS,
    LostError,
    busy,
    describe,
    meaning,
    unknown_outcome,
    unreachable,
)
from holdfast.store.sqlite.store import Tables

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]

# Limits of a group, so that its first commit does not wait for a steady stream of later ones.
GROUP_MOST: Final = 256
BYTES_MOST: Final = 8 << 20
WORTH_PARTING: Final = 32
# Transactions at a time.
TRANSACTIONS: Final = 4
# Seconds that work waits for row locks of other transactions.
ROW_LOCK_SECONDS: Final = 30.0
# A longer lock timeout than that of a group, because only this work waits; it is tried again.
_BEGIN: Final = "BEGIN; SET LOCAL lock_timeout = '250ms'"
# A violated rule may be the work of another process, which a repetition sees.
_TRIES: Final = 5
_PAUSE: Final = 0.05


NOTE: Final = """
-- Store the number of a commit in its transaction, and notify listeners.
WITH noted AS (
    INSERT INTO writers (name, number) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET number = excluded.number, at = now()
)
SELECT CASE WHEN CAST($4 AS TEXT) IS NOT NULL THEN pg_notify($3, $4) END
"""
# Waits for a running commit. A commit that arrives later finds a higher number and writes nothing.
RESOLVE_COMMIT: Final = """
-- Resolve an ambiguous commit: its number, which is raised if it was not applied.
INSERT INTO writers (name, number) VALUES ($1, $2 + 1)
    ON CONFLICT (name) DO UPDATE
   SET number = CASE WHEN writers.number = $2 THEN $2 ELSE $2 + 1 END, at = now()
RETURNING number
"""
# A live process inserts its row again with the next commit, and resolves a lost one within seconds.
SWEEP: Final = "DELETE FROM writers WHERE at < now() - INTERVAL '1 hour'"


class WriterConnection:
    """A connection that is replaced when it is lost, and knows whether its last commit was applied.

    It has a row in `writers`, in which each commit stores its number. The transaction id would not
    be sufficient: after a crash the server may assign ids again.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection: PostgresConnection | None = None
        self._name = secrets.token_hex(8)
        self._number = 0
        self._is_pending = False

    async def connection(self) -> PostgresConnection:
        """Return the connection, with no commit pending; opens a new one if it was lost."""
        self._is_pending = False
        return await self._open()

    async def _open(self) -> PostgresConnection:
        if self._connection is None or self._connection.raw.is_closed():
            self._connection = await self._link.open_with_retries(may_write=True)
            self._connection.tables = Tables(self._connection, {})
        return self._connection

    def begin(self) -> tuple[str, int]:
        """Start a commit; return the name of the writer and the number of the commit."""
        # Two numbers: one for the commit, one reserved to prevent it.
        self._number += 2
        self._is_pending = True
        return self._name, self._number

    async def was_applied(self, error: LostError) -> bool:
        """Return whether the pending commit was applied, after the connection was lost."""
        log.warning("the connection to Postgres was lost: %r", error.__cause__)
        # A server that rejects a write as read-only has written nothing.
        is_refused = isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError)
        if is_refused or not self._is_pending:
            return False
        deadline = time.monotonic() + RECONNECT_TIMEOUT
        while time.monotonic() < deadline:
            try:
                return await self.is_applied()
            except LostError:
                continue
            except HoldfastError:
                break
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as refused:
                # It may be in progress, and an error does not answer the question, so ask again.
                log.warning("the status of a commit was not returned: %s", describe(refused))
            await asyncio.sleep(_PAUSE)
        raise unknown_outcome()

    async def is_applied(self) -> bool:
        """Return whether the last commit was applied, and prevent it otherwise."""
        connection = await self._open()
        return bool(
            await connection.value(RESOLVE_COMMIT, self._name, self._number) == self._number
        )

    def drop(self) -> None:
        """Close a connection in an unknown state without waiting."""
        if self._connection is not None:
            self._connection.raw.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


class QueuedCommits(Struct, frozen=True):
    """Commits of a session that build on each other, their rows, and the futures of callers."""

    commits: list[SessionCommit]
    futures: list[asyncio.Future[None]]
    rows: CommitRows

    def try_extend(self, later: "QueuedCommits") -> bool:
        """Add later commits to be written at once; return whether they build on these."""
        if later.commits[0].before != self.commits[-1].state or self.rows.size > BYTES_MOST:
            return False
        self.commits.extend(later.commits)
        self.futures.extend(later.futures)
        self.rows.extend(later.rows)
        return True

    def fail(self, error: Exception) -> None:
        """Complete all futures with an error."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def cancel(self) -> None:
        """Cancel what is not completed, because the loop has cancelled its tasks."""
        for future in self.futures:
            future.cancel()


class PostgresWriter:
    """Writes commits in groups, and runs other work in transactions."""

    def __init__(
        self, link: Link, make_notification: Callable[[set[int]], tuple[str, str | None]]
    ) -> None:
        """`make_notification` returns the channel and the text for sessions with new events."""
        self._make_notification = make_notification
        # Called after each commit.
        self.count: Callable[[], None] = lambda: None
        self._group = WriterConnection(link)
        self._idle = [WriterConnection(link) for _ in range(TRANSACTIONS)]
        self._room = asyncio.Semaphore(TRANSACTIONS)
        self._queue: deque[QueuedCommits] = deque()
        # The last in the queue of each session.
        self._last: dict[int, QueuedCommits] = {}
        # Sessions of which a commit is being written in a transaction.
        self._in_transaction: set[int] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._grouping: asyncio.Task[None] | None = None
        self._closed = False

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit for the next group."""
        future = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(_closed_error())
            return future
        queued = QueuedCommits([commit], [future], build_commit_rows(commit))
        last = self._last.get(queued.rows.key)
        if last is None or not last.try_extend(queued):
            self._last[queued.rows.key] = queued
            self._queue.append(queued)
            self._wake()
        return future

    async def transact(self, work: Work[T]) -> T:
        """Run work in a transaction; return its result after the commit is durable."""
        if self._closed:
            raise _closed_error()
        # In a task of its own, because a transaction outlives a cancelled caller.
        return await asyncio.shield(self._spawn(self._transact(work)))

    async def close(self) -> None:
        """Finish submitted work and close the connections."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for each in (self._group, *self._idle):
            await each.close()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Read, because the caller that waits for it may be cancelled.
        if not task.cancelled():
            task.exception()

    async def _transact(self, work: Work[T]) -> T:
        """Run work until it is committed or refused; reconnects after a lost connection."""
        lock_deadline = time.monotonic() + ROW_LOCK_SECONDS
        deadline = time.monotonic() + RECONNECT_TIMEOUT
        violations = 0
        while True:
            async with self._room:
                writer = self._idle.pop()
                try:
                    return await self._attempt(writer, work)
                except LostError as error:
                    if time.monotonic() > deadline:
                        raise unreachable() from error
                except LOST_RACE as error:
                    log.debug(
                        "a transaction lost a lock conflict and is retried: %s", describe(error)
                    )
                    if time.monotonic() > lock_deadline:
                        raise busy() from error
                    deadline = time.monotonic() + RECONNECT_TIMEOUT
                except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                    violations += 1
                    if not isinstance(error, RULE_VIOLATIONS) or violations == _TRIES:
                        log.error("a statement was refused: %s", describe(error))
                        raise meaning(error) from error
                finally:
                    self._idle.append(writer)

    async def _attempt(self, writer: WriterConnection, work: Work[T]) -> T:
        connection = await writer.connection()
        connection.reset()
        try:
            await connection.command(_BEGIN)
            result = await work(connection.tables)
            await self._end(writer, connection)
        except LostError:
            raise
        except Exception:
            await _roll_back(writer, connection)
            raise
        except BaseException:
            writer.drop()
            raise
        return result

    async def _end(self, writer: WriterConnection, connection: PostgresConnection) -> None:
        """Commit a transaction; raises after a lost connection if it was not applied."""
        try:
            if connection.has_written:
                notification = self._make_notification(connection.touched)
                await connection.row(NOTE, *writer.begin(), *notification)
            await connection.command("COMMIT")
        except LostError as error:
            if not await writer.was_applied(error):
                raise

    def _wake(self) -> None:
        if self._grouping is None or self._grouping.done():
            self._grouping = self._spawn(self._write_groups())

    async def _write_groups(self) -> None:
        # Yield first, so that other commits that are ready on this loop join the group.
        await asyncio.sleep(0)
        waiting = len(self._queue)
        # Of many, one half: its callers go on while the other half is written.
        most = waiting // 2 if waiting > WORTH_PARTING else GROUP_MOST
        while group := self._next_group(most):
            most = GROUP_MOST
            try:
                await self._write_group(group)
            except Exception as error:
                log.error("the writer was stopped by an internal error", exc_info=error)
                self._group.drop()
                for each in group:
                    each.fail(meaning(error))
            except BaseException:
                self._group.drop()
                for each in group:
                    each.cancel()
                # The loop cancelled all its tasks; later commits need a new one.
                self._grouping = None
                if self._queue:
                    self._wake()
                raise

    def _next_group(self, most: int) -> list[QueuedCommits]:
        """Return waiting commits of different sessions, the first of each."""
        group: list[QueuedCommits] = []
        left: list[QueuedCommits] = []
        taken, size = set(self._in_transaction), 0
        while self._queue and len(group) < most:
            queued = self._queue.popleft()
            if queued.rows.key in taken:
                left.append(queued)
                continue
            if group and size + queued.rows.size > BYTES_MOST:
                left.append(queued)
                break
            taken.add(queued.rows.key)
            group.append(queued)
            size += queued.rows.size
            if self._last[queued.rows.key] is queued:
                del self._last[queued.rows.key]
        self._queue.extendleft(reversed(left))
        return group

    async def _write_group(self, group: list[QueuedCommits]) -> None:
        """Write commits together, without those that are outdated or have to wait."""
        skip = False
        while group:
            try:
                found = await self._send_group(group, skip=skip)
            except HoldfastError as error:
                for each in group:
                    each.fail(error)
                return
            except asyncpg.LockNotAvailableError:
                skip = True
                continue
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.debug("a group was refused, and is written one by one: %s", describe(error))
                skip, found = True, set()
            if found is None:
                for each in group:
                    self._resolve(each.futures)
                return
            if len(found) == len(group):
                # Refused by its number, as if the status of this commit had been asked for.
                skip, found = True, set()
            for each in group:
                if each.rows.key in found:
                    continue
                if skip:
                    # In a transaction of its own, which waits for row locks.
                    self._in_transaction.add(each.rows.key)
                    self._spawn(self._append_each(each))
                else:
                    each.fail(VersionConflictError())
            group = [each for each in group if each.rows.key in found]

    async def _send_group(self, group: Sequence[QueuedCommits], *, skip: bool) -> set[int] | None:
        """Write a group; if nothing was written return the sessions that are as expected."""
        keys = {each.rows.key for each in group}
        rows = [each.rows for each in group]
        deadline = time.monotonic() + RECONNECT_TIMEOUT
        while True:
            connection = await self._group.connection()
            note = *self._group.begin(), *self._make_notification(keys)
            sql, values = group_statement(rows, *note, skip=skip)
            try:
                *_, is_written, found = await connection.row(sql, *values)
            except LostError as error:
                if await self._group.was_applied(error):
                    return None
                if time.monotonic() > deadline:
                    raise unreachable() from error
            else:
                return None if is_written else set(found)

    def _resolve(self, futures: Iterable[asyncio.Future[None]]) -> None:
        for future in futures:
            self.count()
            if not future.done():
                future.set_result(None)

    async def _append_each(self, queued: QueuedCommits) -> None:
        try:
            for commit, future in zip(queued.commits, queued.futures, strict=True):
                try:
                    await self._transact(partial(_append, commit))
                except Exception as error:  # noqa: BLE001 — raised in the caller
                    if not future.done():
                        future.set_exception(error)
                else:
                    self._resolve([future])
        finally:
            queued.cancel()
            self._in_transaction.discard(queued.rows.key)
            if self._queue:
                self._wake()


async def _append(commit: SessionCommit, tx: Tx) -> None:
    await tx.append(commit)


async def _roll_back(writer: WriterConnection, connection: PostgresConnection) -> None:
    try:
        await connection.command("ROLLBACK")
    except (LostError, asyncpg.PostgresError):
        # Nothing was committed; the next transaction opens a new connection.
        writer.drop()


def _closed_error() -> Unavailable:
    return Unavailable(Code.STORE_CLOSED, "The store is closed.")
