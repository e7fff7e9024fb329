"""`holdfast copy`: a store goes to Postgres and comes back, and nothing is left where it fails."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import RunScope, SessionId, open_holdfast
from holdfast.store.postgres.migrate import DatabaseSchema
from holdfast.store.transfer.run import TABLES
from tests.cli.conftest import Cli
from tests.cli.processes import COMMAND, environment
from tests.houses import raw
from tests.marks import each_case
from tests.observations.claims import a_payload
from tests.postgres import Databases
from tests.raw_rows import RawRows, raw_rows
from tests.stores import VARIABLE
from tests.torture.crew import wait_until

Use = Callable[[str | None], None]


@pytest.fixture
def lived(cli: Cli, home: Path, chatted: str) -> str:
    """Have a store in which most tables have rows; return the session with a record."""

    async def live() -> None:
        async with open_holdfast(home, scope=RunScope.NONE) as house:
            await house.sessions.fork(house.owner, SessionId(chatted), title="Der Käfer’s title")
            gone = await house.sessions.fork(house.owner, SessionId(chatted))
            await house.sessions.delete(house.owner, gone.id)
            await house.zones.write_state(house.owner, "holdfast", "state")
            await house.zones.append_output(house.owner, "holdfast", '{"a": 1}')
            await house.observations.submit(house.owner, a_payload(session_id=chatted))

    asyncio.run(live())
    return chatted


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Choose the database of the next commands; nothing is the file."""

    def choose(url: str | None) -> None:
        if url is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, url)

    return choose


