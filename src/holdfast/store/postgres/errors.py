"""Postgres errors: which are retried, and their Holdfast errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from holdfast.domain.errors import (
    Code,
    HoldfastError,
    Internal,
    Invalid,
    StorageFull,
    Unavailable,
)

# The transaction lost a race; it can be retried as a whole.
LOST_RACE: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
# Another process inserted or deleted a row meanwhile; a retry sees the change.
RULE_VIOLATIONS: Final = (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError)
# The connection is unusable; a new one may work.
GONE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # Failover: the server has become a replica.
    asyncpg.ReadOnlySQLTransactionError,
)
# Configuration errors, which a retry cannot fix.
REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidSchemaNameError,
)


class LostError(Exception):
    """The connection was lost; uncommitted changes are rolled back."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate Postgres errors into Holdfast errors."""
    try:
        yield
    except (LostError, asyncpg.PostgresError) as error:
        raise meaning(error) from error


def meaning(error: BaseException) -> HoldfastError:
    """Return the Holdfast error for a Postgres or network error; never contains a password."""
    if isinstance(error, (LostError, *GONE)):
        return _full() if isinstance(error, asyncpg.TooManyConnectionsError) else unreachable()
    if isinstance(error, REFUSED):
        return Unavailable(
            Code.STORE_UNWRITABLE,
            "Postgres rejected the connection: check the database, the schema, the user, the "
            "password and the rights of HOLDFAST_DATABASE_URL.",
        )
    if isinstance(error, asyncpg.DiskFullError):
        return StorageFull(
            Code.STORAGE_FULL,
            "The disk of Postgres is full; nothing was changed. Free some space and try again.",
        )
    if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
        return Internal(
            Code.CORRUPT_STORE, "The database is damaged; restore a backup of Postgres."
        )
    if isinstance(error, asyncpg.CharacterNotInRepertoireError):
        return nul_error()
    refused = Internal(Code.INTERNAL, "The store refused a statement; please report this.")
    return busy() if isinstance(error, LOST_RACE) else refused


def describe(error: asyncpg.PostgresError | asyncpg.InterfaceError) -> str:
    """Return class and code of an error for the log; its message may contain user data."""
    code = getattr(error, "sqlstate", None)
    rule = getattr(error, "constraint_name", None)
    return " ".join(filter(None, (type(error).__name__, code, rule)))


def nul_error() -> Invalid:
    """Return the error for text with a NUL."""
    return Invalid(Code.INVALID_TEXT, "Postgres cannot store text that contains NUL.")


def busy() -> Unavailable:
    """Return the error for a lock timeout."""
    return Unavailable(Code.STORE_BUSY, "Another process kept the store locked; try again.")


def unreachable() -> Unavailable:
    """Return the error for an unreachable server."""
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "Postgres cannot be reached; nothing was changed. Try again when it is back.",
    )


def _full() -> Unavailable:
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "Postgres has no free connections; nothing was changed. Raise max_connections, or run "
        "fewer servers.",
    )


def unknown_outcome() -> Unavailable:
    """Return the error for a commit with unknown status."""
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "The connection to Postgres was lost during a commit; its outcome is unknown. Repeat the "
        "request with the same id.",
    )
