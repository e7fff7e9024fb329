"""Folders of another program that are not what they should be: told, harmless, and untouched."""

import os
import random
import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import HoldfastError, Unavailable
from holdfast.importers.block_zones import MigrationStats
from tests.importers.blocks import a_file, a_folder, agent_block
from tests.importers.test_block_zones import ZERO, brought, bytes_of
from tests.zones.test_archives import contents

pytestmark = pytest.mark.anyio

LAST = (1 << 63) - 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder of another program with one block in it."""
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "a", b"first")
    return folder


def changed(folder: Path, *statements: str, database: str = "files.db") -> None:
    """Change a database of the folder."""
    connection = apsw.Connection(str(folder / database))
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def test_what_is_no_database_is_passed_over(
    quiet: Holdfast, folder: Path, tmp_path: Path
) -> None:
    (folder / "inner").mkdir()
    (folder / "gone.db").symlink_to(folder / "nothing")
    (folder / "loop.db").symlink_to(folder / "loop.db")
    os.mkfifo(folder / "pipe.db")
    (folder / "empty.db").touch()
    with (folder / "large.bin").open("wb") as large:
        large.truncate(8 << 30)
    (tmp_path / "elsewhere.db").write_bytes(b"no database")
    (folder / "link.db").symlink_to(tmp_path / "elsewhere.db")

    report = await brought(quiet, folder)

    assert report.stats == MigrationStats(
        blocks_scanned=1, archives_written=1, current_zones_seeded=1
    )


async def test_tables_of_the_same_form_hide_no_block(quiet: Holdfast, folder: Path) -> None:
    """Other things than blocks have ids and data, too, and a database may lie there twice."""
    form = "(oid varchar(36) PRIMARY KEY, version int, data json)"
    changed(
        folder,
        f"CREATE TABLE a_window {form}",
        f"CREATE TABLE z_tab {form}",
        """INSERT INTO a_window VALUES ('w1', 1, '{"meta":{"view":"agent"}}'), ('b1', 1, '')""",
        database="objects.db",
    )
    changed(
        folder,
        "CREATE TABLE db_file (zoneid, name, size, createdts, modts)",
        """INSERT INTO db_file VALUES ('b1', 'output.state.json', 99, 1, 1)""",
        database="a-copy.db",
    )

    report = await brought(quiet, folder)

    assert report.stats == MigrationStats(
        blocks_scanned=1, archives_written=1, current_zones_seeded=1
    )
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "first"


async def test_files_and_their_parts_may_lie_in_two_databases(
    quiet: Holdfast, folder: Path
) -> None:
    changed(
        folder,
        f"ATTACH '{folder / 'parts.db'}' AS apart",
        "CREATE TABLE apart.db_data (zoneid, name, partidx, data blob)",
        "INSERT INTO apart.db_data SELECT * FROM db_data",
        "DROP TABLE main.db_data",
    )

    assert (await brought(quiet, folder)).stats.archives_written == 1


@pytest.mark.parametrize("seed", range(5))
async def test_garbage_in_a_database_is_told_and_nothing_is_brought_by_halves(
    quiet: Holdfast, folder: Path, seed: int
) -> None:
    luck = random.Random(seed)
    for number in range(10):
        agent_block(folder, f"c{number}", f"agent-{number}", b"x" * 3_000)
    for name in ("files.db", "objects.db"):
        content = bytearray((folder / name).read_bytes())
        for _ in range(luck.choice((3, 30, 300))):
            content[luck.randrange(16, len(content))] = luck.randrange(256)
        (folder / name).write_bytes(content[: luck.choice((len(content), len(content) // 2))])
    before = bytes_of(folder)

    told: tuple[str, ...]
    try:
        told = tuple(each.error for each in (await brought(quiet, folder)).troubles)
    except Unavailable as refused:
        told = (refused.message,)
    assert {each.partition(":")[0] for each in told} <= {"The folder to import from cannot be read"}
    assert bytes_of(folder) == before
    assert await quiet.store.check() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE db_file SET size = 9223372036854775807",
        "UPDATE db_file SET size = 6",
        "UPDATE db_data SET data = 'a text'",
        "UPDATE db_data SET data = x''",
        "UPDATE db_data SET data = NULL",
        "DELETE FROM db_data",
    ],
)
async def test_a_file_that_is_not_whole_is_a_failure(
    quiet: Holdfast, folder: Path, statement: str
) -> None:
    changed(folder, statement)

    report = await brought(quiet, folder)

    assert [(each.oid, each.step) for each in report.troubles] == [
        ("b1", "archive"),
        ("b1", "seed"),
    ]
    assert await contents(quiet, "a") == {}


@pytest.mark.parametrize("size", ["-1", "0", "NULL", "'many'", "1.5"])
async def test_a_size_that_is_none_is_no_snapshot(quiet: Holdfast, folder: Path, size: str) -> None:
    changed(folder, f"UPDATE db_file SET size = {size}")

    assert (await brought(quiet, folder)).stats == MigrationStats(
        blocks_scanned=1, skipped_no_snapshot=1
    )


async def test_times_at_both_ends_find_a_place_that_is_listed(
    quiet: Holdfast, folder: Path
) -> None:
    for number, times in enumerate([(LAST, LAST), (LAST, 1), (-LAST - 1, -1), (LAST - 1, 0)]):
        agent_block(folder, f"c{number}", "a", f"{number}".encode(), times)

    report = await brought(quiet, folder)
    listed = await quiet.zones.list_archives(quiet.owner, "a")
    await quiet.zones.write_state(quiet.owner, "a", "over the last")

    assert (report.stats.archives_written, report.stats.failures) == (5, 0)
    assert len(listed) == 5
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "over the last"


async def test_a_schema_has_nothing_run(quiet: Holdfast, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "hostile")
    agent_block(folder, "b1", "a", b"first")
    changed(
        folder,
        "ALTER TABLE db_file RENAME TO kept",
        "CREATE VIEW db_file AS SELECT zoneid, name, 1 << 40 AS size, 1 AS createdts, 1 AS modts"
        " FROM kept",
        "ALTER TABLE db_data RENAME TO parts",
        "CREATE VIRTUAL TABLE db_data USING fts5 (zoneid, name, partidx, data)",
    )
    changed(folder, "DROP TABLE parts")

    assert (await brought(quiet, folder)).stats == ZERO


async def test_a_change_that_was_never_finished_is_taken_back_aside(
    quiet: Holdfast, folder: Path, tmp_path: Path
) -> None:
    """A program that died amid a change leaves what is to be put back beside its database."""
    a_file(folder, "b1", "output", b"kept\n" * 50_000, (1, 2))
    connection = apsw.Connection(str(folder / "files.db"))
    connection.pragma("cache_spill", 1)
    connection.pragma("cache_size", 1)
    connection.execute("BEGIN")
    connection.execute("UPDATE db_data SET data = zeroblob(length(data)) WHERE name = 'output'")
    dead = Path(shutil.copytree(folder, tmp_path / "dead"))
    connection.execute("ROLLBACK")
    connection.close()
    before = bytes_of(dead)

    report = await brought(quiet, dead)

    assert (dead / "files.db-journal").stat().st_size > 0
    assert report.stats.failures == 0
    assert (await contents(quiet, "a"))["agent:a:current output"] == "kept\n" * 50_000
    assert bytes_of(dead) == before


async def test_a_folder_that_nobody_may_read_is_told(quiet: Holdfast, folder: Path) -> None:
    (folder / "objects.db-wal").mkdir()

    with pytest.raises(HoldfastError, match="The folder to import from cannot be read"):
        await brought(quiet, folder)
