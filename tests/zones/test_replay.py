"""However long a log is and whatever a snapshot holds, a replay is made, and in little memory."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import open_holdfast
from holdfast.api import Holdfast
from holdfast.ports.store import Tx
from holdfast.zones.files import newest_lines
from holdfast.zones.lines import LineQuery
from holdfast.zones.model import PART_SIZE
from holdfast.zones.replay import Replay, ReplayProblem, ReplaySource
from tests.marks import demands
from tests.zones.test_service import torn

pytestmark = pytest.mark.anyio


async def replayed(house: Holdfast, document: Any, **sizes: int) -> Replay:
    await house.zones.write_state(house.owner, "a", msgspec.json.encode(document))
    return await house.zones.replay(house.owner, "a", **sizes)


@demands("S4-032")
async def test_what_was_appended_is_replayed_by_the_next_process(home: Path) -> None:
    lines = ['{"text":"one"}', "not json", '{"text":"three"}']
    async with open_holdfast(home) as first:
        seen = {"schemaVersion": 1, "nodes": ["one"], "highWaterMark": 1}
        await first.zones.write_state(first.owner, "a", msgspec.json.encode(seen))
        for line in lines:
            await first.zones.append_output(first.owner, "a", line)

    async with open_holdfast(home) as second:
        replay = await second.zones.replay(second.owner, "a")
        files = (await second.zones.show(second.owner, "a")).files

    assert (replay.nodes, replay.lines, replay.total) == (("one",), tuple(lines[1:]), 3)
    assert [file.name for file in files] == ["output", "output.state.json"]


async def test_whoever_pages_up_comes_to_the_first_line(quiet: Holdfast) -> None:
    lines = [f"{number}" for number in range(1_000)]
    await quiet.zones.append_lines(quiet.owner, "a", lines)
    replay = await replayed(quiet, {"schemaVersion": 2, "highWaterMark": 1}, window=333)
    shown, start = list(replay.lines), replay.start
    while start:
        page = LineQuery(start=max(0, start - 200), limit=min(200, start))
        above = await quiet.zones.read_lines(quiet.owner, "a", page)
        shown, start = [*above.lines, *shown], above.start

    assert shown == lines
    assert (replay.start, replay.total) == (667, 1_000)


async def test_of_a_log_that_outran_an_old_page_the_newest_lines_are_shown(quiet: Holdfast) -> None:
    await quiet.zones.append_lines(quiet.owner, "a", [f"{number}" for number in range(90)])
    document = {"schemaVersion": 1, "nodes": ["node"], "highWaterMark": 10, "historyOffset": 4}

    far = await replayed(quiet, document, window=20)
    near = await replayed(quiet, {**document, "highWaterMark": 88}, window=20)

    assert (far.nodes, far.start, far.lines) == (("node",), 4, tuple(map(str, range(70, 90))))
    assert (near.start, near.lines) == (4, ("88", "89"))


async def test_no_more_is_read_than_there_is_room_for(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than it is, so that a short log is too long for it.
    monkeypatch.setattr("holdfast.zones.replay.REPLAY_ROOM", 2 * PART_SIZE)
    line = "x" * 999
    await quiet.zones.append_lines(quiet.owner, "a", [line] * 1_000)

    replay = await quiet.zones.replay(quiet.owner, "a", page=900)

    assert replay.start + len(replay.lines) == replay.total == 1_000
    assert set(replay.lines) == {line}
    assert 2 * PART_SIZE - PART_SIZE < 1_000 * len(replay.lines) <= 2 * PART_SIZE


@pytest.mark.parametrize("size", [10, 1_000, PART_SIZE - 1, PART_SIZE, 3 * PART_SIZE])
async def test_lines_from_the_end_are_whole_wherever_parts_begin(
    quiet: Holdfast, size: int
) -> None:
    """Some are longer than the room for all: the last one is given whatever its size."""
    lines = [(b"%d" % number).ljust(size, b".") for number in range(1 + 300_000 // size)][-400:]
    await torn(quiet, b"\n".join(lines))

    async def read(tx: Tx) -> tuple[int, list[bytes]]:
        file = await tx.zones.file(quiet.owner, "agent:a:current", "output")
        assert file is not None
        return await newest_lines(tx, file, 0, room=2 * PART_SIZE)

    start, found = await quiet.store.read(read)

    assert found == lines[start:]
    assert found != []


@pytest.mark.parametrize("depth", [90, 150, 600, 900, 950, 975, 990, 10_000])
async def test_a_snapshot_nested_without_end_is_a_problem_and_no_error(
    quiet: Holdfast, depth: int
) -> None:
    deep = b"[" * depth + b"]" * depth
    await quiet.zones.append_output(quiet.owner, "a", "line")
    for content in (
        b'{"schemaVersion":1,"nodes":[%s]}' % deep,
        b'{"schemaVersion":2,"highWaterMark":1,"sourceBlockId":"b","paneState":{"x":%s}}' % deep,
    ):
        await quiet.zones.write_state(quiet.owner, "a", content)
        replay = await quiet.zones.replay(quiet.owner, "a")
        done = await quiet.zones.archive(quiet.owner, "a")
        assert done is not None
        await quiet.zones.restore_archive(quiet.owner, "a", done.archived_at_ms)

        assert (replay.problem is None) == (depth == 90)
        assert msgspec.json.decode(msgspec.json.encode(replay))["lines"] == ["line"]
    assert len(await quiet.zones.list_archives(quiet.owner, "a")) == 2


async def test_numbers_that_nobody_counts_to_are_no_marks_within_the_log(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "a", "line")
    huge = 10**400

    second = await replayed(quiet, {"schemaVersion": huge, "highWaterMark": huge})
    first = await replayed(quiet, {"nodes": [], "highWaterMark": huge, "historyOffset": huge})

    assert (second.source, second.problem) == (ReplaySource.V2, ReplayProblem.MARK_BEYOND_LOG)
    assert (first.source, first.start, first.lines) == (ReplaySource.V1, huge, ())
