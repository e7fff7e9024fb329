"""The schema goes up and down in numbered steps, and down and up again leaves no trace."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.store.sqlite.connection import APPLICATION_ID, Connection, connect
from holdfast.store.sqlite.migrate import down, migrations, newest, require_current, up, version
from tests.marks import demands
from tests.store.conftest import KEY


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


@demands("S1-103", "S1-103d")
def test_up_down_and_up_again_is_up(connection: Connection) -> None:
    up(connection)
    once = _schema(connection)

    assert [migration.number for migration in down(connection, 0)] == list(range(newest(), 0, -1))
    assert (_schema(connection), version(connection)) == ([], 0)
    assert up(connection) == list(migrations())

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


def test_down_does_not_lead_up(connection: Connection) -> None:
    with pytest.raises(Invalid) as caught:
        down(connection, newest())

    assert caught.value.details == {"field": "to", "store": 0}
    assert (_schema(connection), version(connection)) == ([], 0)


def test_a_step_that_fails_leaves_nothing_behind(connection: Connection) -> None:
    connection.query("CREATE TABLE models (in_the_way)")
    before = _schema(connection)

    with pytest.raises(Exception, match="please report"):
        up(connection)

    assert (_schema(connection), version(connection)) == (before, 0)


@demands("S2-120i")
def test_an_empty_database_is_made_current_and_a_current_one_left(connection: Connection) -> None:
    require_current(connection)
    made = _schema(connection)
    require_current(connection)

    assert (_schema(connection), version(connection)) == (made, newest())


@demands(
    "S0-016",
    "S0-321b",
    "S0-321c",
    "S0-321d",
    "S1-100",
    "S1-103",
    "S2-120",
    "S2-120b",
    "S2-120e",
    "S2-120j",
)
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
        "approvals",
        "calls",
        "children",
        "client_requests",
        "costs",
        "deltas",
        "desks",
        "entities",
        "events",
        "foreign_records",
        "foreign_sessions",
        "forgotten",
        "graph_checkpoints",
        "graph_items",
        "graph_values",
        "graph_writes",
        "held_turns",
        "marks",
        "media",
        "media_uses",
        "mentioned_ids",
        "messages",
        "migrations",
        "models",
        "observations",
        "openings",
        "programs",
        "repos",
        "search_graves",
        "search_tail",
        "search_titles",
        "sessions",
        "sign_in_codes",
        "snapshots",
        "timeline",
        "tokens",
        "tombstones",
        "waits",
        "workers",
        "zone_files",
        "zone_parts",
    }
    assert views == {
        "AgentMessage",
        "AgentSession",
        "Repo",
        "agent_sessions",
        "line_messages",
        "llm_models",
        "s2_agents",
        "s2_events",
        "s2_messages",
        "s2_sessions",
        "session_events",
        "session_messages",
        "stored_events",
    }


@demands("S1-010c", "S1-100c", "S1-100g", "S1-103b", "S2-120e", "S2-120f", "S2-120h")
def test_references_are_declared_where_rows_belong_together(connection: Connection) -> None:
    up(connection)

    references = connection.query(
        'SELECT m.name, f."from", f."table", f.on_delete'
        "  FROM sqlite_schema m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'"
    )

    belongs = {
        (table, "session_key", "sessions", "CASCADE")
        for table in (
            *("openings", "calls", "costs", "approvals", "media_uses"),
            "programs",
            "forgotten",
            "desks",
            "waits",
            "held_turns",
            "client_requests",
            "foreign_sessions",
            "foreign_records",
            "children",
            "graph_checkpoints",
            "graph_values",
            "graph_items",
            "graph_writes",
        )
    }
    assert set(references) == belongs | {
        ("sessions", "owner", "agents", "NO ACTION"),
        ("sessions", "agent_id", "agents", "NO ACTION"),
        ("sessions", "repo_id", "repos", "NO ACTION"),
        ("children", "parent_key", "sessions", "CASCADE"),
        ("sessions", "forked_key", "sessions", "NO ACTION"),
        ("media_uses", "hash", "media", "NO ACTION"),
        ("zone_parts", "file_key", "zone_files", "CASCADE"),
        ("entities", "session_key", "sessions", "SET NULL"),
        ("observations", "entity_key", "entities", "NO ACTION"),
        ("snapshots", "entity_key", "entities", "NO ACTION"),
        ("timeline", "entity_key", "entities", "NO ACTION"),
        ("mentioned_ids", "entity_key", "entities", "NO ACTION"),
    }


def _indexes(connection: Connection, *, unique: bool) -> set[tuple[str, tuple[str, ...]]]:
    """Return the columns that lead to rows, by table."""
    rows = connection.query(
        "SELECT m.name, l.name, i.name"
        "  FROM sqlite_schema m, pragma_index_list(m.name) l, pragma_index_info(l.name) i"
        " WHERE m.type = 'table' AND l.\"unique\" = :unique ORDER BY l.name, i.seqno",
        {"unique": int(unique)},
    )
    found: dict[tuple[str, str], list[str]] = {}
    for table, index, column in rows:
        found.setdefault((table, index), []).append(column)
    return {(table, tuple(columns)) for (table, _), columns in found.items()}


@demands("S1-100b", "S1-100i", "S1-103c", "S2-120h")
def test_what_names_a_row_names_no_other(connection: Connection) -> None:
    up(connection)

    assert _indexes(connection, unique=True) >= {
        ("agents", ("owner", "id")),
        ("agents", ("owner", "slug")),
        ("repos", ("id",)),
        ("sessions", ("owner", "id")),
        ("tombstones", ("owner", "id")),
        ("messages", ("id", "session_key")),
        ("calls", ("session_key", "id")),
        ("costs", ("session_key", "turn", "request_id")),
        ("tokens", ("digest",)),
        ("tokens", ("home",)),
        ("sign_in_codes", ("digest",)),
        ("zone_files", ("owner", "zone", "name")),
        ("zone_parts", ("file_key", "part", "start")),
        ("desks", ("owner", "zone")),
        ("desks", ("session_key",)),
        ("entities", ("id",)),
        ("entities", ("owner", "name", "entity_type")),
        ("entities", ("session_key",)),
        ("observations", ("entity_key", "ordinal")),
        ("observations", ("owner", "idempotency_key")),
        ("mentioned_ids", ("owner", "name", "entity_key")),
    }
    # The session and the number of a row in one integer.
    keyed = "SELECT name FROM pragma_table_info(:table) WHERE pk = 1 AND type = 'INTEGER'"
    for table in ("messages", "events", "deltas"):
        assert connection.query(keyed, {"table": table}) == [("key",)]


@demands("S1-103c")
def test_what_is_searched_has_an_index(connection: Connection) -> None:
    up(connection)

    assert _indexes(connection, unique=False) >= {
        ("agents", ("owner", "created_at", "id")),
        ("sessions", ("owner", "created_at", "id")),
        ("sessions", ("agent_id", "created_at")),
        ("sessions", ("repo_id",)),
        ("sessions", ("forked_key",)),
        ("tokens", ("owner", "id")),
    }


def test_ids_that_entities_name_survive_both_ways(connection: Connection) -> None:
    up(connection)
    connection.query(
        "INSERT INTO entities (key, id, owner, entity_type, name, observations, first_ms, last_ms,"
        " known_ms, is_deleted, checksum)"
        " VALUES (7, 'ent_1', 'local', 'agent_session', 'abc123', 1, 5, 5, 5, 0, 0)"
    )
    connection.query("INSERT INTO timeline VALUES (7, 5, 0, x'01', 2, 0, x'7b7d')")
    connection.query("INSERT INTO mentioned_ids VALUES ('local', 'FU-1', 7)")

    down(connection, 16)
    former = connection.query(
        "SELECT n.owner, n.name, t.entity_key, t.ms, t.rank, t.id, t.type, m.is_wide"
        "  FROM mentioned_timeline t"
        "  JOIN names n ON n.key = t.name_key"
        "  JOIN mentions m ON m.name_key = t.name_key AND m.entity_key = t.entity_key"
    )
    up(connection)

    assert former == [("local", "FU-1", 7, 5, 0, b"\x01", 2, 0)]
    assert connection.query("SELECT * FROM mentioned_ids") == [("local", "FU-1", 7)]
