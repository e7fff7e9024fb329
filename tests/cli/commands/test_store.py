"""`holdfast migrate`, `backup` and `restore`."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.sqlite.connection import is_plain
from holdfast.store.sqlite.migrate import newest
from tests.cli.conftest import Cli


def test_a_store_that_is_not_there_has_no_migrations(cli_without_home: Cli, home: Path) -> None:
    ran = cli_without_home("migrate", "status", "--json")

    assert (ran.code, ran.document["store"], ran.document["program"]) == (0, 0, newest())
    assert not any(each["applied"] for each in ran.document["migrations"])
    assert not home.exists()


def test_migrations_go_up_and_down(cli_without_home: Cli) -> None:
    up = cli_without_home("migrate", "up", "--json").document
    status = cli_without_home("migrate", "status")
    again = cli_without_home("migrate", "up")
    down = cli_without_home("migrate", "down", "--to", "0", "--json").document

    assert (up["store"], len(up["done"])) == (newest(), newest())
    assert status.out.splitlines()[1] == "1\tnotebook\tapplied"
    assert again.out == f"The store has schema {newest()}; nothing to do.\n"
    assert (down["store"], down["done"]) == (0, up["done"][::-1])
    assert cli_without_home("migrate", "status").out.splitlines()[1] == "1\tnotebook\twaiting"


def test_going_down_where_something_would_be_lost_needs_force_and_keeps_it(
    cli: Cli, home: Path, chatted: str
) -> None:
    refused = cli("migrate", "down", "--to", "0", "--json")
    forced = cli("migrate", "down", "--to", "0", "--force")

    kept = home / "history.db.before-down-1"
    assert (refused.code, refused.error["error"]) == (5, "store_not_empty")
    assert forced.code == 0
    assert str(kept) in forced.err
    assert cli("restore", str(kept)).code == 0
    assert cli("sessions", "show", chatted).code == 0


def test_a_number_of_steps_leads_down(cli: Cli) -> None:
    cli("migrate", "up")
    two = cli("migrate", "down", "--steps", "2", "--json").document
    rest = cli("migrate", "down", "--steps", str(newest() - 2), "--json").document
    none = cli("migrate", "down", "--steps", "1", "--json")

    assert (two["store"], len(two["done"])) == (newest() - 2, 2)
    assert (rest["store"], len(rest["done"])) == (0, newest() - 2)
    assert (none.code, none.error["details"]) == (2, {"field": "--steps"})


def test_wrong_ways_down_are_refused(cli: Cli, chatted: str) -> None:
    assert cli("migrate", "down").code == 2
    assert cli("migrate", "down", "--to", "1", "--steps", "1", "--force").code == 2
    assert cli("migrate", "down", "--steps", "0", "--force").code == 2
    assert cli("migrate", "down", "--to", "99", "--force").code == 2


def test_a_store_that_is_not_there_cannot_go_down(cli_without_home: Cli) -> None:
    assert cli_without_home("migrate", "down", "--to", "0").code == 4


def test_a_store_of_a_newer_schema_is_refused_everywhere(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    cli("migrate", "up")
    with closing(sqlite3.connect(home / "history.db")) as database:
        database.execute("PRAGMA user_version = 99")

    listed, examined = cli("sessions", "list", "--json"), cli("doctor", "--json")

    assert (listed.code, listed.error["error"]) == (5, "schema_newer")
    assert examined.document["schema"] == 99
    assert [each["code"] for each in examined.document["findings"]] == ["schema_newer"]


def test_a_backup_brings_everything_back(
    cli: Cli, home: Path, chatted: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"

    made = cli("backup", str(file), "--json").document
    cli("sessions", "delete", chatted)
    restored = cli("restore", str(file), "--json").document

    assert made == {"file": str(file), "bytes": file.stat().st_size}
    assert file.stat().st_mode & 0o777 == 0o600
    assert restored == {"file": str(file), "kept": str(home / "history.db.before-restore-1")}
    assert cli("sessions", "messages", chatted).out.startswith("> What is 2+3?")


def test_a_backup_overwrites_nothing_unless_it_is_told_to(
    cli: Cli, chatted: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"
    file.write_text("mine")

    refused = cli("backup", str(file), "--json")
    kept = file.read_text()
    forced = cli("backup", str(file), "--force")

    assert (refused.code, refused.error["error"], kept) == (5, "file_exists", "mine")
    assert forced.code == 0
    assert forced.out == f"Wrote {file} ({file.stat().st_size} bytes).\n"


def test_there_is_nothing_to_back_up_without_a_store(
    cli_without_home: Cli, home: Path, tmp_path: Path
) -> None:
    ran = cli_without_home("backup", str(tmp_path / "a.backup"))

    assert ran.code == 4
    assert not home.exists()


def test_a_backup_can_be_restored_into_an_empty_home_that_has_the_key(
    cli: Cli, home: Path, chatted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.backup"
    cli("backup", str(file))
    key = (home / "key").read_text().strip()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "new"))

    without = cli("restore", str(file), "--json")
    monkeypatch.setenv("HOLDFAST_KEY", key)
    restored = cli("restore", str(file))

    assert (without.code, without.error["error"]) == (7, "store_key_missing")
    assert restored.out == f"Restored the store from {file}.\n"
    assert cli("sessions", "show", chatted).code == 0


def test_what_is_not_there_cannot_be_restored(cli: Cli, tmp_path: Path) -> None:
    assert cli("restore", str(tmp_path / "nothing")).code == 4
    assert cli("restore", str(tmp_path)).code == 2


def test_a_store_in_use_is_not_replaced(cli: Cli, home: Path, chatted: str, tmp_path: Path) -> None:
    file = tmp_path / "a.backup"
    cli("backup", str(file))
    holding = (
        "import asyncio, sys\n"
        "from holdfast import open_holdfast, RunScope\n"
        "async def main():\n"
        "    async with open_holdfast(sys.argv[1], scope=RunScope.NONE):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()

        refused = cli("restore", str(file), "--json")
        lowered = cli("migrate", "down", "--to", "0", "--force", "--json")
        other.communicate(timeout=60)

    assert (refused.code, refused.error["error"]) == (5, "store_in_use")
    assert (lowered.code, lowered.error["error"]) == (5, "store_in_use")
    assert cli("restore", str(file)).code == 0


def test_what_was_made_and_taken_back_is_told_and_what_has_a_place_stays(
    cli: Cli, home: Path, chatted: str
) -> None:
    before = newest() - 1

    refused = cli("migrate", "down", "--to", str(before), "--json")
    down = cli("migrate", "down", "--to", str(before), "--force")
    up = cli("migrate", "up")

    assert (refused.code, refused.error["error"]) == (5, "store_not_empty")
    assert "may not be able to store all of their data" in refused.error["message"]
    assert down.out.startswith(f"The store has schema {before}; reverted: {newest():04}_")
    assert up.out.startswith(f"The store has schema {newest()}; made: {newest():04}_")
    assert cli("sessions", "show", chatted).code == 0


def test_a_wrong_number_is_refused_before_anything_happens(
    cli: Cli, home: Path, chatted: str
) -> None:
    before = files_of(home)

    for number in ("-1", str(newest() + 1), "99999999999999999999"):
        ran = cli("migrate", "down", f"--to={number}", "--force", "--json")

        assert (ran.code, ran.out, ran.error["error"]) == (2, "", "invalid_input")
        assert number in ran.error["message"]
    assert files_of(home) == before
    assert cli("sessions", "show", chatted).code == 0


def test_a_wrong_number_is_refused_also_where_there_is_no_store(
    cli_without_home: Cli, home: Path
) -> None:
    assert cli_without_home("migrate", "down", "--to", "99").code == 2
    assert not home.exists()


def test_down_leads_to_nothing_above_where_the_store_stands(cli: Cli, home: Path) -> None:
    cli("migrate", "up")
    cli("migrate", "down", "--to", "0")

    ran = cli("migrate", "down", "--to", "1", "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert ran.error["message"] == (
        "The store has schema 0, and 1 is above it; run `holdfast migrate up`."
    )
    assert cli("migrate", "status", "--json").document["store"] == 0


def test_a_store_of_a_newer_schema_is_not_taken_down_and_not_backed_up(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    cli("chat", "hello")
    with closing(sqlite3.connect(home / "history.db")) as database:
        database.execute("PRAGMA user_version = 99")

    ran = cli("migrate", "down", "--to", "0", "--force", "--json")

    assert (ran.code, ran.error["error"]) == (5, "schema_newer")
    assert list(home.glob("*before*")) == []


def test_going_down_to_where_the_store_stands_needs_nothing(
    cli: Cli, home: Path, chatted: str
) -> None:
    ran = cli("migrate", "down", "--to", str(newest()), "--json")

    assert ran.document == {"store": newest(), "done": [], "kept": None}
    assert list(home.glob("*before*")) == []


def test_what_was_kept_on_the_way_down_is_told_to_programs_too(
    cli: Cli, home: Path, chatted: str
) -> None:
    down = cli("migrate", "down", "--to", "0", "--force", "--json").document

    assert (down["store"], down["kept"]) == (0, str(home / "history.db.before-down-1"))


def test_a_folder_in_the_place_of_the_store_is_refused_by_each_of_them(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    (home / "history.db").mkdir(parents=True)

    for line in (["migrate", "status"], ["migrate", "up"], ["migrate", "down", "--to", "0"]):
        assert cli(*line).code in {2, 3}, line


def test_a_plain_backup_does_not_take_the_encryption_away_unless_it_is_told_to(
    cli_without_home: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = a_plain_backup(cli_without_home, tmp_path, monkeypatch)
    mine = cli_without_home("chat", "hello", "--json").lines[0]["sessionId"]
    before = files_of(home)

    refused = cli_without_home("restore", str(plain), "--json")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    again = cli_without_home("restore", str(plain), "--json")

    for ran in (refused, again):
        assert (ran.code, ran.out, ran.error["error"]) == (5, "", "backup_plain")
        assert "--plain" in ran.error["message"]
    assert files_of(home) == before
    assert cli_without_home("sessions", "show", mine).code == 0
    assert cli_without_home("restore", str(plain), "--plain").code == 0
    assert is_plain(home / "history.db")
    assert cli_without_home("sessions", "show", mine).code == 4


def test_a_plain_backup_is_a_new_store_only_where_that_would_be_plain_too(
    cli_without_home: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = a_plain_backup(cli_without_home, tmp_path, monkeypatch)

    refused = cli_without_home("restore", str(plain), "--json")
    left = home.exists()
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    restored = cli_without_home("restore", str(plain))
    again = cli_without_home("restore", str(plain))

    assert (refused.code, refused.error["error"], left) == (5, "backup_plain", False)
    assert (restored.code, again.code) == (0, 0)


def test_an_empty_file_is_no_backup_and_makes_no_key(
    cli_without_home: Cli, home: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()

    ran = cli_without_home("restore", str(empty), "--json")

    assert (ran.code, ran.error["error"]) == (2, "backup_invalid")
    assert not home.exists()


def a_plain_backup(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Back up a store that is not encrypted."""
    file = folder / "plain.backup"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("HOLDFAST_HOME", str(folder / "plain"))
        elsewhere.setenv("HOLDFAST_ENCRYPTION", "off")
        cli("chat", "hello")
        cli("backup", str(file))
    assert is_plain(file)
    return file


def files_of(home: Path) -> dict[str, bytes]:
    """Return what lies in a home, the store's shared memory aside."""
    return {
        each.name: each.read_bytes()
        for each in home.iterdir()
        if each.is_file() and not each.name.endswith("-shm")
    }
