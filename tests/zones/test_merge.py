"""A zone moves as a whole: names, bytes and times, and of two that differ none is lost."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.api import Holdfast
from holdfast.app import Environment, open_holdfast
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import LOCAL_OWNER, Owner
from holdfast.execution.coordinator import RunScope
from holdfast.zones.binding import stamp_of
from holdfast.zones.merge import merge_zone
from holdfast.zones.model import ZoneFile
from holdfast.zones.tables import ZoneTables
from tests.marks import demands
from tests.zones.files import Files

pytestmark = pytest.mark.anyio

OLD, NEW = "agent:old:current", "agent:new:current"
Zone = dict[str, tuple[bytes, int]]
Zones = dict[str, Zone]


async def laid_out(house: Holdfast, zones: Zones) -> None:
    """Write zones as they are described: content and time of each file."""
    for zone, of_it in zones.items():
        for name, (content, at) in of_it.items():
            await Files(house, at).write(zone, name, content)


async def found(house: Holdfast, prefix: str = "agent:") -> Zones:
    """Return all zones in the same form."""
    files = Files(house)
    return {
        zone: {
            each.name: (await files.read(zone, each.name), each.modified_ms)
            for each in await files.of(zone)
        }
        for zone in await files.names(prefix)
    }


async def moved(house: Holdfast, old: str = OLD, new: str = NEW) -> int:
    stamp = stamp_of(house.zones.stamping)
    return await house.store.write(lambda tx: merge_zone(tx, house.owner, old, new, stamp=stamp))


@demands("S4-130", "S4-130b")
async def test_names_bytes_and_times_arrive(quiet: Holdfast) -> None:
    content = bytes(range(256)) * 1000
    files = {"output": (content, 7), "output.state.json": (b"{}", 9), "other": (b"", 5)}
    await laid_out(quiet, {OLD: files})

    assert await moved(quiet) == 0
    assert await moved(quiet) == 0
    assert await found(quiet) == {NEW: files}
    assert await quiet.store.check() == []


A, B = b"ours", b"theirs"


@demands("S4-131")
@pytest.mark.parametrize(
    ("ours", "theirs", "after", "conflicts"),
    [
        pytest.param((A, 5), None, {NEW: (A, 5)}, 0, id="lacks"),
        pytest.param((A, 5), (b"", 9), {NEW: (A, 5)}, 0, id="empty"),
        pytest.param((A, 5), (A, 9), {NEW: (A, 9)}, 0, id="same"),
        pytest.param((A, 5), (B, 4), {NEW: (A, 5), "agent:new:archive:4": (B, 4)}, 0, id="newer"),
        pytest.param((A, 5), (B, 6), {NEW: (B, 6), "agent:new:archive:5": (A, 5)}, 0, id="older"),
        pytest.param((A, 5), (B, 5), {NEW: (B, 5), "agent:new:archive:5": (A, 5)}, 1, id="equal"),
    ],
)
async def test_each_row_of_the_table(
    quiet: Holdfast,
    ours: tuple[bytes, int],
    theirs: tuple[bytes, int] | None,
    after: dict[str, tuple[bytes, int]],
    conflicts: int,
) -> None:
    await laid_out(quiet, {OLD: {"output": ours}, NEW: {"output": theirs} if theirs else {}})

    assert await moved(quiet) == conflicts
    assert await found(quiet) == {zone: {"output": file} for zone, file in after.items()}


async def test_the_losing_side_is_kept_as_a_whole_where_there_is_room(quiet: Holdfast) -> None:
    await laid_out(
        quiet,
        {
            OLD: {"output": (A, 9), "output.state.json": (A, 3)},
            NEW: {"output": (B, 4), "output.state.json": (B, 6), "more": (b"x", 1)},
            "agent:new:archive:6": {"output": (b"taken", 1)},
        },
    )

    await moved(quiet)

    assert await found(quiet) == {
        NEW: {"output": (A, 9), "output.state.json": (A, 3), "more": (b"x", 1)},
        "agent:new:archive:6": {"output": (b"taken", 1)},
        "agent:new:archive:7": {
            "output": (B, 4),
            "output.state.json": (B, 6),
            "more": (b"x", 1),
        },
    }


async def test_an_archive_that_meets_another_takes_the_next_number(quiet: Holdfast) -> None:
    old, new = "agent:old:archive:5", "agent:new:archive:5"
    await laid_out(quiet, {old: {"output": (A, 1)}, new: {"output": (B, 1)}})

    assert await moved(quiet, old, new) == 0
    assert await found(quiet) == {
        new: {"output": (B, 1)},
        "agent:new:archive:6": {"output": (A, 1)},
    }


async def test_an_archive_that_meets_itself_is_there_once(quiet: Holdfast) -> None:
    old, new = "agent:old:archive:5", "agent:new:archive:5"
    await laid_out(quiet, {old: {"output": (A, 1)}, new: {"output": (A, 2)}})

    assert await moved(quiet, old, new) == 0
    assert await found(quiet) == {new: {"output": (A, 2)}}


async def test_a_move_that_would_lose_a_name_is_taken_back(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones: Zones = {OLD: {"output": (A, 5)}}
    await laid_out(quiet, zones)

    async def lose(self: ZoneTables, owner: Owner, file: ZoneFile) -> None:
        await self.remove(file)

    monkeypatch.setattr(ZoneTables, "move", lose)
    with pytest.raises(Internal) as caught:
        await moved(quiet)

    assert caught.value.code is Code.ZONE_MOVE_INCOMPLETE
    assert await found(quiet) == zones


FILES = st.dictionaries(
    st.sampled_from(["output", "output.state.json", "x"]),
    st.tuples(st.sampled_from([b"", b"1", b"22", b"333"]), st.integers(1, 4)),
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, FILES, FILES)
def test_no_content_is_lost_whatever_meets(
    tmp_path_factory: pytest.TempPathFactory, ours: Zone, theirs: Zone, archived: Zone
) -> None:
    import asyncio

    async def play(home: Path) -> tuple[set[bytes], set[bytes], Zones]:
        outside = Environment()
        async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
            await house.zones.purge(LOCAL_OWNER, "old", confirm="old")
            await house.zones.purge(LOCAL_OWNER, "new", confirm="new")
            await laid_out(house, {OLD: ours, NEW: theirs, "agent:new:archive:3": archived})
            before = contents_of(await found(house))
            await moved(house)
            after = await found(house)
            return before, contents_of(after), after

    before, after, zones = asyncio.run(play(shared_home(tmp_path_factory)))

    assert after == before
    assert OLD not in zones


def contents_of(zones: Zones) -> set[bytes]:
    """Return the distinct contents that are not empty."""
    return {content for zone in zones.values() for content, _ in zone.values() if content}


_homes: list[Path] = []


def shared_home(factory: pytest.TempPathFactory) -> Path:
    """Return one home for all examples: to make one takes longer than an example."""
    if not _homes:
        _homes.append(factory.mktemp("moves") / "home")
    return _homes[0]
