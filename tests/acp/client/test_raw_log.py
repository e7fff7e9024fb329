"""What a program says, word for word, on the desk of its session."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.raw_log import LINE_MOST, WAITING_MOST, RawLog
from holdfast.config import Acp
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.ids import SessionKey
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import Status
from holdfast.zones.lines import LineQuery
from tests.acp.harness import END, PATIENCE, Aboard, aboard
from tests.houses import raw
from tests.marks import demands

pytestmark = pytest.mark.anyio

KEY = SessionKey(1)


class Desk:
    """Takes lines, one batch after the other, as soon as it is open."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.batches: list[list[bytes]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.took = asyncio.Event()
        self._answers = list(answers)

    async def take(self, key: SessionKey, lines: Sequence[bytes]) -> bool:
        """Take a batch."""
        assert key == KEY
        await self.is_open.wait()
        self.batches.append(list(lines))
        self.took.set()
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def lines(self) -> list[bytes]:
        """Return all lines in their order."""
        return [line for batch in self.batches for line in batch]


async def output(ship: Aboard, count: int) -> list[Any]:
    """Wait until so many lines are on the desk of the agent, and return all of them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            page = await ship.house.zones.read_lines(ship.house.owner, "peer", LineQuery(limit=500))
            if page.total >= count:
                return [json.loads(line) for line in page.lines]
            await asyncio.sleep(0.01)


async def test_all_that_a_program_says_lies_on_its_desk_without_our_secrets(
    tmp_path: Path,
) -> None:
    steps = [{"text": "the key is hunter2-hunter2"}, {"text": "!"}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        ship.house.secrets.remember("KEY", Secret("hunter2-hunter2"))
        await ship.tell(await ship.open())
        found = await output(ship, 6)

    assert found[2] == {"type": "user", "message": "hello"}
    del found[2]
    kinds = [each.get("method") or sorted(each["result"]) for each in found]
    assert kinds[1:] == [["sessionId"], "session/update", "session/update", ["stopReason"]]
    assert found[2]["params"]["update"]["content"]["text"] == "the key is [secret:KEY]"


@demands("S4-008", "S4-032")
async def test_a_zone_of_a_program_has_a_snapshot_a_preview_and_both_sides_of_the_talk(
    tmp_path: Path,
) -> None:
    async with aboard(tmp_path) as ship:
        zones, owner = ship.house.zones, ship.house.owner
        session = await ship.open()
        await ship.tell(session, "look at\nthis")
        await output(ship, 5)
        zone = await zones.show(owner, "peer")
        state = json.loads((await zones.read_state(owner, "peer")).content or "")
        replay = await zones.replay(owner, "peer")
        await zones.write_state(owner, "peer", json.dumps(state | {"paneState": {"of": "a view"}}))
        await ship.tell(session, "more")
        await output(ship, 8)
        kept = json.loads((await zones.read_state(owner, "peer")).content or "")
        await zones.archive(owner, "peer")
        (archive,) = await zones.list_archives(owner, "peer")

    assert [file.name for file in zone.files] == ["output", "output.state.json"]
    assert (zone.preview, archive.preview) == ("look at this", "look at this")
    assert (state["schemaVersion"], state["sourceBlockId"]) == (2, "")
    assert 0 < state["highWaterMark"] <= replay.total
    assert (replay.source, len(replay.lines)) == ("v2", replay.total)
    # What a view has written is not replaced.
    assert kept["paneState"] == {"of": "a view"}


async def test_nothing_lies_there_where_nobody_wants_it(tmp_path: Path) -> None:
    async with aboard(tmp_path, config_acp=Acp(raw_log=False)) as ship:
        await ship.tell(await ship.open())
        desk = await ship.house.zones.show(ship.house.owner, "peer")

    assert desk.files == ()


async def test_the_last_words_before_a_death_are_in_the_archive_of_the_desk(
    tmp_path: Path,
) -> None:
    steps = [{"text": "about to die"}, {"exit": 3}]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.tell(session)
        now = await ship.now(session)
        archives = await ship.house.zones.list_archives(ship.house.owner, "peer")
        page = await ship.house.zones.read_lines(
            ship.house.owner, "peer", LineQuery(limit=10), archive=archives[0].archived_at_ms
        )

    assert now.status is Status.FAILED
    assert "about to die" in page.lines[-1]


async def test_a_desk_that_cannot_be_written_costs_the_turn_nothing(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        first = await ship.open()
        # The desk is the newest session's: the first one's lines are nobody's from now on.
        await ship.open()
        rows = await ship.tell(first)
        desk = await ship.house.zones.show(ship.house.owner, "peer")

    assert rows[-1].text == "ok"
    assert desk.files == ()


async def test_a_damaged_desk_costs_the_turn_nothing_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session)
        await output(ship, 3)
        with raw(ship.house.config.home) as file:
            file.execute("UPDATE zone_files SET size = size + 1")
        rows = await ship.tell(session, "again")
        now = await ship.now(session)

    assert (rows[-1].text, now.status) == ("ok", Status.IDLE)
    assert "lines of an agent were not written to its zone" in caplog.text


async def test_lines_are_written_together_and_in_their_order() -> None:
    desk = Desk()
    raw = RawLog(desk.take, KEY)
    lines = [str(number).encode() * 1_000 for number in range(900)]
    for line in lines:
        raw.add(line)
    await raw.aclose()

    assert desk.lines == lines
    assert 5 < len(desk.batches) < 20


async def test_what_comes_in_a_flood_is_all_written_in_its_own_time() -> None:
    desk = Desk()
    raw = RawLog(desk.take, KEY)
    lines = [str(number).encode() * 1_000 for number in range(900)]
    for line in lines:
        raw.add(line)
    raw.flush()
    while desk.lines != lines:
        desk.took.clear()
        await desk.took.wait()

    await raw.aclose()
    assert len(desk.batches) > 5


async def test_whoever_ends_a_turn_does_not_have_to_wait_for_more_lines() -> None:
    desk = Desk()
    raw = RawLog(desk.take, KEY)
    raw.flush()
    raw.add(b"one")
    raw.flush()
    began = asyncio.get_running_loop().time()
    await desk.took.wait()

    assert asyncio.get_running_loop().time() - began < 0.2
    await raw.aclose()


async def test_a_slow_desk_holds_nobody_up_and_gets_what_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    desk = Desk()
    desk.is_open.clear()
    raw = RawLog(desk.take, KEY)
    line = b"x" * LINE_MOST
    for _ in range(WAITING_MOST // LINE_MOST + 5):
        raw.add(line)
    raw.add(line + b"x")
    desk.is_open.set()
    await raw.aclose()

    assert len(desk.lines) == WAITING_MOST // LINE_MOST
    assert "6 lines of an agent were dropped" in caplog.text


async def test_a_desk_that_never_opens_is_left_after_a_moment() -> None:
    desk = Desk()
    desk.is_open.clear()
    raw = RawLog(desk.take, KEY)
    raw.add(b"one")

    async with asyncio.timeout(5):
        await raw.aclose()

    assert desk.batches == []


async def test_a_failure_is_told_once_and_the_next_lines_are_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Unavailable(Code.STORAGE_FULL, "The disk is full.")
    desk = Desk(broken, broken)
    raw = RawLog(desk.take, KEY)
    for line in (b"one", b"two", b"three"):
        raw.add(line)
        raw.flush()
        await desk.took.wait()
        desk.took.clear()
    await raw.aclose()

    assert caplog.text.count("The disk is full.") == 1
    assert desk.lines == [b"one", b"two", b"three"]


async def test_where_there_is_no_desk_nothing_is_tried_again() -> None:
    desk = Desk(False)
    raw = RawLog(desk.take, KEY)
    raw.add(b"one")
    raw.flush()
    await desk.took.wait()
    await asyncio.sleep(0)
    raw.add(b"two")
    await raw.aclose()

    assert desk.lines == [b"one"]
