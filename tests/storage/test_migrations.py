"""The schema goes up and down in numbered steps, and down and up again leaves no trace."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.storage.inspection import is_filled
from holdfast.storage.migrate import down, migrations, newest, require_current, up, version
from holdfast.storage.sqlite import APPLICATION_ID, Connection, connect
from tests.storage.conftest import KEY


@pytest.fixture
def connection(file: Path) -> Iterator[Connection]:
    """Open an empty database."""
    connection = connect(file, KEY)
    yield connection
    connection.close()


def _schema(connection: Connection) -> list[tuple[str, str, str | None]]:
    rows = connection.query("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")
    return [(kind, name, sql) for kind, name, sql in rows]


def test_migrations_are_numbered_from_one_without_a_hole() -> None:
    numbers = [migration.number for migration in migrations()]

    assert numbers == list(range(1, newest() + 1))


def test_every_migration_has_its_way_back() -> None:
    assert all(migration.up.strip() and migration.down.strip() for migration in migrations())


def test_up_down_and_up_again_is_up(connection: Connection) -> None:
    up(connection)
    once = _schema(connection)

    assert [migration.number for migration in down(connection, 0)] == list(range(newest(), 0, -1))
    assert (_schema(connection), version(connection)) == ([], 0)
    assert up(connection) == migrations()

    assert (_schema(connection), version(connection)) == (once, newest())


def test_walking_where_one_stands_does_nothing(connection: Connection) -> None:
    up(connection)
    before = _schema(connection)

    assert (up(connection), up(connection, newest()), down(connection, newest())) == ([], [], [])
    assert _schema(connection) == before


def test_each_step_is_marked_with_its_checksum(connection: Connection) -> None:
    up(connection)

    marks = connection.query("SELECT number, name, checksum FROM migrations ORDER BY number")

    assert marks == [
        (each.number, each.name, hashlib.sha256(each.up.encode()).hexdigest())
        for each in migrations()
    ]
    assert connection.pragma("application_id") == APPLICATION_ID


@pytest.mark.parametrize("number", [-1, 99])
def test_a_step_that_does_not_exist_is_refused(connection: Connection, number: int) -> None:
    for walk in (up, down):
        with pytest.raises(Invalid) as caught:
            walk(connection, number)
        assert caught.value.code is Code.INVALID_INPUT
    assert _schema(connection) == []


def test_a_step_that_fails_leaves_nothing_behind(connection: Connection) -> None:
    connection.query("CREATE TABLE models (in_the_way)")
    before = _schema(connection)

    with pytest.raises(Exception, match="please report"):
        up(connection)

    assert (_schema(connection), version(connection)) == (before, 0)


def test_an_empty_database_is_made_current_and_a_current_one_left(connection: Connection) -> None:
    require_current(connection)
    made = _schema(connection)
    require_current(connection)

    assert (_schema(connection), version(connection)) == (made, newest())


def test_all_tables_are_strict_and_all_of_them_ours(connection: Connection) -> None:
    up(connection)

    rows = connection.query(
        "SELECT name, type, strict FROM pragma_table_list WHERE schema = 'main'"
    )

    tables = {name for name, kind, _ in rows if kind == "table" and not name.startswith("sqlite_")}
    views = {name for name, kind, _ in rows if kind == "view"}
    assert {name for name, _, strict in rows if strict} == tables
    assert tables == {
        "agents",
        "calls",
        "costs",
        "events",
        "messages",
        "migrations",
        "models",
        "openings",
        "repos",
        "sessions",
        "tombstones",
    }
    assert views == {"agent_sessions", "session_events", "session_messages"}


def test_references_are_declared_where_rows_belong_together(connection: Connection) -> None:
    up(connection)

    references = connection.query(
        'SELECT m.name, f."from", f."table", f.on_delete'
        "  FROM sqlite_schema m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'"
    )

    belongs = {
        (table, "session_key", "sessions", "CASCADE")
        for table in ("openings", "messages", "events", "calls", "costs")
    }
    assert set(references) == belongs | {
        ("sessions", "agent_id", "agents", "NO ACTION"),
        ("sessions", "repo_id", "repos", "NO ACTION"),
        ("sessions", "forked_key", "sessions", "NO ACTION"),
    }


def test_a_store_is_filled_once_somebody_made_something(connection: Connection) -> None:
    assert not is_filled(connection)
    up(connection)
    assert not is_filled(connection)

    connection.query("INSERT INTO agents VALUES ('a', 'o', 's', 'n', 'active', 1, x'00', 1)")

    assert is_filled(connection)
