"""The file store: every operation on files of zones, whole and inside one transaction."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.ports.store import Tx
from holdfast.zones.files import ZoneFiles, ZoneStamp
from holdfast.zones.model import PART_SIZE, ZoneFile
from holdfast.zones.tables import REST_MOST
from tests.houses import raw
from tests.marks import demands

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def used(house: Holdfast, act: Callable[[ZoneFiles], Awaitable[T]], at: int = 7) -> T:
    """Run something on the files at a time, with generations that count up."""
    numbers = iter(range(at * 100, at * 100 + 99))
    stamp = ZoneStamp(at=at, generation=lambda: f"{next(numbers):016x}")

    async def work(tx: Tx) -> T:
        return await act(ZoneFiles(tx, house.owner, stamp))

    return await house.store.write(work)


@demands("S4-022")
async def test_a_file_is_made_empty_and_one_that_is_there_is_left(quiet: Holdfast) -> None:
    made = await used(quiet, lambda files: files.ensure("z", "output"))
    await used(quiet, lambda files: files.append("z", "output", b"x"), at=8)
    again = await used(quiet, lambda files: files.ensure("z", "output"), at=9)

    assert made == ZoneFile(
        key=made.key,
        zone="z",
        name="output",
        created_ms=7,
        modified_ms=7,
        generation=f"{700:016x}",
    )
    assert (again.size, again.modified_ms, again.generation) == (1, 8, made.generation)


@demands("S4-022b")
@pytest.mark.parametrize("before", [None, 0, 3, PART_SIZE, 3 * PART_SIZE])
async def test_a_file_is_written_as_a_whole_in_parts(quiet: Holdfast, before: int | None) -> None:
    if before is not None:
        await used(quiet, lambda files: files.write("z", "f", b"o" * before))
    for at, size in enumerate((0, 1, PART_SIZE, PART_SIZE + 1, 2 * PART_SIZE), 9):
        content = bytes(number % 251 for number in range(size))

        written = await used(quiet, lambda files, c=content: files.write("z", "f", c), at=at)

        assert (written.size, written.modified_ms) == (size, at)
        assert await used(quiet, lambda files: files.read("z", "f")) == content
        with raw(quiet.config.home) as file:
            rows = list(file.execute("SELECT part, length(content) FROM zone_parts ORDER BY part"))
        full = [(number, PART_SIZE) for number in range(size // PART_SIZE)]
        assert rows == full + ([(len(full), size % PART_SIZE)] if size % PART_SIZE else [])
    assert await quiet.store.check() == []


async def test_appending_tells_where_and_nothing_changes_nothing(quiet: Holdfast) -> None:
    first = await used(quiet, lambda files: files.append("z", "f", b"abc"))
    nothing = await used(quiet, lambda files: files.append("z", "f", b""), at=9)
    missing = await used(quiet, lambda files: files.append("z", "g", b""))
    more = await used(quiet, lambda files: files.append("z", "f", b"x" * PART_SIZE), at=8)
    file = await used(quiet, lambda files: files.stat("z", "f"))

    assert (first, nothing, missing, more) == ((0, 3), (3, 3), (0, 0), (3, 3 + PART_SIZE))
    assert file is not None
    assert (file.created_ms, file.modified_ms, file.tail_open, file.lines) == (7, 8, True, 1)
    assert await used(quiet, lambda files: files.stat("z", "g")) is None


async def test_reading_is_cut_to_the_file(quiet: Holdfast) -> None:
    await used(quiet, lambda files: files.write("z", "f", b"0123456789"))
    await used(quiet, lambda files: files.ensure("z", "empty"))

    async def read(name: str, start: int, end: int | None) -> bytes | None:
        return await used(quiet, lambda files: files.read("z", name, start, end))

    spans = [(0, None), (3, 5), (-4, 2), (8, 99), (10, 12), (5, 3)]
    assert [await read("f", *span) for span in spans] == [
        *(b"0123456789", b"34", b"01", b"89", b"", b"")
    ]
    assert (await read("empty", 0, None), await read("none", 0, None)) == (b"", None)


async def test_a_zone_is_copied_with_its_times_where_there_is_none(quiet: Holdfast) -> None:
    await used(quiet, lambda files: files.write("a", "f", b"1"), at=3)
    await used(quiet, lambda files: files.write("a", "g", b"2" * (PART_SIZE + 1)), at=4)
    await used(quiet, lambda files: files.copy_zone("a", "b"), at=9)

    copied = await used(quiet, lambda files: files.files("b"))

    assert [(file.name, file.size, file.created_ms, file.modified_ms) for file in copied] == [
        ("f", 1, 3, 3),
        ("g", PART_SIZE + 1, 4, 4),
    ]
    originals = await used(quiet, lambda files: files.files("a"))
    assert {file.generation for file in copied} & {file.generation for file in originals} == set()
    with pytest.raises(Conflict) as caught:
        await used(quiet, lambda files: files.copy_zone("a", "b"))
    assert caught.value.code is Code.ZONE_EXISTS
    assert await quiet.store.check() == []


async def test_a_zone_is_there_as_long_as_it_has_a_file(quiet: Holdfast) -> None:
    for zone in ("b", "a", "ab", "c"):
        await used(quiet, lambda files, zone=zone: files.write(zone, "f", b"x"))
    await used(quiet, lambda files: files.write("a", "g", b"x"))

    assert await used(quiet, lambda files: files.list_zones("")) == ["a", "ab", "b", "c"]
    assert await used(quiet, lambda files: files.list_zones("a")) == ["a", "ab"]
    gone = [
        await used(quiet, lambda files: files.delete_file("b", "f")),
        await used(quiet, lambda files: files.delete_file("b", "f")),
        await used(quiet, lambda files: files.delete_zone("a")),
        await used(quiet, lambda files: files.delete_zone("a")),
    ]
    assert gone == [1, 0, 2, 0]
    assert await used(quiet, lambda files: files.list_zones("")) == ["ab", "c"]
    with raw(quiet.config.home) as file:
        assert list(file.execute("SELECT count(*) FROM zone_parts")) == [(2,)]


@pytest.mark.parametrize("name", ["", "..", "a/b"])
async def test_a_name_that_cannot_be_is_refused(quiet: Holdfast, name: str) -> None:
    for act in (
        lambda files: files.ensure("z", name),
        lambda files: files.write("z", name, b"x"),
        lambda files: files.append("z", name, b"x"),
        lambda files: files.append("z", name, b""),
    ):
        with pytest.raises(Invalid):
            await used(quiet, act)
    assert await used(quiet, lambda files: files.list_zones("")) == []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE zone_files SET size = size + 1", "z f is damaged."),
        ("UPDATE zone_parts SET tail = x'20' WHERE part = 1", "part 1 of z f is damaged."),
        ("DELETE FROM zone_parts WHERE part = 0", "part 1 of z f does not go on where the one"),
        ("DELETE FROM zone_parts WHERE part = 2", "z f has other bytes than it says."),
    ],
)
async def test_damage_is_named_and_nothing_of_it_is_read(
    quiet: Holdfast, damage: str, fault: str
) -> None:
    await used(quiet, lambda files: files.write("z", "f", b"x" * (2 * PART_SIZE + 1)))
    with raw(quiet.config.home) as file:
        file.execute(damage)

    with pytest.raises(Exception, match="damaged"):
        await used(quiet, lambda files: files.read("z", "f"))
    assert [told for told in await quiet.store.check() if told.startswith(fault)] != []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE zone_files SET rest = zeroblob(length(rest))", "part 0 of z f is damaged."),
        ("UPDATE zone_files SET rest = rest || x'20'", "z f is damaged."),
        ("UPDATE zone_files SET rest_checksum = 1", "z f is damaged."),
        ("DELETE FROM zone_parts WHERE start > 0", "z f has other bytes than it says."),
        ("DELETE FROM zone_parts WHERE start = 0", "part 0 of z f is damaged."),
        ("UPDATE zone_parts SET start = start + 1 WHERE start > 0", "part 0 of z f is damaged."),
        ("UPDATE zone_parts SET ended = 1 WHERE start > 0", "part 0 of z f is damaged."),
    ],
)
async def test_damage_to_a_file_that_grew_is_named_and_nothing_of_it_is_read(
    quiet: Holdfast, damage: str, fault: str
) -> None:
    for _ in range(25):
        await used(quiet, lambda files: files.append("z", "f", b"x" * 199 + b"\n"))
    with raw(quiet.config.home) as file:
        assert list(file.execute("SELECT count(*), min(start) FROM zone_parts")) == [(2, 0)]
        file.execute(damage.replace("rest || x'20'", "CAST(rest || x'20' AS BLOB)"))

    with pytest.raises(Exception, match="damaged"):
        await used(quiet, lambda files: files.read("z", "f"))
    with pytest.raises(Exception, match="damaged"):
        await used(
            quiet,
            lambda files: files.copy_zone("z", "y") if "rest" in damage else files.read("z", "f"),
        )
    assert [told for told in await quiet.store.check() if told.startswith(fault)] != []


@pytest.mark.parametrize("seed", range(12))
async def test_in_whatever_pieces_a_file_grows_it_is_all_of_them(
    quiet: Holdfast, seed: int
) -> None:
    luck = random.Random(seed)
    sizes = (1, 2, 200, REST_MOST - 1, REST_MOST, REST_MOST + 1, PART_SIZE - 1, PART_SIZE + 1)
    weights = (5, 5, 30, 1, 1, 1, 1, 1)
    whole = b""
    for _ in range(60):
        size = luck.choices(sizes, weights)[0]
        more = luck.randbytes(size).translate(None, b"\n")[: size - 1] + luck.choice((b"\n", b"x"))
        told = await used(quiet, lambda files, more=more: files.append("z", "f", more))
        assert told == (len(whole), len(whole) + len(more))
        whole += more
        start = luck.randrange(len(whole))
        end = start + luck.randrange(2 * PART_SIZE)
        assert (
            await used(quiet, lambda files, s=start, e=end: files.read("z", "f", s, e))
            == whole[start:end]
        )

    await used(quiet, lambda files: files.copy_zone("z", "y"))
    lines = [line for line in whole.split(b"\n") if line]
    for zone in ("z", "y"):
        file = await used(quiet, lambda files, zone=zone: files.stat(zone, "f"))
        assert file is not None
        assert (file.size, file.lines) == (len(whole), len(lines))
        assert await used(quiet, lambda files, zone=zone: files.read(zone, "f")) == whole
    assert await quiet.store.check() == []