def tables_in(url: str) -> int:
    """Return how many of our tables a database has, and rows in them."""
    with raw_rows(url) as rows:
        return int(rows.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")[0][0])


@pytest.mark.torture
def test_a_store_goes_to_postgres_and_comes_back_the_same(
    cli: Cli, lived: str, tmp_path: Path, databases: Databases, use: Use
) -> None:
    url = databases.fresh()
    before = cli("sessions", "messages", lived).out
    there = cli("copy", "--to", url, "--json").document
    use(url)
    read_there = cli("sessions", "messages", lived).out
    found_there = cli("search", "2+3", "--json").document["data"]
    back = cli("copy", "--to", str(tmp_path / "back"), "--json").document
    use(None)
    again = cli("copy", "--to", str(tmp_path / "again.db"), "--json", "--dry-run").document

    assert there == again | {
        "from": str(tmp_path / "home" / "history.db"),
        "to": _shown(url),
        "dry_run": False,
    }
    assert back == there | {"from": there["to"], "to": str(tmp_path / "back" / "history.db")}
    assert list(there["tables"]) == list(TABLES)
    assert {name for name, each in there["tables"].items() if each["rows"]} > {
        *("agents", "sessions", "openings", "messages", "events", "costs", "tombstones"),
        *("zone_files", "entities", "observations", "timeline", "snapshots"),
    }
    assert before == read_there != ""
    assert found_there
    assert not (tmp_path / "again.db").exists()


def test_work_goes_on_where_the_copy_is(
    cli: Cli, lived: str, databases: Databases, use: Use
) -> None:
    url = databases.fresh()
    told = cli("copy", "--to", url)
    use(url)

    async def work() -> None:
        async with open_holdfast(scope=RunScope.NONE) as house:
            await house.open()
            await house.send(SessionId(lived), "And 3+4?")
            await house.zones.append_output(house.owner, "another", "a line")
            await house.observations.submit(house.owner, a_payload(session_id="elsewhere"))

    cli("agents", "create", "--name", "Another", "--json")
    asyncio.run(work())

    assert (told.code, told.err.splitlines()[0]) == (0, "agents: 1 rows")
    assert told.out.endswith(f"tables copied and verified in {_shown(url)}.\n")
    assert len(cli("sessions", "messages", lived, "--json").document["data"]) == 3
    assert cli("doctor", "--json").document["findings"] == []


def _shown(url: str) -> str:
    return f"postgresql:///{url.partition('@/')[2].partition('?')[0]}"


def test_nothing_is_copied_over_what_is_there(
    cli: Cli, lived: str, tmp_path: Path, databases: Databases, use: Use
) -> None:
    url = databases.fresh()
    cli("copy", "--to", url)
    file = tmp_path / "mine.db"
    file.write_text("mine")

    filled = cli("copy", "--to", url, "--json")
    taken = cli("copy", "--to", str(file), "--json")
    itself = cli("copy", "--to", str(tmp_path / "home"), "--json")
    use(url)
    same = cli("copy", "--to", url, "--json")

    assert [each.error["error"] for each in (filled, taken, itself, same)] == [
        *("store_not_empty", "file_exists", "file_exists", "invalid_input"),
    ]
    assert file.read_text() == "mine"


def test_a_dry_run_changes_nothing(
    cli: Cli, lived: str, tmp_path: Path, databases: Databases
) -> None:
    url = databases.fresh()

    told = cli("copy", "--to", url, "--dry-run")
    to_folder = cli("copy", "--to", str(tmp_path / "new"), "--dry-run")

    assert (told.code, to_folder.code) == (0, 0)
    assert told.out.endswith(f"tables would be copied to {_shown(url)}.\n")
    assert (tables_in(url), (tmp_path / "new").exists()) == (0, False)


WRONG = {
    "nobody listens": ("postgresql://me:s3cret@127.0.0.1:9/no", "store_unreachable"),
    "another kind": ("mysql://me:s3cret@localhost/no", "invalid_input"),
    "no port": ("postgresql://me:s3cret@localhost:port/no", "invalid_input"),
}


@each_case(("url", "code"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_address_is_refused_without_its_password(
    cli: Cli, lived: str, url: str, code: str
) -> None:
    ran = cli("copy", "--to", url, "--json")

    assert (ran.error["error"], "s3cret" in ran.err + ran.out) == (code, False)


def test_a_database_that_is_not_there_is_refused_by_its_name(
    cli: Cli, lived: str, databases: Databases
) -> None:
    url = databases.server.url("nowhere")
    ran = cli("copy", "--to", url, "--json")

    assert (ran.error["error"], _shown(url) in ran.error["message"]) == ("store_unwritable", True)


def test_without_a_store_there_is_nothing_to_copy(
    cli_without_home: Cli, home: Path, databases: Databases
) -> None:
    ran = cli_without_home("copy", "--to", databases.fresh(), "--json")

    assert (ran.code, ran.error["error"], home.exists()) == (4, "not_a_file", False)


def test_a_store_in_which_turns_run_is_not_copied(
    cli: Cli, lived: str, home: Path, databases: Databases
) -> None:
    with raw(home) as connection:
        connection.execute("UPDATE sessions SET holder = 'somebody', until = 9999999999999")
    url = databases.fresh()

    ran = cli("copy", "--to", url, "--json")

    assert (ran.error["error"], ran.error["details"]) == ("turn_running", {"sessions": 2})
    assert tables_in(url) == 0


def test_damage_is_not_copied_and_leaves_nothing_behind(
    cli: Cli, lived: str, home: Path, tmp_path: Path, databases: Databases
) -> None:
    with raw(home) as connection:
        connection.execute("UPDATE agents SET checksum = 0")
    url = databases.fresh()

    to_database = cli("copy", "--to", url, "--json")
    to_folder = cli("copy", "--to", str(tmp_path / "new"), "--json")

    assert [each.error["error"] for each in (to_database, to_folder)] == ["corrupt_store"] * 2
    assert tables_in(url) == 0
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["key"]


def test_what_postgres_cannot_keep_is_named(
    cli: Cli, lived: str, home: Path, databases: Databases
) -> None:
    with raw(home) as connection:
        connection.execute("INSERT INTO marks VALUES ('a' || char(0), 1)")

    ran = cli("copy", "--to", databases.fresh(), "--json")

    assert (ran.error["error"], ran.error["details"]) == ("invalid_input", {"table": "marks"})


def is_waiting(rows: RawRows) -> bool:
    """Tell whether somebody waits for a lock."""
    return bool(rows.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))


WAITING = """
CREATE FUNCTION wait_here() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1);
    RETURN NEW;
END
$$
"""


@pytest.mark.torture
@pytest.mark.slow
def test_a_copy_that_is_killed_leaves_an_empty_database(
    cli: Cli, lived: str, home: Path, databases: Databases
) -> None:
    url = databases.fresh()
    DatabaseSchema(url).up()
    command = [COMMAND, "copy", "--to", url]
    with raw_rows(url) as rows:
        rows.execute(WAITING)
        rows.execute("CREATE TRIGGER t BEFORE INSERT ON costs EXECUTE FUNCTION wait_here()")
        rows.execute("SELECT pg_advisory_lock(1)")
        with subprocess.Popen(command, env=environment(home), stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: is_waiting(rows) or process.poll() is not None)
            process.kill()
        rows.execute("SELECT pg_advisory_unlock(1)")
        left = rows.execute("SELECT count(*) FROM agents")[0][0]

    again = cli("copy", "--to", url)

    assert (left, again.code) == (0, 0)
