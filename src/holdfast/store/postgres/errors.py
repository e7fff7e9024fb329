"""What the errors of Postgres mean: which are tried again inside, and what callers are told."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from holdfast.domain.errors import (
    Code,
    Conflict,
    HoldfastError,
    Internal,
    StorageFull,
    Unavailable,
)

# The transaction lost a race and is whole when it is played again.
LOST_RACE: Final = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
# Somebody else wrote the row meanwhile: played again, the work finds it.
LATE: Final = (asyncpg.UniqueViolationError, asyncpg.ForeignKeyViolationError)
# Nothing more comes over this connection; another one may be had.
GONE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # The server has become a replica, and another one the primary.
    asyncpg.ReadOnlySQLTransactionError,
)
# Nobody but a person can do something about it, so there is no use in trying again.
REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidSchemaNameError,
)


class LostError(Exception):
    """The connection is gone, and with it whatever was not committed."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of Postgres into ours."""
    try:
        yield
    except (LostError, asyncpg.PostgresError) as error:
        raise meaning(error) from error


def meaning(error: BaseException) -> HoldfastError:
    """Return what an error of Postgres or of the way to it means; never with a password in it."""
    if isinstance(error, (LostError, *GONE)):
        return _full() if isinstance(error, asyncpg.TooManyConnectionsError) else unreachable()
    if isinstance(error, REFUSED):
        return Unavailable(
            Code.STORE_UNWRITABLE,
            "Postgres refuses us: the database, the schema, the user, the password or the rights "
            "in HOLDFAST_DATABASE_URL are not right.",
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
    if isinstance(error, LOST_RACE):
        return busy()
    return Internal(Code.INTERNAL, "The store refused a statement; please report this.")


def described(error: asyncpg.PostgresError | asyncpg.InterfaceError) -> str:
    """Return what an error is called, for the log: its own words may repeat what was to be kept."""
    code = getattr(error, "sqlstate", None)
    rule = getattr(error, "constraint_name", None)
    return " ".join(filter(None, (type(error).__name__, code, rule)))


def busy() -> Unavailable:
    """Return what a caller is told whom another process has kept waiting for too long."""
    return Unavailable(Code.STORE_BUSY, "Another process kept the store locked; try again.")


def unreachable() -> Unavailable:
    """Return what a caller is told while there is no way to Postgres."""
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "Postgres cannot be reached; nothing was changed. Try again when it is back.",
    )


def _full() -> Unavailable:
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "Postgres has no connection left for us; nothing was changed. Raise max_connections, or "
        "run fewer servers.",
    )


def unknown() -> Unavailable:
    """Return what a caller is told whose commit was on its way when the connection was lost."""
    return Unavailable(
        Code.STORE_UNREACHABLE,
        "Postgres was lost while it committed, and whether it did is not known. Repeat the "
        "request with the same id.",
    )


def fenced() -> Conflict:
    """Return what a writer is told whose session has gone to somebody else."""
    return Conflict(Code.LEASE_LOST, "Somebody else runs this session now.")
