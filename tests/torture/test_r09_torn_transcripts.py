"""R09: transcripts of other programs are torn at every byte, and every whole record is shown."""

import asyncio
import random
from pathlib import Path

import pytest

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.importers.block_zones import BlockZones
from holdfast.store.sqlite.block_files import BlockFolder
from holdfast.zones.lines import LineQuery, Lines
from tests.importers.blocks import a_file, a_folder, agent_block
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.tails import Transcript, damaged, faults_of

pytestmark = pytest.mark.slow

NEXT = '{"n":"next"}'


@proves("R09")
def test_whatever_a_transcript_has_suffered_every_whole_record_is_shown(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    given = damaged(luck, sized(test=110, torture=1_000, release=1 << 20))

    faults = asyncio.run(_brought_in(tmp_path, given))

    tell(f"{len(given)} torn and damaged transcripts, every whole record shown and every tail told")
    assert faults == []


async def _brought_in(folder: Path, given: list[Transcript]) -> list[str]:
    """Bring transcripts in and read them; return what is wrong with any of them."""
    old = a_folder(folder / "old")
    for number, each in enumerate(given):
        agent_block(old, f"b{number:05}", each.name, b"{}")
        a_file(old, f"b{number:05}", "output", each.content, (100, 200))
    faults: list[str] = []
    async with open_holdfast(config=settings(folder / "home"), scope=RunScope.NONE) as house:
        source = BlockFolder(old)
        try:
            importer = BlockZones(house.store, house.zones.stamping, house.owner, source)
            report = await importer.migrate(house.config.home)
        finally:
            source.close()
        assert report.stats.failures == 0
        for each in given:
            faults += await _judged(house, each)
        assert await house.store.check() == []
    return faults


async def _judged(house: Holdfast, given: Transcript) -> list[str]:
    """Read a transcript from its desk, append to it, and read it again."""
    query = LineQuery(limit=10_000)
    read: Lines = await house.zones.read_lines(house.owner, given.name, query)
    faults = faults_of(given, read.lines, torn=read.torn)
    await house.zones.append_output(house.owner, given.name, NEXT)
    more = await house.zones.read_lines(house.owner, given.name, query)
    if (more.lines, more.torn) != ((*read.lines, NEXT), False):
        faults.append(f"{given.name}: what came next is not on a line of its own")
    return faults


@proves("R09")
@pytest.mark.parametrize("reader", ["at every break that text can have", "up to the first bad one"])
def test_the_judge_sees_readers_that_hide_records(luck: random.Random, reader: str) -> None:
    found = []
    for given in damaged(luck, 20):
        text = given.content.decode("utf-8", "replace")
        lines = text.splitlines()
        if reader == "up to the first bad one":
            lines = text.split("\n")
            bad = next((at for at, line in enumerate(lines) if "\0" in line), len(lines))
            lines = lines[:bad]
        is_torn = not given.content.endswith(b"\n")
        found += faults_of(given, [line for line in lines if line.strip()], torn=is_torn)

    assert any(("hidden" in each or "has cost" in each) for each in found)
