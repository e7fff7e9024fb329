"""Processes that append to one output at a time never mix their lines."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.zones.lines import LineQuery
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized
from tests.torture.crew import PATIENCE, Crew

pytestmark = [pytest.mark.slow, pytest.mark.torture]

WRITERS = 8


def test_lines_of_several_processes_are_whole_and_side_by_side(
    tmp_path: Path, crew: Crew, sized: Sized
) -> None:
    home, count = tmp_path / "home", sized(test=100, torture=1_000)
    asyncio.run(lines(home))

    running = [
        crew.start("lines", home=home, writer=writer, count=count) for writer in range(WRITERS)
    ]
    for process in running:
        assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)

    spans = sorted(
        tuple(json.loads(line.removeprefix("span ")))
        for process in running
        for line in crew.log_of(process).splitlines()
        if line.startswith("span ")
    )
    told = [json.loads(line) for line in asyncio.run(lines(home))]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert sorted((each["writer"], each["number"]) for each in told) == [
        (writer, number) for writer in range(WRITERS) for number in range(count)
    ]
    for writer in range(WRITERS):
        own = [each["number"] for each in told if each["writer"] == writer]
        assert own == sorted(own)


async def lines(home: Path) -> list[str]:
    """Return all lines of the output."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        found: list[str] = []
        while True:
            query = LineQuery(start=len(found), limit=10_000)
            page = await house.zones.read_lines(house.owner, "shared", query)
            found += page.lines
            if not page.lines:
                assert await house.store.check() == []
                return found
