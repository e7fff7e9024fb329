"""The command line where the store is a database: everything works, and files are left alone."""

from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.store.sqlite.migrate import newest
from tests.cli.conftest import Cli
from tests.postgres import Databases

pytestmark = [pytest.mark.slow, pytest.mark.torture]


@pytest.fixture
def database(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep the house in a database that nobody has seen."""
    url = databases.fresh()
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url.replace("holdfast@", "holdfast:opensesame@"))
    return url.partition("@/")[2].partition("?")[0]


def test_a_conversation_is_kept_there_and_checked(cli: Cli, home: Path, database: str) -> None:
    session = str(cli("chat", "What is 2+3?", "--json").lines[0]["sessionId"])
    shown = cli("sessions", "show", session, "--json").document
    doctor = cli("doctor", "--json")

    assert shown["id"] == session
    assert (doctor.code, doctor.document["findings"]) == (0, [])
    assert (doctor.document["key_source"], doctor.document["schema"]) == ("postgres", newest())
    assert doctor.document["store"].endswith(f"/{database}")
    assert doctor.document["sqlite"] is None
    assert not {"SQLite", "file system", "key"} & {
        line.split("  ")[0] for line in cli("doctor").out.splitlines()
    }
    assert "opensesame" not in doctor.out
    assert not (home / "history.db").exists()


def test_migrations_go_up_and_down_there(cli: Cli, home: Path, database: str) -> None:
    before = cli("migrate", "status", "--json").document
    up = cli("migrate", "up", "--json").document
    down = cli("migrate", "down", "--to", "0", "--json").document

    assert (before["store"], up["store"], len(up["done"])) == (0, newest(), newest())
    assert (down["store"], down["done"], down["kept"]) == (0, up["done"][::-1], None)
    assert cli("migrate", "down", "--to", str(newest())).code == 2
    assert not home.exists()


def test_rows_there_are_lost_by_force_only(cli: Cli, database: str) -> None:
    cli("chat", "What is 2+3?")

    refused = cli("migrate", "down", "--to", "0", "--json")
    forced = cli("migrate", "down", "--to", "0", "--force", "--json")

    assert (refused.code, refused.error["error"]) == (5, "store_not_empty")
    assert "pg_dump" in refused.error["message"]
    assert (forced.code, forced.document["store"]) == (0, 0)


def test_files_are_not_what_a_database_is_backed_up_with(
    cli: Cli, home: Path, database: str
) -> None:
    for asked, instead in (("backup", "pg_dump"), ("restore", "pg_restore")):
        ran = cli(asked, str(home.with_name("file")), "--json")
        assert (ran.code, ran.error["error"]) == (2, "config_invalid")
        assert instead in ran.error["message"]


def test_its_password_is_shown_nowhere(cli: Cli, database: str) -> None:
    shown, told = cli("config"), cli("config", "--json")

    assert f"/{database}" in shown.out
    assert "opensesame" not in shown.out + told.out


def test_without_its_package_it_is_said_how_to_get_it(
    cli: Cli, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_store, "DRIVER", "no_such_package")

    ran = cli("sessions", "list", "--json")

    assert (ran.code, ran.error["error"]) == (2, "config_invalid")
    assert "holdfast[postgres]" in ran.error["message"]
