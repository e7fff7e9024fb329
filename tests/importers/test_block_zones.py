"""Zones of blocks become zones of agents, once, and nothing of the old is touched."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import asdict

from holdfast.api import Holdfast
from holdfast.domain.errors import StorageFull, Unavailable
from holdfast.importers.block_zones import (
    BlockReport,
    BlockZones,
    MigrationStats,
    block_definition,
    write_flag_file,
)
from holdfast.store.sqlite.block_files import BlockFolder
from holdfast.zones.model import MIGRATION_MARKER_V1
from tests.importers.blocks import a_block, a_file, a_folder, agent_block
from tests.marks import demands, each_case
from tests.zones.test_archives import contents

pytestmark = pytest.mark.anyio

ZERO = MigrationStats()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder of another program."""
    return a_folder(tmp_path / "old")


async def brought(house: Holdfast, folder: Path, *, dry_run: bool = False) -> BlockReport:
    source = BlockFolder(folder)
    try:
        stamping = house.zones.stamping
        importer = BlockZones(house.store, stamping, house.owner, source, dry_run=dry_run)
        return await importer.migrate(house.config.home)
    finally:
        source.close()


def bytes_of(folder: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


@demands("S4-100", "S4-100b", "S4-100c", "S4-104", "S4-107", "S4-108")
async def test_blocks_become_archives_and_the_newest_lies_on_the_desk(
    quiet: Holdfast, folder: Path
) -> None:
    agent_block(folder, "b1", "a", b"first", (100, 900))
    agent_block(folder, "b2", "a", b"second", (300, 400))
    a_file(folder, "b1", "output", b"line\n" * 30_000, (100, 900))
    agent_block(folder, "b3", "other", b"third", (500, 0))
    a_block(folder, "b4", {"view": "term", "agentId": "a"})
    a_file(folder, "b4", "output.state.json", b"no agent's", (1, 1))
    before = bytes_of(folder)

    report = await brought(quiet, folder)

    assert report == BlockReport(
        stats=MigrationStats(blocks_scanned=3, archives_written=3, current_zones_seeded=2)
    )
    log = "line\n" * 30_000
    assert await contents(quiet, "a") == {
        "agent:a:archive:100 output": log,
        "agent:a:archive:100 output.state.json": "first",
        "agent:a:archive:300 output.state.json": "second",
        "agent:a:current output": log,
        "agent:a:current output.state.json": "first",
    }
    assert len(await contents(quiet, "other")) == 2
    archive = await quiet.zones.read_archive(quiet.owner, "a", 300)
    assert [(file.created_ms, file.modified_ms) for file in archive.files] == [(300, 400)]
    assert (quiet.config.home / MIGRATION_MARKER_V1).read_text() == "v1\n"
    assert bytes_of(folder) == before
    assert await quiet.store.check() == []


@demands("S4-102", "S4-103")
async def test_a_second_run_reads_nothing_and_one_without_its_mark_writes_nothing(
    quiet: Holdfast, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent_block(folder, "b1", "a", b"first")
    agent_block(folder, "b2", "a", b"first", (7, 8))
    with caplog.at_level(logging.INFO, "holdfast.importers"):
        first = await brought(quiet, folder)
        whole = await contents(quiet, "a")
        a_block(folder, "b9", {"view": "agent", "agentId": "late"})
        second = await brought(quiet, folder)

    async def unmark(tx: Any) -> None:
        await tx.zones._db.execute("DELETE FROM marks")

    await quiet.store.write(unmark)
    third = await brought(quiet, folder)

    assert first.stats == MigrationStats(
        blocks_scanned=2, archives_written=1, archives_already_present=1, current_zones_seeded=1
    )
    logged = [vars(each)["fields"] for each in caplog.records if each.levelno == logging.INFO]
    assert logged == [asdict(first.stats), asdict(ZERO)]
    assert second == BlockReport(stats=ZERO)
    assert third.stats == MigrationStats(
        blocks_scanned=3, archives_already_present=2, skipped_no_snapshot=1
    )
    assert await contents(quiet, "a") == whole


async def test_a_dry_run_tells_what_a_run_would_do(quiet: Holdfast, folder: Path) -> None:
    agent_block(folder, "b1", "a", b"first")
    agent_block(folder, "b2", "a", b"first")
    agent_block(folder, "b3", "a", b"other")

    dry = await brought(quiet, folder, dry_run=True)

    assert await contents(quiet, "a") == {}
    assert not (quiet.config.home / MIGRATION_MARKER_V1).exists()
    assert await brought(quiet, folder) == dry


async def test_blocks_without_a_snapshot_are_counted(quiet: Holdfast, folder: Path) -> None:
    agent_block(folder, "b1", "a", None)
    agent_block(folder, "b2", "a", b"")

    report = await brought(quiet, folder)

    assert report.stats == MigrationStats(blocks_scanned=2, skipped_no_snapshot=2)
    assert await contents(quiet, "a") == {}


@each_case(
    ("meta", "found"),
    [
        ({"view": "agent", "agentId": "a"}, "a"),
        ({"view": "agent", "agentId": "", "agent:id": "b"}, "b"),
        ({"view": "agent", "agent:id": "b"}, "b"),
        ({"view": "agent", "agentId": 5, "agent:id": "b"}, "b"),
        ({"view": "agent", "agentId": "a:b", "agent:id": "b"}, None),
        ({"view": "agent", "agent:id": 5}, None),
        ({"view": "agent"}, None),
        ({"view": "term", "agentId": "a"}, None),
        ({}, None),
    ],
)
def test_whose_block_it_is(meta: dict[str, Any], found: str | None) -> None:
    assert block_definition(meta) == found


async def test_times_that_are_taken_or_unknown_find_a_place(quiet: Holdfast, folder: Path) -> None:
    agent_block(folder, "b1", "a", b"1", (100, 200))
    agent_block(folder, "b2", "a", b"2", (100, 200))
    agent_block(folder, "b3", "a", b"3", (0, 50))
    agent_block(folder, "b4", "b", b"4", (0, 0))

    await brought(quiet, folder)

    listed = await quiet.zones.list_archives(quiet.owner, "a")
    assert [each.archived_at_ms for each in listed] == [101, 100, 50]
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "1"
    (now,) = await quiet.zones.list_archives(quiet.owner, "b")
    assert now.archived_at_ms > 1_000_000


async def test_a_desk_with_a_snapshot_stays_and_a_log_without_one_is_kept(
    quiet: Holdfast, folder: Path
) -> None:
    agent_block(folder, "b1", "a", b"old")
    agent_block(folder, "b2", "b", b"old")
    await quiet.zones.write_state(quiet.owner, "a", "mine")
    await quiet.zones.append_output(quiet.owner, "b", "mine")

    report = await brought(quiet, folder)

    assert report.stats.current_zones_seeded == 1
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "mine"
    found = await contents(quiet, "b")
    assert found["agent:b:current output.state.json"] == "old"
    assert sorted(found.values()) == ["mine\n", "old", "old"]


async def test_an_agents_slug_leads_to_its_own_desk(quiet: Holdfast, folder: Path) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    agent_block(folder, "b1", "helper", b"by slug", (1, 5))
    agent_block(folder, "b2", agent.id, b"by id", (2, 6))

    report = await brought(quiet, folder)

    assert report.stats.current_zones_seeded == 1
    assert (await quiet.zones.read_state(quiet.owner, "helper")).content == "by id"
    assert len(await quiet.zones.list_archives(quiet.owner, agent.id)) == 2


async def test_a_broken_block_is_told_and_the_next_run_goes_on(
    quiet: Holdfast, folder: Path
) -> None:
    agent_block(folder, "b1", "a", b"1")
    agent_block(folder, "b2", "b", b"2")
    files = apsw.Connection(str(folder / "files.db"))
    files.execute("UPDATE db_data SET partidx = 5 WHERE zoneid = 'b1'")

    first = await brought(quiet, folder)
    files.execute("UPDATE db_data SET partidx = 0 WHERE zoneid = 'b1'")
    files.close()
    is_flagged = (quiet.config.home / MIGRATION_MARKER_V1).exists()
    second = await brought(quiet, folder)

    assert [(each.oid, each.step) for each in first.troubles] == [("b1", "archive"), ("b1", "seed")]
    assert first.stats == MigrationStats(
        blocks_scanned=2, archives_written=1, current_zones_seeded=1, failures=2
    )
    assert not is_flagged
    assert second.stats == MigrationStats(
        blocks_scanned=2, archives_written=1, archives_already_present=1, current_zones_seeded=1
    )
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "1"


async def test_a_full_disk_in_the_middle_converges_later(
    quiet: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_block(folder, "b1", "a", b"1")
    agent_block(folder, "b2", "a", b"2")
    write, left = quiet.store.write, iter((True, False, False))

    async def full(work: Any, **rest: Any) -> Any:
        if not next(left, True):
            from holdfast.domain.errors import Code

            raise StorageFull(Code.STORAGE_FULL, "full")
        return await write(work, **rest)

    monkeypatch.setattr(quiet.store, "write", full)
    first = await brought(quiet, folder)
    second = await brought(quiet, folder)

    assert (first.stats.failures, second.stats.failures) == (2, 0)
    assert sorted((await contents(quiet, "a")).values()) == ["1", "1", "2"]


async def test_a_flag_that_cannot_be_written_is_a_warning(
    quiet: Holdfast, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (quiet.config.home / MIGRATION_MARKER_V1).mkdir()
    agent_block(folder, "b1", "a", b"1")

    report = await brought(quiet, folder)

    assert report.stats.failures == 0
    assert "was not written" in caplog.text
    assert await brought(quiet, folder) == BlockReport(stats=ZERO)


async def test_a_flag_is_private_and_no_link_is_followed(
    quiet: Holdfast, folder: Path, tmp_path: Path
) -> None:
    planted, target = quiet.config.home / MIGRATION_MARKER_V1, tmp_path / "target"
    planted.symlink_to(target)
    write_flag_file(quiet.config.home, MIGRATION_MARKER_V1)
    is_followed = target.exists()
    planted.unlink()
    write_flag_file(quiet.config.home, MIGRATION_MARKER_V1)

    assert not is_followed
    assert planted.stat().st_mode & 0o777 == 0o600


async def test_a_folder_of_anything_else_is_left_alone(quiet: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x").write_bytes(b"SQLite format 3\x00 and no more")

    with pytest.raises(Unavailable):
        await brought(quiet, tmp_path / "empty")
    (tmp_path / "empty" / "x").unlink()
    assert await brought(quiet, tmp_path / "empty") == BlockReport(stats=ZERO)
    assert not (quiet.config.home / MIGRATION_MARKER_V1).exists()
    with pytest.raises(Unavailable):
        await brought(quiet, tmp_path / "missing")


@pytest.fixture
def writing(folder: Path) -> Iterator[apsw.Connection]:
    """Be the other program, with its log not yet moved."""
    connection = apsw.Connection(str(folder / "objects.db"))
    connection.pragma("journal_mode", "wal")
    yield connection
    connection.close()


async def test_what_stands_in_the_log_of_a_running_program_is_read_too(
    quiet: Holdfast, folder: Path, writing: apsw.Connection
) -> None:
    a_file(folder, "b1", "output.state.json", b"1", (1, 2))
    data = '{"meta":{"view":"agent","agentId":"a"}}'
    writing.execute("INSERT INTO db_block VALUES ('b1', 1, ?)", (data,))
    writing.execute("INSERT INTO db_block VALUES ('b2', 1, 'no json')")
    writing.execute("INSERT INTO db_block VALUES ('b3', 1, '[]')")
    before = bytes_of(folder)

    report = await brought(quiet, folder)

    assert report.stats.archives_written == 1
    assert bytes_of(folder) == before
