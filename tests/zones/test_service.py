"""A desk holds a snapshot and an output; both are written whole, read back, and owned."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import Owner
from holdfast.zones.lines import LineQuery, Lines
from holdfast.zones.model import (
    APPEND_LARGEST,
    OUTPUT_FILE,
    PART_SIZE,
    SNAPSHOT_FILE,
    WRITE_LARGEST,
    ActiveZone,
    OutputAppended,
    StateWritten,
    ZoneState,
)
from tests.houses import raw
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock
from tests.zones.files import Files
from tests.zones.test_model import REFUSED, VALID

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
FRESH = ZoneState(zone="agent:a:current", content=None, modified_ms=None)

Verb = Callable[[Holdfast, Owner, str], Awaitable[object]]

VERBS: Mapping[str, Verb] = {
    "show": lambda house, owner, id: house.zones.show(owner, id),
    "write_state": lambda house, owner, id: house.zones.write_state(owner, id, "x"),
    "read_state": lambda house, owner, id: house.zones.read_state(owner, id),
    "append_output": lambda house, owner, id: house.zones.append_output(owner, id, "x"),
    "append_lines": lambda house, owner, id: house.zones.append_lines(owner, id, ["x"]),
    "read_lines": lambda house, owner, id: house.zones.read_lines(owner, id),
    "follow": lambda house, owner, id: anext(house.zones.follow(owner, id)),
    "read_file": lambda house, owner, id: house.zones.read_file(owner, id, "output"),
    "replay": lambda house, owner, id: house.zones.replay(owner, id),
    "archive": lambda house, owner, id: house.zones.archive(owner, id),
    "list_archives": lambda house, owner, id: house.zones.list_archives(owner, id),
    "read_archive": lambda house, owner, id: house.zones.read_archive(owner, id, 1),
    "restore_archive": lambda house, owner, id: house.zones.restore_archive(owner, id, 1),
    "delete_archive": lambda house, owner, id: house.zones.delete_archive(owner, id, 1),
    "purge": lambda house, owner, id: house.zones.purge(owner, id, confirm=id),
}


@demands("S4-003")
@each_case("verb", VERBS.values(), ids=list(VERBS))
async def test_an_id_that_cannot_be_is_refused_and_nothing_is_written(
    quiet: Holdfast, verb: Verb
) -> None:
    for text in REFUSED:
        with pytest.raises(Invalid) as caught:
            await verb(quiet, quiet.owner, text)

        assert caught.value.code is Code.INVALID_DEFINITION_ID
        assert caught.value.message.startswith("INVALID_DEFINITION_ID: ")
    with raw(quiet.config.home) as file:
        assert list(file.execute("SELECT count(*) FROM zone_files")) == [(0,)]


async def test_the_id_is_judged_before_anything_else(quiet: Holdfast) -> None:
    zones, owner = quiet.zones, quiet.owner
    for act in (
        lambda: zones.write_state(owner, "a:b", "\ud800"),
        lambda: zones.append_output(owner, "a:b", "\ud800"),
        lambda: zones.read_lines(owner, "a:b", LineQuery(limit=0)),
        lambda: zones.replay(owner, "a:b", window=0),
        lambda: zones.list_archives(owner, "a:b", limit=-1),
        lambda: zones.purge(owner, "a:b", confirm="b"),
    ):
        with pytest.raises(Invalid) as caught:
            await act()

        assert caught.value.code is Code.INVALID_DEFINITION_ID


@each_case("id", VALID)
async def test_an_id_needs_no_agent(quiet: Holdfast, id: str) -> None:
    await quiet.zones.write_state(quiet.owner, id, "{}")

    found = await quiet.zones.read_state(quiet.owner, id)
    assert (found.zone, found.content) == (f"agent:{id}:current", "{}")


async def test_operations_have_the_names_that_others_know(quiet: Holdfast) -> None:
    zones, owner = quiet.zones, quiet.owner

    await zones.write_session_state(owner, "a", "{}")
    await zones.append_session_output(owner, "a", "1")

    assert (await zones.read_session_state(owner, "a")).content == "{}"
    assert (await zones.read_lines(owner, "a")).lines == ("1",)
    assert await zones.archive_session(owner, "a") is not None


@demands("S4-034", "S4-034b")
async def test_a_fresh_agent_has_nothing_to_restore(quiet: Holdfast) -> None:
    assert await quiet.zones.read_state(quiet.owner, "a") == FRESH
    assert await quiet.zones.show(quiet.owner, "a") == ActiveZone(
        zone="agent:a:current", session_id=None, files=()
    )
    assert await quiet.zones.read_lines(quiet.owner, "a") == Lines(
        lines=(), start=0, total=0, generation=None, torn=False
    )


@demands("S4-030", "S4-030b", "S4-030c", "S4-034")
async def test_a_snapshot_is_made_and_then_replaced(quiet: Holdfast, clock: SettableClock) -> None:
    first = await quiet.zones.write_state(quiet.owner, "a", "größe")
    made = await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)
    clock.advance(seconds=5)
    again = await quiet.zones.write_state(quiet.owner, "a", "{}")
    replaced = await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)

    assert first == StateWritten(zone=FRESH.zone, bytes_written=7, modified_ms=made.modified_ms)
    assert again.modified_ms == first.modified_ms + 5000
    assert replaced.created_ms == made.created_ms
    assert replaced.generation != made.generation
    assert await quiet.zones.read_state(quiet.owner, "a") == ZoneState(
        zone=FRESH.zone, content="{}", modified_ms=again.modified_ms
    )


async def test_a_clock_that_goes_back_makes_no_file_older(
    quiet: Holdfast, clock: SettableClock
) -> None:
    first = await quiet.zones.write_state(quiet.owner, "a", "1")
    clock.advance(seconds=-60)
    again = await quiet.zones.write_state(quiet.owner, "a", "2")
    await quiet.zones.append_output(quiet.owner, "a", "line")
    before = await quiet.zones.read_file(quiet.owner, "a", OUTPUT_FILE)
    clock.advance(seconds=-60)
    await quiet.zones.append_output(quiet.owner, "a", "line")
    after = await quiet.zones.read_file(quiet.owner, "a", OUTPUT_FILE)

    assert again.modified_ms == first.modified_ms + 1
    assert after.modified_ms == before.modified_ms


async def test_an_empty_snapshot_is_a_snapshot_and_one_of_bad_bytes_too(quiet: Holdfast) -> None:
    empty = await quiet.zones.write_state(quiet.owner, "a", "")
    assert await quiet.zones.read_state(quiet.owner, "a") == ZoneState(
        zone=FRESH.zone, content="", modified_ms=empty.modified_ms
    )

    await quiet.zones.write_state(quiet.owner, "a", b"\xff{}")
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "\ufffd{}"
    file = await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)
    assert await quiet.zones.read_bytes(quiet.owner, file, 0, 99) == b"\xff{}"


async def test_a_large_snapshot_comes_back_byte_for_byte(quiet: Holdfast) -> None:
    content = bytes(range(256)) * 1024

    for size in (PART_SIZE - 1, PART_SIZE, PART_SIZE + 1, len(content)):
        await quiet.zones.write_state(quiet.owner, "a", content[:size])
        file = await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)

        assert await quiet.zones.read_bytes(quiet.owner, file, 0, size) == content[:size]
        assert (
            await quiet.zones.read_bytes(quiet.owner, file, 65_530, 65_540)
            == (content[:size][65_530:65_540])
        )
        assert await quiet.zones.read_bytes(quiet.owner, file, size, size + 9) == b""


async def test_more_than_one_operation_takes_is_refused_with_the_limit(quiet: Holdfast) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.zones.write_state(quiet.owner, "a", bytes(WRITE_LARGEST + 1))
    assert (caught.value.code, caught.value.details["limit"]) == (Code.TOO_LARGE, WRITE_LARGEST)

    with pytest.raises(Invalid) as caught:
        await quiet.zones.append_output(quiet.owner, "a", "x" * APPEND_LARGEST)
    assert (caught.value.code, caught.value.details["limit"]) == (Code.TOO_LARGE, APPEND_LARGEST)
    assert (await quiet.zones.show(quiet.owner, "a")).files == ()


async def test_two_views_do_not_overwrite_each_other(quiet: Holdfast, clock: SettableClock) -> None:
    first = await quiet.zones.write_state(quiet.owner, "a", "1", if_modified_ms=0)
    with pytest.raises(Conflict) as caught:
        await quiet.zones.write_state(quiet.owner, "a", "2", if_modified_ms=0)
    assert caught.value.code is Code.ZONE_CHANGED
    assert caught.value.details == {"modified_ms": first.modified_ms}

    clock.advance(seconds=1)
    second = await quiet.zones.write_state(quiet.owner, "a", "2", if_modified_ms=first.modified_ms)
    with pytest.raises(Conflict):
        await quiet.zones.write_state(quiet.owner, "a", "3", if_modified_ms=first.modified_ms)
    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "2"
    assert second.modified_ms == first.modified_ms + 1000


async def test_two_views_of_one_millisecond_are_told_of_each_other(quiet: Holdfast) -> None:
    first = await quiet.zones.write_state(quiet.owner, "a", "1")
    await quiet.zones.write_state(quiet.owner, "a", "2")

    with pytest.raises(Conflict):
        await quiet.zones.write_state(quiet.owner, "a", "3", if_modified_ms=first.modified_ms)

    assert (await quiet.zones.read_state(quiet.owner, "a")).content == "2"


@demands("S4-032", "S4-032b", "S4-032c")
@pytest.mark.parametrize(
    ("line", "stored"),
    [("x", b"x\n"), ("x\n", b"x\n"), ("", b"\n"), ("a\nb", b"a\nb\n"), ("ä", "ä\n".encode())],
)
async def test_a_line_is_appended_with_its_end(quiet: Holdfast, line: str, stored: bytes) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "first")

    appended = await quiet.zones.append_output(quiet.owner, "a", line)

    assert appended == OutputAppended(zone=FRESH.zone, offset=6, bytes_written=len(stored))
    file = await quiet.zones.read_file(quiet.owner, "a", OUTPUT_FILE)
    assert await quiet.zones.read_bytes(quiet.owner, file, 0, 99) == b"first\n" + stored


async def test_a_line_that_is_no_text_is_refused(quiet: Holdfast) -> None:
    with pytest.raises(Invalid, match="surrogate"):
        await quiet.zones.append_output(quiet.owner, "a", "\ud800")
    assert (await quiet.zones.show(quiet.owner, "a")).files == ()


async def test_a_torn_tail_is_ended_and_kept(quiet: Holdfast) -> None:
    await torn(quiet, b'{"a":1}\n{"b":')
    before = await quiet.zones.read_lines(quiet.owner, "a")

    appended = await quiet.zones.append_output(quiet.owner, "a", '{"c":3}')

    after = await quiet.zones.read_lines(quiet.owner, "a")
    assert (before.lines, before.torn) == (('{"a":1}', '{"b":'), True)
    assert (appended.offset, appended.bytes_written) == (14, 8)
    assert (after.lines, after.torn) == (('{"a":1}', '{"b":', '{"c":3}'), False)


async def torn(house: Holdfast, content: bytes) -> None:
    """Leave an output as a writer leaves it that was cut off."""
    await Files(house).append(FRESH.zone, OUTPUT_FILE, content)


@demands("S4-001", "S4-001b")
async def test_two_agents_and_two_owners_see_nothing_of_each_other(quiet: Holdfast) -> None:
    """Zones are named by the agent alone, whatever credentials it shares with another."""
    one = await quiet.agents.create(quiet.owner, {"name": "One", "models": ["offline:holdfast"]})
    two = await quiet.agents.create(quiet.owner, {"name": "Two", "models": ["offline:holdfast"]})
    for number, id in enumerate((one.id, two.id, "a", "a-b")):
        await quiet.zones.write_state(quiet.owner, id, f"{number}")
        await quiet.zones.append_output(quiet.owner, id, f"line {number}")
    await quiet.zones.archive(quiet.owner, "a-b")

    assert [
        (await quiet.zones.read_state(quiet.owner, id)).content
        for id in (one.id, two.id, "a", "a-b")
    ] == ["0", "1", "2", None]
    assert await quiet.zones.list_archives(quiet.owner, "a") == ()
    assert await quiet.zones.read_state(STRANGER, "a") == FRESH
    assert (await quiet.zones.show(STRANGER, "a")).files == ()
    assert await quiet.zones.purge(STRANGER, "a-b", confirm="a-b") == 0
    assert len(await quiet.zones.list_archives(quiet.owner, "a-b")) == 1


@each_case("name", [name for name in VERBS if name != "follow"])
async def test_nothing_that_a_stranger_does_is_felt(quiet: Holdfast, name: str) -> None:
    for text in ("archived", "on the desk"):
        await quiet.zones.archive(quiet.owner, "a")
        await quiet.zones.write_state(quiet.owner, "a", text)
        await quiet.zones.append_output(quiet.owner, "a", text)
    desk = await quiet.zones.show(quiet.owner, "a")
    archives = await quiet.zones.list_archives(quiet.owner, "a")

    with suppress(NotFound):
        answer = await VERBS[name](quiet, STRANGER, "a")
        assert "archived" not in str(answer).replace("archived_at_ms", "")
        assert "on the desk" not in str(answer)

    assert await quiet.zones.show(quiet.owner, "a") == desk
    assert await quiet.zones.list_archives(quiet.owner, "a") == archives


async def test_an_agent_has_one_desk_whether_its_id_or_its_slug_is_given(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    written = await quiet.zones.write_state(quiet.owner, "helper", "1")
    await quiet.agents.update(quiet.owner, agent.id, {"slug": "other"})

    assert written.zone == f"agent:{agent.id}:current"
    assert (await quiet.zones.read_state(quiet.owner, "other")).content == "1"
    assert (await quiet.zones.read_state(quiet.owner, "helper")).zone == "agent:helper:current"
    assert (await quiet.zones.read_state(STRANGER, "other")).zone == "agent:other:current"


async def test_lines_are_read_by_their_numbers(quiet: Holdfast) -> None:
    lines = [f'{{"n":{number},"pad":"{"x" * (number % 300)}"}}' for number in range(2000)]
    await quiet.zones.append_lines(quiet.owner, "a", [*lines[:1000], " ", "\r", *lines[1000:]])
    whole = await quiet.zones.read_lines(quiet.owner, "a", LineQuery(limit=10_000))

    assert (whole.lines, whole.total, whole.torn) == (tuple(lines), 2000, False)
    for start in (0, 1, 999, 1000, 1001, 1999, 2000, 5000):
        page = await quiet.zones.read_lines(quiet.owner, "a", LineQuery(start=start, limit=3))
        assert (page.lines, page.start) == (tuple(lines[start : start + 3]), min(start, 2000))
        assert page.generation == whole.generation


@each_case("limit", [0, -1, 10_001])
async def test_a_page_of_lines_has_a_limit(quiet: Holdfast, limit: int) -> None:
    with pytest.raises(Invalid):
        await quiet.zones.read_lines(quiet.owner, "a", LineQuery(limit=limit))


async def test_a_page_of_long_lines_ends_early(quiet: Holdfast) -> None:
    line = "x" * (3 << 20)
    for _ in range(4):
        await quiet.zones.append_output(quiet.owner, "a", line)

    page = await quiet.zones.read_lines(quiet.owner, "a")

    assert (len(page.lines), page.end, page.total) == (2, 2, 4)


async def test_a_name_for_lines_ends_with_their_content(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "1")
    page = await quiet.zones.read_lines(quiet.owner, "a")
    named = LineQuery(generation=page.generation)
    await quiet.zones.append_output(quiet.owner, "a", "2")
    assert (await quiet.zones.read_lines(quiet.owner, "a", named)).lines == ("1", "2")

    await quiet.zones.archive(quiet.owner, "a")
    await quiet.zones.append_lines(quiet.owner, "a", ("3", "4"))
    with pytest.raises(Conflict) as caught:
        await quiet.zones.read_lines(quiet.owner, "a", named)

    assert caught.value.code is Code.ZONE_CHANGED
    fresh = await quiet.zones.read_lines(quiet.owner, "a")
    assert caught.value.details == {"generation": fresh.generation}


async def test_writers_of_one_output_interleave_whole_lines(quiet: Holdfast) -> None:
    async def write(writer: int) -> list[OutputAppended]:
        return [
            await quiet.zones.append_output(quiet.owner, "a", f"{writer}:{number}" + "x" * writer)
            for number in range(100)
        ]

    batches = await asyncio.gather(*(write(writer) for writer in range(8)))

    page = await quiet.zones.read_lines(quiet.owner, "a", LineQuery(limit=10_000))
    expected = {f"{writer}:{number}" + "x" * writer for writer in range(8) for number in range(100)}
    assert (set(page.lines), page.total) == (expected, 800)
    spans = sorted(
        (each.offset, each.offset + each.bytes_written) for batch in batches for each in batch
    )
    file = await quiet.zones.read_file(quiet.owner, "a", OUTPUT_FILE)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == file.size


async def test_a_follower_sees_what_is_appended_and_what_begins_anew(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "old")
    async with aclosing(quiet.zones.follow(quiet.owner, "a", start=1)) as news, asyncio.timeout(20):
        await quiet.zones.append_lines(quiet.owner, "a", ("1", "2"))
        first = await anext(news)
        await quiet.zones.archive(quiet.owner, "a")
        await quiet.zones.append_output(quiet.owner, "a", "new")
        second = await anext(news)
    async with aclosing(quiet.zones.follow(quiet.owner, "a", start=0)) as news:
        whole = await anext(news)

    assert (first.lines, second.lines, whole.lines) == (("1", "2"), ("new",), ("new",))


async def test_a_follower_without_a_start_begins_at_the_end(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "old")
    async with aclosing(quiet.zones.follow(quiet.owner, "a")) as news, asyncio.timeout(20):
        coming = asyncio.ensure_future(anext(news))
        # Nobody outside sees when the follower took its place, so lines come until it tells one.
        while not coming.done():
            await quiet.zones.append_output(quiet.owner, "a", "new")
            await asyncio.sleep(0.05)

    assert set(coming.result().lines) == {"new"}


async def test_a_follower_waits_for_the_end_of_a_line(quiet: Holdfast) -> None:
    await torn(quiet, b"whole\nhal")
    async with aclosing(quiet.zones.follow(quiet.owner, "a", start=0)) as news, asyncio.timeout(20):
        first = await anext(news)
        await torn(quiet, b"f\n")
        second = await anext(news)

    assert (first.lines, second.lines) == (("whole",), ("half",))


async def test_a_file_that_was_replaced_is_not_read_on(quiet: Holdfast) -> None:
    await quiet.zones.write_state(quiet.owner, "a", "1")
    file = await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)
    await quiet.zones.write_state(quiet.owner, "a", "2")

    with pytest.raises(Conflict):
        await quiet.zones.read_bytes(quiet.owner, file, 0, 1)
    await quiet.zones.purge(quiet.owner, "a", confirm="a")
    with pytest.raises(Conflict):
        await quiet.zones.read_bytes(quiet.owner, file, 0, 1)
    with pytest.raises(NotFound):
        await quiet.zones.read_file(quiet.owner, "a", SNAPSHOT_FILE)


async def test_a_damaged_part_is_named_and_not_shown(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "x" * 200_000)
    await quiet.zones.append_output(quiet.owner, "b", "fine")
    with raw(quiet.config.home) as file:
        file.execute("UPDATE zone_parts SET content = zeroblob(65536) WHERE part = 1")

    with pytest.raises(HoldfastError) as caught:
        await quiet.zones.read_lines(quiet.owner, "a")

    assert caught.value.code is Code.CORRUPT_ROW
    assert (await quiet.zones.read_lines(quiet.owner, "b")).lines == ("fine",)
    assert "part 1 of agent:a:current output is damaged." in await quiet.store.check()
