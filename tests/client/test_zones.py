"""The client's verbs for desks and archives, against a real house on a real socket."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from holdfast.client import ArchivesQuery, Client, LinesQuery, ReplayQuery
from holdfast.domain.errors import Code, Conflict, NotFound
from tests.client.servers import QUICK, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(quiet: Holdfast) -> AsyncIterator[Client]:
    """Talk to a house in which nothing is played."""
    async with serving(quiet) as at, Client(at.url, at.secret, timeouts=QUICK) as somebody:
        yield somebody


async def test_a_desk_is_written_read_and_cleared(client: Client) -> None:
    zones = client.zones
    fresh = await zones.read_state("a")
    written = await zones.write_state("a", "{}", if_modified_ms=0)
    appended = await zones.append("a", "1\n2")
    desk = await zones.show("a")
    lines = await zones.lines("a", LinesQuery(start=1))
    replay = await zones.replay("a", ReplayQuery(page=1))
    whole = await zones.file("a", "output")
    archived = await zones.archive("a")
    nothing = await zones.archive("a")

    assert (fresh.content, fresh.modified_ms) == (None, None)
    assert (written.bytes_written, appended.offset, appended.bytes_written) == (2, 0, 4)
    assert [(file.name, file.size) for file in desk.files] == [
        ("output", 4),
        ("output.state.json", 2),
    ]
    assert (lines.lines, lines.total, lines.tail_open) == (("2",), 2, False)
    assert (replay.lines, whole) == (("2",), b"1\n2\n")
    assert archived.files == {"output": 4, "output.state.json": 2}
    assert (nothing.archive_zoneid, nothing.files) == (None, {})


async def test_an_archive_is_listed_read_restored_and_removed(client: Client) -> None:
    zones = client.zones
    await zones.write_state("a", "{}")
    await zones.append("a", "1")
    ms = (await zones.archive("a")).archived_at_ms
    assert ms is not None

    (listed,) = await zones.archives("a", ArchivesQuery(limit=5))
    found = await zones.read_archive("a", ms)
    lines = await zones.lines("a", archive=ms)
    whole = await zones.file("a", "output.state.json", archive=ms)
    restored = await zones.restore("a", ms)
    deleted = [await zones.delete("a", ms) for _ in range(2)]

    assert (listed.archived_at_ms, listed.lines) == (ms, 1)
    assert (found.content, lines.lines, whole) == ("{}", ("1",), b"{}")
    assert (restored.zone, restored.displaced) == ("agent:a:current", None)
    assert deleted == [True, False]
    with pytest.raises(NotFound) as missing:
        await zones.restore("a", ms)
    assert missing.value.code is Code.ARCHIVE_NOT_FOUND


async def test_two_views_do_not_overwrite_each_other_from_afar(client: Client) -> None:
    await client.zones.write_state("a", "1")

    with pytest.raises(Conflict) as caught:
        await client.zones.write_state("a", "2", if_modified_ms=0)

    assert caught.value.code is Code.ZONE_CHANGED
    assert (await client.zones.read_state("a")).content == "1"
