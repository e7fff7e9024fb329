"""The file store: every operation on files of zones, whole and inside one transaction."""

import random

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.zones.model import PART_SIZE, ZoneFile
from holdfast.zones.tables import REST_MOST
from tests.houses import raw
from tests.marks import demands, each_case
from tests.zones.files import Files

pytestmark = pytest.mark.anyio


@demands("S4-022")
async def test_a_file_is_made_empty_and_one_that_is_there_is_left(quiet: Holdfast) -> None:
    made = await Files(quiet, 7).ensure("z", "output")
    await Files(quiet, 8).append("z", "output", b"x")
    again = await Files(quiet, 9).ensure("z", "output")

    assert made == ZoneFile(
        key=made.key,
        zone="z",
        name="output",
        created_ms=7,
        modified_ms=7,
        generation=made.generation,
    )
    assert len(made.generation) == 16
    assert (again.size, again.modified_ms, again.generation) == (1, 8, made.generation)


@demands("S4-022b")
@pytest.mark.parametrize("before", [None, 0, 3, PART_SIZE, 3 * PART_SIZE])
async def test_a_file_is_written_as_a_whole_in_parts(quiet: Holdfast, before: int | None) -> None:
    if before is not None:
        await Files(quiet, 7).write("z", "f", b"o" * before)
    for at, size in enumerate((0, 1, PART_SIZE, PART_SIZE + 1, 2 * PART_SIZE), 9):
        content = bytes(number % 251 for number in range(size))

        written = await Files(quiet, at).write("z", "f", content)

        assert (written.size, written.modified_ms) == (size, at)
        assert await Files(quiet).read("z", "f") == content
        with raw(quiet.config.home) as file:
            rows = list(file.execute("SELECT part, length(content) FROM zone_parts ORDER BY part"))
        full = [(number, PART_SIZE) for number in range(size // PART_SIZE)]
        assert rows == full + ([(len(full), size % PART_SIZE)] if size % PART_SIZE else [])
    assert await quiet.store.check() == []


async def test_a_file_grows_and_keeps_when_it_was_made(quiet: Holdfast) -> None:
    first = await Files(quiet, 7).append("z", "f", b"abc")
    more = await Files(quiet, 8).append("z", "f", b"x" * PART_SIZE)
    file = await Files(quiet).stat("z", "f")

    assert (first.size, more.size) == (3, 3 + PART_SIZE)
    assert file == more
    assert (file.created_ms, file.modified_ms, file.tail_open, file.lines) == (7, 8, True, 1)
    assert await Files(quiet).stat("z", "g") is None


async def test_reading_is_cut_to_the_file(quiet: Holdfast) -> None:
    await Files(quiet).write("z", "f", b"0123456789")
    await Files(quiet).ensure("z", "empty")

    spans = [(0, 10), (3, 5), (-4, 2), (8, 99), (10, 12), (5, 3)]
    assert [await Files(quiet).read("z", "f", *span) for span in spans] == [
        *(b"0123456789", b"34", b"01", b"89", b"", b"")
    ]
    assert await Files(quiet).read("z", "empty") == b""


async def test_a_zone_is_copied_with_its_times_where_there_is_none(quiet: Holdfast) -> None:
    await Files(quiet, 3).write("a", "f", b"1")
    await Files(quiet, 4).write("a", "g", b"2" * (PART_SIZE + 1))
    await Files(quiet, 9).copy_zone("a", "b")

    copied = await Files(quiet).of("b")

    assert [(file.name, file.size, file.created_ms, file.modified_ms) for file in copied] == [
        ("f", 1, 3, 3),
        ("g", PART_SIZE + 1, 4, 4),
    ]
    originals = await Files(quiet).of("a")
    assert {file.generation for file in copied} & {file.generation for file in originals} == set()
    with pytest.raises(Conflict) as caught:
        await Files(quiet).copy_zone("a", "b")
    assert caught.value.code is Code.ZONE_EXISTS
    assert await quiet.store.check() == []


async def test_a_zone_is_there_as_long_as_it_has_a_file(quiet: Holdfast) -> None:
    for zone in ("b", "a", "ab", "c"):
        await Files(quiet).write(zone, "f", b"x")
    await Files(quiet).write("a", "g", b"x")

    assert await Files(quiet).names("") == ["a", "ab", "b", "c"]
    assert await Files(quiet).names("a") == ["a", "ab"]
    gone = [
        await Files(quiet).remove_all("b"),
        await Files(quiet).remove_all("b"),
        await Files(quiet).remove_all("a"),
        await Files(quiet).remove_all("a"),
    ]
    assert gone == [1, 0, 2, 0]
    assert await Files(quiet).names("") == ["ab", "c"]
    with raw(quiet.config.home) as file:
        assert list(file.execute("SELECT count(*) FROM zone_parts")) == [(2,)]


@each_case("name", ["", "..", "a/b"])
async def test_a_name_that_cannot_be_is_refused(quiet: Holdfast, name: str) -> None:
    with pytest.raises(Invalid):
        await Files(quiet).ensure("z", name)
    with pytest.raises(Invalid):
        await Files(quiet).write("z", name, b"x")
    assert await Files(quiet).names() == []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE zone_files SET size = size + 1", "z f is damaged."),
        ("UPDATE zone_parts SET tail = x'20' WHERE part = 1", "part 1 of z f is damaged."),
        ("DELETE FROM zone_parts WHERE part = 0", "part 1 of z f does not follow the part"),
        (
            "DELETE FROM zone_parts WHERE part = 2",
            "the content of z f does not match its size and line count.",
        ),
    ],
)
async def test_damage_is_named_and_nothing_of_it_is_read(
    quiet: Holdfast, damage: str, fault: str
) -> None:
    await Files(quiet).write("z", "f", b"x" * (2 * PART_SIZE + 1))
    with raw(quiet.config.home) as file:
        file.execute(damage)

    with pytest.raises(Exception, match="damaged"):
        await Files(quiet).read("z", "f")
    assert [told for told in await quiet.store.check() if told.startswith(fault)] != []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE zone_files SET rest = zeroblob(length(rest))", "part 0 of z f is damaged."),
        ("UPDATE zone_files SET rest = rest || x'20'", "z f is damaged."),
        ("UPDATE zone_files SET rest_checksum = 1", "z f is damaged."),
        (
            "DELETE FROM zone_parts WHERE start > 0",
            "the content of z f does not match its size and line count.",
        ),
        ("DELETE FROM zone_parts WHERE start = 0", "part 0 of z f is damaged."),
        ("UPDATE zone_parts SET start = start + 1 WHERE start > 0", "part 0 of z f is damaged."),
        ("UPDATE zone_parts SET ended = 1 WHERE start > 0", "part 0 of z f is damaged."),
    ],
)
async def test_damage_to_a_file_that_grew_is_named_and_nothing_of_it_is_read(
    quiet: Holdfast, damage: str, fault: str
) -> None:
    for _ in range(25):
        await Files(quiet).append("z", "f", b"x" * 199 + b"\n")
    with raw(quiet.config.home) as file:
        assert list(file.execute("SELECT count(*), min(start) FROM zone_parts")) == [(2, 0)]
        file.execute(damage.replace("rest || x'20'", "CAST(rest || x'20' AS BLOB)"))

    with pytest.raises(Exception, match="damaged"):
        await Files(quiet).read("z", "f")
    if "rest" in damage:
        with pytest.raises(Exception, match="damaged"):
            await Files(quiet).copy_zone("z", "y")
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
        whole += more
        assert (await Files(quiet).append("z", "f", more)).size == len(whole)
        start = luck.randrange(len(whole))
        end = start + luck.randrange(2 * PART_SIZE)
        assert await Files(quiet).read("z", "f", start, end) == whole[start:end]

    await Files(quiet).copy_zone("z", "y")
    lines = [line for line in whole.split(b"\n") if line]
    for zone in ("z", "y"):
        file = await Files(quiet).stat(zone, "f")
        assert file is not None
        assert (file.size, file.lines) == (len(whole), len(lines))
        assert await Files(quiet).read(zone, "f") == whole
    assert await quiet.store.check() == []
