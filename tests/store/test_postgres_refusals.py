"""Databases that are refused: those that could lose what they acknowledge, and those of others."""

import signal
from collections.abc import Iterator

import pytest

from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.store.postgres import connect
from holdfast.store.postgres.migrate import DatabaseSchema
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.migrate import newest
from tests.builders import an_agent
from tests.marks import each_case, skip_server
from tests.postgres import Databases, Server, find_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PASSWORD = "opensesame"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody who does not come."""
    monkeypatch.setattr(connect, "RECONNECT_TIMEOUT", 0.0)


async def _refused(url: str) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await PostgresStore.open(url)
    assert PASSWORD not in str(caught.value.body())
    return caught.value


@pytest.fixture
def switched(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    """Switch something off, for as long as the test lasts."""
    name = str(request.param)
    databases.run("postgres", [f"ALTER SYSTEM SET {name} = off", "SELECT pg_reload_conf()"])
    while databases.run("postgres", [f"SHOW {name}"]) != [[("off",)]]:
        pass
    yield name
    databases.run("postgres", [f"ALTER SYSTEM RESET {name}", "SELECT pg_reload_conf()"])
    while databases.run("postgres", [f"SHOW {name}"]) != [[("on",)]]:
        pass


@pytest.mark.parametrize(
    "switched", ["fsync", "full_page_writes", "synchronous_commit"], indirect=True
)
async def test_a_server_that_may_lose_commits_is_refused(
    databases: Databases, switched: str
) -> None:
    refused = await _refused(databases.server.url("postgres"))

    assert (type(refused), refused.code) == (Unavailable, Code.STORE_UNSAFE)
    assert f"{switched} is off" in refused.message


@pytest.mark.torture
async def test_a_read_replica_is_refused_and_so_is_nobody_at_all() -> None:
    programs = find_server()
    if programs is None:
        skip_server()
    server = Server(programs)
    try:
        server.make()
        (server.folder / "data" / "standby.signal").touch()
        server.start({"restore_command": "false", "hot_standby": "on"})

        refused = await _refused(server.url("postgres"))
        server.stop(signal.SIGQUIT)
        gone = await _refused(server.url("postgres"))
    finally:
        server.remove()

    assert (refused.code, gone.code) == (Code.STORE_UNSAFE, Code.STORE_UNREACHABLE)
    assert "read replica" in refused.message


async def test_a_server_that_is_too_old_is_refused(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "OLDEST", 990_000)

    refused = await _refused(databases.server.url("postgres"))

    assert refused.code is Code.STORE_UNSAFE
    assert "Postgres 99 or newer is needed; this is 1" in refused.message


async def test_a_database_that_is_not_encoded_in_utf8_is_refused(databases: Databases) -> None:
    databases.run("postgres", ["CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'"])

    refused = await _refused(databases.server.url("latin"))

    assert refused.code is Code.STORE_UNSAFE


@each_case(
    "url",
    [
        f"mysql://ada:{PASSWORD}@db/x",
        f"postgresql://ada:{PASSWORD}@db:port/x",
        f"postgresql://ada:{PASSWORD}@[db/x",
        f"postgresql://ada:{PASSWORD}@127.0.0.1:99999/x",
        f"postgresql://ada:{PASSWORD}@127.0.0.1/x%00y",
        f"postgresql://ada:{PASSWORD}@127.0.0.1/x\ud800",
        "history.db",
    ],
)
async def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    refused = await _refused(url)

    assert (type(refused), refused.code) == (Invalid, Code.CONFIG_INVALID)


async def test_nobody_at_an_address_is_told_without_it() -> None:
    refused = await _refused(f"postgresql://ada:{PASSWORD}@127.0.0.1:1/x")

    assert (type(refused), refused.code) == (Unavailable, Code.STORE_UNREACHABLE)


async def test_a_database_or_a_user_that_is_not_there_is_told(databases: Databases) -> None:
    databases.empty()
    missing = await _refused(databases.server.url("nowhere"))
    unmade = await _refused(databases.server.url("usual") + "&search_path=nowhere")
    stranger = await _refused(f"postgresql://ada:{PASSWORD}@/usual?host={databases.server.folder}")

    assert {missing.code, unmade.code, stranger.code} == {Code.STORE_UNWRITABLE}


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        (f"&{PASSWORD}=1", "uses a parameter that this Postgres does not support"),
        (f"&sslmode=verify-full&sslrootcert=/nowhere/{PASSWORD}", "a file in `sslrootcert`"),
    ],
)
async def test_what_an_address_asks_for_in_vain_is_told_at_once(
    databases: Databases, ending: str, why: str
) -> None:
    refused = await _refused(databases.server.url("postgres") + ending)

    assert (type(refused), refused.code) == (Invalid, Code.CONFIG_INVALID)
    assert why in refused.message


async def test_a_database_that_is_only_read_is_refused(databases: Databases) -> None:
    url = databases.fresh("read_only")
    databases.run("postgres", ["ALTER DATABASE read_only SET default_transaction_read_only = on"])

    refused = await _refused(url)

    assert (type(refused), refused.code) == (Unavailable, Code.STORE_UNSAFE)
    assert "default_transaction_read_only" in refused.message


async def test_a_server_without_a_connection_to_spare_is_told(databases: Databases) -> None:
    name = databases.fresh("narrow")
    databases.run(
        "postgres",
        ["CREATE ROLE one LOGIN CONNECTION LIMIT 0", "ALTER DATABASE narrow OWNER TO one"],
    )

    refused = await _refused(name.replace("holdfast@", "one@"))

    assert refused.code is Code.STORE_UNREACHABLE
    assert "no free connections" in refused.message


@pytest.mark.parametrize("table", ["sessions (id INTEGER)", "migrations (version TEXT)"])
async def test_a_database_of_another_program_is_refused_and_left(
    databases: Databases, table: str
) -> None:
    url = databases.fresh()
    name = url.partition("@/")[2].partition("?")[0]
    databases.run(name, [f"CREATE TABLE {table}"])

    refused = await _refused(url)

    assert (type(refused), refused.code) == (Conflict, Code.STORE_FOREIGN)
    assert databases.run(name, ["SELECT tablename FROM pg_tables WHERE schemaname = 'public'"]) == [
        [(table.partition(" ")[0],)]
    ]


async def test_a_newer_schema_is_refused_and_an_older_one_has_to_be_brought_up(
    databases: Databases,
) -> None:
    url = databases.fresh()
    name = url.partition("@/")[2].partition("?")[0]
    schema = DatabaseSchema(url)
    schema.up()
    schema.down(newest() - 1)
    # With nothing in it nobody has to be asked.
    store = await PostgresStore.open(url)
    await store.write(lambda tx: tx.agents.add(an_agent()))
    await store.close()
    schema.down(newest() - 1)
    older = await _refused(url)
    schema.up()
    databases.run(name, ["INSERT INTO migrations VALUES (99, 'later', '', 0)"])

    newer = await _refused(url)

    assert (older.code, newer.code) == (Code.SCHEMA_OLDER, Code.SCHEMA_NEWER)
    assert newer.details == {"store": 99, "program": newest()}
