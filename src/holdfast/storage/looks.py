"""Looks at the store: on one snapshot each, and over even where there was no memory to end one."""

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import HoldfastError
from holdfast.ports import Tx
from holdfast.storage.jobs import drive
from holdfast.storage.sqlite import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]

SCRUB_WAIT_MS: Final = 250


def snapshot(connection: Connection, work: Work[T], tables: Tx) -> T:
    """Run work on one snapshot of a connection that cannot write."""
    # Left open by somebody who had no memory even for its end.
    if connection.raw.in_transaction:
        connection.query("ROLLBACK")
    connection.query("BEGIN")
    try:
        return drive(work(tables))
    except apsw.CorruptError:
        log.error("a page of the store is damaged; what is not on it is read by itself")
        connection.query("ROLLBACK")
    finally:
        # After some failures SQLite has ended the transaction itself.
        if connection.raw.in_transaction:
            connection.query("COMMIT")
    # Once a page cannot be deciphered a transaction has no others: each statement gets its own.
    return drive(work(tables))


def looked(connection: Connection, work: Work[T], tables: Tx) -> T:
    """Run work on a snapshot of a connection that could write, and let it change nothing.

    It waits for nobody: who is in the way makes it raise.
    """
    raw = connection.raw
    connection.patience.is_off = True
    try:
        # Left open by somebody who had no memory even for its end.
        if raw.in_transaction:
            connection.query("ROLLBACK")
        before = raw.total_changes()
        connection.query("BEGIN")
        found = drive(work(tables))
        if raw.total_changes() != before:
            raise apsw.ReadOnlyError("work that was meant to read has written")
        return found
    finally:
        connection.patience.is_off = False
        if raw.in_transaction:
            connection.query("ROLLBACK")


def findings(connection: Connection, look: Callable[[Connection], list[str]]) -> list[str]:
    """Return what a look finds in the file, one sentence each."""
    # On one snapshot: what is being written meanwhile must not look like damage.
    connection.query("BEGIN")
    try:
        return look(connection)
    finally:
        # Ending it may meet the very damage that was just named.
        with suppress(apsw.Error):
            connection.query("ROLLBACK")


def emptied_log(connection: Connection) -> bool:
    """Empty the log file; `False` where somebody who reads is in the way."""
    # A short wait and no error: what was deleted is deleted, only its traces go later.
    connection.raw.set_busy_timeout(SCRUB_WAIT_MS)
    try:
        connection.empty_log()
    except (apsw.Error, HoldfastError):
        return False
    finally:
        connection.raw.set_busy_handler(connection.patience)
    return True
