"""Both databases have one schema: tables, columns, indexes, constraints, views and triggers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.postgres.migrate import DatabaseSchema, postgres_migrations
from holdfast.store.sqlite.connection import Connection, connect
from holdfast.store.sqlite.migrate import migrations, newest, up
from tests.marks import demands, each_case
from tests.postgres import Databases
from tests.store.conftest import KEY

pytestmark = pytest.mark.slow

Told = dict[str, set[Any]]
# What each database has its own way with: the words of search, and how a commit is found again.
OWN_WAYS = re.compile(r"search_index.*|search_words|writers")
TYPES = {
    "INTEGER": "bigint",
    "TEXT": "text",
    "BLOB": "bytea",
    "ANY": "character varying",
    "REAL": "double precision",
}

IN_FILE = {
    "columns": """
SELECT m.name, c.name, c.type, c."notnull" OR c.pk > 0
  FROM sqlite_schema m, pragma_table_xinfo(m.name) c
 WHERE m.type = 'table'
""",
    "keys": """
SELECT m.name, group_concat(c.name ORDER BY c.pk)
  FROM sqlite_schema m, pragma_table_info(m.name) c
 WHERE m.type = 'table' AND c.pk > 0
 GROUP BY m.name
""",
    "unique": """
SELECT m.name, (SELECT group_concat(name) FROM pragma_index_info(l.name))
  FROM sqlite_schema m, pragma_index_list(m.name) l
 WHERE m.type = 'table' AND l.origin = 'u'
""",
    "indexes": """
SELECT m.name, l.name, l."unique", l.partial,
       (SELECT group_concat(name) FROM pragma_index_info(l.name))
  FROM sqlite_schema m, pragma_index_list(m.name) l
 WHERE m.type = 'table' AND l.origin = 'c'
""",
    "references": """
SELECT m.name, group_concat(f."from" ORDER BY f.seq), f."table",
       group_concat(f."to" ORDER BY f.seq), f.on_delete
  FROM sqlite_schema m, pragma_foreign_key_list(m.name) f
 WHERE m.type = 'table'
 GROUP BY m.name, f.id
""",
    "views": """
SELECT m.name, c.name
  FROM sqlite_schema m, pragma_table_info(m.name) c
 WHERE m.type = 'view'
""",
    "triggers": "SELECT name FROM sqlite_schema WHERE type = 'trigger'",
}

_COLUMNS = """(SELECT string_agg(a.attname, ',' ORDER BY k.place)
                 FROM unnest({0}) WITH ORDINALITY k (number, place)
                 JOIN pg_attribute a ON a.attrelid = {1} AND a.attnum = k.number)"""

IN_DATABASE = {
    "columns": """
SELECT table_name, column_name, data_type, CAST(is_nullable = 'NO' AS INTEGER)
  FROM information_schema.columns
  JOIN information_schema.tables USING (table_schema, table_name)
 WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
""",
    "keys": f"""
SELECT c.conrelid::regclass::text, {_COLUMNS.format("c.conkey", "c.conrelid")}
  FROM pg_constraint c WHERE c.contype = 'p' AND c.connamespace = 'public'::regnamespace
""",
    "unique": f"""
SELECT c.conrelid::regclass::text, {_COLUMNS.format("c.conkey", "c.conrelid")}
  FROM pg_constraint c WHERE c.contype = 'u' AND c.connamespace = 'public'::regnamespace
""",
    "indexes": f"""
SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, CAST(i.indisunique AS INTEGER),
       CAST(i.indpred IS NOT NULL AS INTEGER),
       {_COLUMNS.format("CAST(i.indkey AS SMALLINT[])", "i.indrelid")}
  FROM pg_index i
  JOIN pg_class r ON r.oid = i.indexrelid AND r.relnamespace = 'public'::regnamespace
 WHERE NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexrelid)
""",
    "references": f"""
SELECT c.conrelid::regclass::text, {_COLUMNS.format("c.conkey", "c.conrelid")},
       c.confrelid::regclass::text, {_COLUMNS.format("c.confkey", "c.confrelid")},
       CASE c.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'NO ACTION' END
  FROM pg_constraint c WHERE c.contype = 'f' AND c.connamespace = 'public'::regnamespace
""",
    "views": """
SELECT table_name, column_name
  FROM information_schema.columns
  JOIN information_schema.views USING (table_schema, table_name)
 WHERE table_schema = 'public'
""",
    "triggers": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
}


@pytest.fixture(scope="module")
def url(databases: Databases) -> str:
    """Make the whole schema in a database."""
    url = databases.fresh("parity")
    DatabaseSchema(url).up()
    return url


@pytest.fixture
def connection(file: Path) -> Iterator[Connection]:
    """Make the whole schema in a file."""
    connection = connect(file, KEY)
    up(connection)
    yield connection
    connection.close()


def _known(rows: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    return {row for row in rows if not OWN_WAYS.fullmatch(row[0])}


@pytest.fixture
def both(connection: Connection, url: str, databases: Databases) -> tuple[Told, Told]:
    """Tell what both databases have."""
    there = databases.run("parity", IN_DATABASE.values())
    in_file = {name: _known(connection.query(sql)) for name, sql in IN_FILE.items()}
    in_database = {name: _known(rows) for name, rows in zip(IN_DATABASE, there, strict=True)}
    return in_file, in_database


@demands("S2-121b")
def test_both_have_the_same_columns(both: tuple[Told, Told]) -> None:
    ours, theirs = both

    assert theirs["columns"] == {
        (table, column, TYPES[kind], is_there) for table, column, kind, is_there in ours["columns"]
    }


@demands("S2-121b")
@each_case("kind", ["keys", "unique", "indexes", "references", "views"])
def test_both_have_the_same_rules(both: tuple[Told, Told], kind: str) -> None:
    ours, theirs = both

    assert theirs[kind] == ours[kind] != set()


def test_both_keep_rows_as_they_are_by_triggers(both: tuple[Told, Told]) -> None:
    ours, theirs = both
    # Only one of them can replace a row while it inserts it, and only one can truncate a table.
    only_here = {("observations_are_never_replaced",)}
    only_there = {("messages_are_never_truncated",), ("observations_are_never_truncated",)}

    assert theirs["triggers"] == (ours["triggers"] - only_here) | only_there


def test_every_text_is_compared_by_its_bytes(url: str, databases: Databases) -> None:
    ((*found,),) = databases.run(
        "parity",
        [
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name NOT IN"
            " (SELECT table_name FROM information_schema.views)"
            " AND data_type IN ('text', 'character varying')"
        ],
    )

    assert found == [("C",)]


def test_every_migration_has_a_twin() -> None:
    numbers = [each.number for each in migrations()]

    assert [(each.number, each.name) for each in postgres_migrations().values()] == [
        (each.number, each.name) for each in migrations()
    ]
    assert all(
        postgres_migrations()[number].up.strip() and postgres_migrations()[number].down.strip()
        for number in numbers
    )


def test_up_down_and_up_again_is_up(databases: Databases) -> None:
    url = databases.fresh()
    database = url.partition("@/")[2].partition("?")[0]
    schema = DatabaseSchema(url)
    done = [each.number for each in schema.up()]
    once = databases.run(database, IN_DATABASE.values())

    gone = [each.number for each in schema.down(0)]
    left = databases.run(
        database,
        [
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace",
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
        ],
    )

    assert (done, gone, left) == (done, done[::-1], [[], []])
    assert (len(schema.up()), schema.version()) == (newest(), newest())
    assert list(map(set, databases.run(database, IN_DATABASE.values()))) == list(map(set, once))
    assert schema.up() == schema.down(newest()) == []
