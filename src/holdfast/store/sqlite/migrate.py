"""Numbered migrations, up and down; each is recorded in its own transaction."""

import hashlib
import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Internal, Invalid
from holdfast.store.sqlite.checksums import FIRST, fill_checksums
from holdfast.store.sqlite.connection import APPLICATION_ID, Connection, translate_errors

_FOLDER: Final = Path(__file__).parents[1] / "migrations"
_NAME: Final = re.compile(r"(\d{4})_([a-z_]+)\.up\.sql")

SCHEMA_STATE = """
-- The schema version, and whether there is a schema at all.
SELECT user_version, (SELECT count(*) FROM sqlite_schema)
  FROM pragma_user_version
"""

MARK = """
-- Record a migration that was applied.
INSERT INTO migrations (number, name, checksum, applied_at)
VALUES (:number, :name, :checksum, :applied_at)
"""

UNMARK = """
-- Remove the record of a migration that is reverted.
DELETE FROM migrations
 WHERE number = :number
"""


class Migration(Struct, frozen=True, kw_only=True):
    """One schema migration in both directions."""

    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """Return the hash that detects later changes to an applied migration."""
        return hashlib.sha256(self.up.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this version, in order."""
    return tuple(
        Migration(
            number=int(number),
            name=name,
            up=(_FOLDER / f"{number}_{name}.up.sql").read_text(),
            down=(_FOLDER / f"{number}_{name}.down.sql").read_text(),
        )
        for number, name in _names()
    )


@cache
def _names() -> list[tuple[str, str]]:
    """Return the numbers and names of all migrations, in order."""
    found = map(_NAME.fullmatch, os.listdir(_FOLDER))
    return sorted((match[1], match[2]) for match in found if match)


def version(connection: Connection) -> int:
    """Return the number of the last applied migration; 0 for an empty store."""
    return int(connection.pragma("user_version"))


def newest() -> int:
    """Return the schema version of this program."""
    # Without reading the files: every open asks for this number.
    return int(_names()[-1][0])


def require_current(connection: Connection) -> None:
    """Create the schema of an empty store; raise if an existing schema is newer or older."""
    # One statement for both values, to avoid a race with a process that creates the schema.
    found, tables = connection.query(SCHEMA_STATE)[0]
    if found == 0 and tables:
        raise Internal(
            Code.CORRUPT_STORE,
            "The store has tables, but its schema version is missing; restore a backup.",
        )
    # A new store is created here; an older one is migrated only on request.
    if found == 0:
        up(connection)
        return
    require_not_newer(found)
    require_not_older(found)


def up(connection: Connection, to: int | None = None) -> list[Migration]:
    """Apply all missing migrations up to a number; safe with concurrent processes."""
    target = newest() if to is None else to
    require_known(target)
    return _walk(connection, lambda found: next_up(found, target), _apply)


def down(connection: Connection, to: int) -> list[Migration]:
    """Revert migrations until a number is the last one applied."""
    require_below(connection, to)
    return _walk(connection, lambda found: next_down(found, to), _take_back)


def require_known(number: int) -> None:
    """Raise for an unknown migration number; 0 is the state before the first."""
    if not 0 <= number <= newest():
        raise Invalid(
            Code.INVALID_INPUT,
            f"There is no migration {number}; choose a number up to {newest()}; 0 reverts all.",
            {"field": "to"},
        )


def require_below(connection: Connection, number: int) -> None:
    """Raise if a number is not at or below the schema of the store."""
    require_not_above(version(connection), number)


def require_not_above(current: int, number: int) -> None:
    """Raise if a number is above the schema of a store, or unknown."""
    require_known(number)
    require_not_newer(current)
    if current < number:
        raise Invalid(
            Code.INVALID_INPUT,
            f"The store has schema {current}, and {number} is above it; run `holdfast migrate up`.",
            {"field": "to", "store": current},
        )


Step = Callable[[Connection, Migration], None]


def _walk(
    connection: Connection, choose: Callable[[int], Migration | None], step: Step
) -> list[Migration]:
    done: list[Migration] = []
    while True:
        with translate_errors():
            connection.query("BEGIN IMMEDIATE")
            try:
                require_not_newer(version(connection))
                # Choose under the lock, because another process may have migrated meanwhile.
                migration = choose(version(connection))
                if migration is not None:
                    step(connection, migration)
            except BaseException:
                connection.query("ROLLBACK")
                raise
            connection.commit()
        if migration is None:
            return done
        done.append(migration)


def require_not_newer(current: int) -> None:
    """Raise for a schema that is newer than this program."""
    if current > newest():
        raise Conflict(
            Code.SCHEMA_NEWER,
            f"The store has schema {current}, this Holdfast knows {newest()}; install a newer one.",
            {"store": current, "program": newest()},
        )


def require_not_older(current: int) -> None:
    """Raise for a schema that must be migrated first."""
    if current < newest():
        raise Conflict(
            Code.SCHEMA_OLDER,
            f"The store has schema {current}, this Holdfast needs {newest()}; "
            "run `holdfast migrate up`.",
            {"store": current, "program": newest()},
        )


def next_up(current: int, to: int) -> Migration | None:
    """Return the next migration to apply, if any."""
    waiting = [migration for migration in migrations() if current < migration.number <= to]
    return waiting[0] if waiting else None


def next_down(current: int, to: int) -> Migration | None:
    """Return the next migration to revert, if any."""
    applied = [migration for migration in migrations() if to < migration.number <= current]
    return applied[-1] if applied else None


def _apply(connection: Connection, migration: Migration) -> None:
    connection.query(migration.up)
    mark = {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "applied_at": time.time_ns() // 1000,
    }
    connection.query(MARK, mark)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", migration.number)


def _take_back(connection: Connection, migration: Migration) -> None:
    if migration.number == FIRST:
        # The schema below is read with checksums, also where this one does without.
        fill_checksums(connection)
    connection.query(UNMARK, {"number": migration.number})
    connection.query(migration.down)
    connection.pragma("user_version", migration.number - 1)
