"""A file of a zone that is damaged, or a disk that is full, is in nobody else's way."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment, RunScope, open_holdfast
from holdfast.domain.errors import Code, HoldfastError, Internal, Invalid, StorageFull
from holdfast.domain.ids import Owner
from tests.houses import raw
from tests.store.faulty_vfs import DISK, VFS, failing
from tests.zones.test_archives import contents

pytestmark = pytest.mark.anyio

ROW = "UPDATE zone_files SET size = size + 1 WHERE zone = ?"
PART = """
UPDATE zone_parts SET content = zeroblob(length(content))
 WHERE file_key IN (SELECT key FROM zone_files WHERE zone = ?)
"""


async def archived(house: Holdfast, text: str) -> tuple[str, int]:
    await house.zones.write_state(house.owner, "a", f'{{"nodes":[],"text":"{text}"}}')
    done = await house.zones.archive(house.owner, "a")
    assert done is not None
    return done.archive_zoneid, done.archived_at_ms


def damaged(house: Holdfast, how: str, zone: str) -> None:
    with raw(house.config.home) as file:
        file.execute(how, (zone,))
        assert file.changes() == 1


@pytest.mark.parametrize("how", [ROW, PART], ids=["row", "part"])
async def test_a_damaged_archive_is_listed_among_the_others_and_can_be_removed(
    quiet: Holdfast, how: str
) -> None:
    await archived(quiet, "first")
    zone, ms = await archived(quiet, "second")
    await archived(quiet, "third")
    damaged(quiet, how, zone)

    listed = await quiet.zones.list_archives(quiet.owner, "a")
    with pytest.raises(Internal) as caught:
        await quiet.zones.read_archive(quiet.owner, "a", ms)
    again = await archived(quiet, "fourth")
    gone = await quiet.zones.delete_archive(quiet.owner, "a", ms)

    assert [(each.preview, each.node_count, each.schema_version) for each in listed] == [
        ("", 0, 1),
        ("", 0, None),
        ("", 0, 1),
    ]
    assert caught.value.code is Code.CORRUPT_ROW
    assert gone
    assert again[1] not in {each.archived_at_ms for each in listed}
    assert len(await quiet.zones.list_archives(quiet.owner, "a")) == 3
    assert await quiet.store.check() == []


async def test_a_damaged_desk_keeps_no_session_from_beginning_or_its_end(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    first = await quiet.open()
    await quiet.zones.append_output(quiet.owner, "holdfast", "x")
    damaged(quiet, ROW, f"agent:{first.agent_id}:current")

    second = await quiet.open()
    seated = await seat(quiet)
    await quiet.sessions.close(quiet.owner, second.id)

    assert (seated, await seat(quiet)) == (second.id, None)
    assert caplog.text.count("an active zone was not archived") == 2
    assert await quiet.zones.purge(quiet.owner, "holdfast", confirm="holdfast") == 1
    await quiet.zones.append_output(quiet.owner, "holdfast", "anew")
    assert await quiet.store.check() == []


async def seat(house: Holdfast) -> str | None:
    """Return who sits at the desk, past the damaged files on it."""
    with raw(house.config.home) as file:
        rows = list(
            file.execute("SELECT s.id FROM desks JOIN sessions AS s ON s.key = session_key")
        )
    return rows[0][0] if rows else None


@pytest.fixture
def healthy_again() -> Iterator[None]:
    """Leave the disk healthy."""
    yield
    DISK.behave()


@pytest.mark.usefixtures("healthy_again")
async def test_on_a_full_disk_files_stay_as_they_are(home: Path) -> None:
    async with open_holdfast(home, outside=Environment(vfs=VFS), scope=RunScope.NONE) as house:
        await house.zones.append_output(house.owner, "a", "line")
        await house.zones.write_state(house.owner, "a", "state")
        before = await contents(house, "a")
        for act in (
            lambda: house.zones.append_output(house.owner, "a", "x" * 100_000),
            lambda: house.zones.write_state(house.owner, "a", "y" * 100_000),
            lambda: house.zones.archive(house.owner, "a"),
        ):
            DISK.behave(failing("write", "-wal", apsw.FullError("full")))
            with pytest.raises(HoldfastError) as caught:
                await act()
            DISK.behave()

            assert isinstance(caught.value, StorageFull)
            assert await contents(house, "a") == before


async def test_a_file_has_a_largest_size(quiet: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is smaller here, because nobody has the room to come near the real one.
    monkeypatch.setattr("holdfast.zones.tables.FILE_LARGEST", 10)
    await quiet.zones.append_output(quiet.owner, "a", "12345678")

    with pytest.raises(Invalid) as caught:
        await quiet.zones.append_output(quiet.owner, "a", "1")

    assert (caught.value.code, caught.value.details) == (Code.TOO_LARGE, {"limit": 10, "size": 11})
    assert list((await contents(quiet, "a")).values()) == ["12345678\n"]
    assert await contents(quiet, "a", Owner("stranger")) == {}


@pytest.mark.parametrize("name", ["id", "slug"])
async def test_the_zone_of_an_agent_that_cannot_be_read_takes_lines(
    quiet: Holdfast, name: str
) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    damaged(quiet, "UPDATE agents SET checksum = checksum + 1 WHERE id = ?", agent.id)

    written = await quiet.zones.append_lines(quiet.owner, getattr(agent, name), ["1", "2"])

    assert written.zone == f"agent:{agent.id}:current"
    assert (await quiet.zones.read_lines(quiet.owner, agent.id)).lines == ("1", "2")
