"""R14: zones of another program are brought in by processes that die at every touch of the disk."""

import asyncio
import hashlib
import shutil
from collections import Counter
from pathlib import Path

import pytest

from holdfast import RunScope, SessionRequest, open_holdfast
from holdfast.ports.store import Tx
from tests.importers.blocks import a_file, a_folder, agent_block
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew

pytestmark = pytest.mark.slow

TEMPLATE = "0192f0c1-0000-7000-8000-000000000007"
Contents = Counter[str]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of another program: two agents, and a template that has gathered zones."""
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "a", b"first", (100, 900))
    a_file(folder, "b1", "output", b"line\n" * 30_000, (100, 900))
    agent_block(folder, "b2", "a", b"second", (100, 400))
    agent_block(folder, "b3", "b", b"third", (500, 0))
    agent_block(folder, "b4", "starter", b"of the template", (600, 600))
    return folder


@proves("R14")
def test_zones_are_brought_in_whole_and_once_wherever_that_was_cut_off(
    tmp_path: Path, old: Path, crew: Crew, sized: Sized, tell: Tell
) -> None:
    start = tmp_path / "start" / "home"
    start.parent.mkdir()
    asyncio.run(_with_a_template(start))
    before = _digests(old)
    last, whole = _brought(crew, start, old, tmp_path / "whole")
    count = sized(test=6, torture=30, release=last)
    touches = sorted({1 + (last - 1) * number // max(count - 1, 1) for number in range(count)})
    deaths = 0
    for touch in touches:
        home = _copy(start, tmp_path / str(touch))
        deaths += crew.run("importing", home=home, folder=old, dies_at=touch) != 0
        assert crew.run("importing", home=home, folder=old, dies_at=0) == 0
        once = asyncio.run(_contents(home))
        assert crew.run("importing", home=home, folder=old, dies_at=0) == 0

        assert once == whole
        assert asyncio.run(_contents(home)) == whole

    tell(f"{deaths} deaths while zones were brought in, the same ones there after each")
    assert deaths > 0
    assert _digests(old) == before


@proves("R14")
def test_two_processes_that_bring_zones_in_at_once_do_it_once(
    tmp_path: Path, old: Path, crew: Crew
) -> None:
    start = tmp_path / "start" / "home"
    start.parent.mkdir()
    asyncio.run(_with_a_template(start))
    _, whole = _brought(crew, start, old, tmp_path / "whole")
    home = _copy(start, tmp_path / "shared")

    both = [crew.start("importing", home=home, folder=old, dies_at=0) for _ in range(2)]
    for process in both:
        assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)

    assert asyncio.run(_contents(home)) == whole


def _brought(crew: Crew, start: Path, old: Path, folder: Path) -> tuple[int, Contents]:
    """Bring everything in without any trouble; return how often the disk is touched, and what."""
    home = _copy(start, folder)
    process = crew.start("importing", home=home, folder=old, dies_at=0)
    assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)
    (told,) = [line for line in crew.log_of(process).splitlines() if line.startswith("touches")]
    return int(told.split()[1]), asyncio.run(_contents(home))


def _copy(start: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copytree(start, folder / "home"))


async def _with_a_template(home: Path) -> None:
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        fields = {"name": "Starter", "tags": ("template",)}
        await house.agents.create(house.owner, fields, id=TEMPLATE)
        await house.open(TEMPLATE, SessionRequest(title="Work"))
        await house.zones.append_output(house.owner, TEMPLATE, "a line")
        await house.zones.archive(house.owner, TEMPLATE)


async def _contents(home: Path) -> Contents:
    """Return every content that is in a zone, by its kind of zone, its agent's name and its hash.

    An agent that is made anew has another id in every run.
    """
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:

        async def read(tx: Tx) -> Contents:
            found: Contents = Counter()
            for owner, zone in await tx.zones.all():
                _, agent, kind, *_ = zone.split(":")
                known = await tx.agents.by_id(owner, agent)  # type: ignore[arg-type]
                for file in await tx.zones.files(owner, zone):
                    content = await tx.zones.read(file, 0, file.size)
                    digest = hashlib.sha256(content).hexdigest()
                    named = known.slug if known else agent
                    found[f"{named} {kind} {file.name} {digest}"] += 1
            return found

        assert await house.store.check() == []
        return await house.store.read(read)


def _digests(folder: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}
