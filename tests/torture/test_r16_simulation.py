"""R16: whole lives behind the ports, with every fault that a port can show, by seed.

The floors are real, down to the tables and SQLite's transactions; time, luck, the disk's moods,
models, tools and the deaths of processes are simulated, so that a seed is a life, again and again.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.domain.ids import LOCAL_OWNER
from holdfast.ports.store import Store
from holdfast.services.agents import Agents
from holdfast.services.models import Models
from holdfast.services.stamping import IdFactory
from holdfast.store.sqlite.store import SqliteStore
from tests.houses import Anything
from tests.marks import proves
from tests.stand_ins import SeededRandomness, SettableClock
from tests.torture.conftest import Sized, Tell
from tests.torture.simulated.clients import AGENT
from tests.torture.simulated.outside import TOOLS
from tests.torture.simulated.towns import Life, lived
from tests.torture.spies import EarlyStore, StumblingStore, UnfencedStore

pytestmark = pytest.mark.slow

TRIES = 60


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hear nothing of what goes wrong on purpose, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@proves("R16")
def test_no_life_breaks_a_promise(tmp_path: Path, seed: int, sized: Sized, tell: Tell) -> None:
    count = sized(quick=8, test=60, torture=3_000, release=100_000)
    first = seed * 1_000_000
    deaths = commits = pauses = 0
    broken: list[tuple[int, tuple[str, ...]]] = []

    for number, life in lives(tmp_path, range(first, first + count)):
        deaths, commits = deaths + life.deaths, commits + life.commits
        pauses += life.pauses
        broken += [(number, life.faults)] if life.faults else []

    said = f"{count} lives, {deaths} processes ended, {commits} commits, {pauses} turns paused"
    tell(f"{said}, {len(broken)} broken")
    assert broken == []
    assert pauses


@pytest.mark.usefixtures("quiet")
@proves("R16")
@pytest.mark.parametrize("wrap", [EarlyStore, StumblingStore, UnfencedStore])
def test_a_broken_store_is_found_and_its_seed_finds_it_again(
    tmp_path: Path, seed: int, wrap: Callable[[Store], Store], tell: Tell
) -> None:
    seeds = range(seed * 1_000_000, seed * 1_000_000 + TRIES)

    number, found = next(each for each in lives(tmp_path, seeds, wrap) if each[1].faults)
    again = [life for _, life in lives(tmp_path, [number] * 3, wrap)]

    tell(f"{wrap.__name__} found by life {number - seeds.start + 1}, and 3 of 3 times again")
    assert again == [found] * 3


@pytest.mark.usefixtures("quiet")
def test_two_seeds_are_two_lives_and_one_seed_is_one(tmp_path: Path, seed: int) -> None:
    one, same, other = (life for _, life in lives(tmp_path, [seed, seed, seed + 1]))

    assert one == same
    assert one.trace != other.trace


def lives(
    folder: Path, seeds: "range | list[int]", wrap: Callable[[Store], Store] = lambda store: store
) -> Iterator[tuple[int, Life]]:
    """Live each seed on a disk of its own."""
    template = folder / "template" / "history.db"
    if not template.exists():
        template.parent.mkdir()
        asyncio.run(furnish(template))
    for number in seeds:
        # Of the life before: whoever has seen enough does not come back to tidy up.
        shutil.rmtree(folder / "home", ignore_errors=True)
        yield number, lived(folder / "home", template, number, wrap)


async def furnish(template: Path) -> None:
    """Make a store with one agent."""
    store = SqliteStore(template, None)
    clock = SettableClock()
    agents = Agents(
        store, Models(store, "maker:model", Anything()), clock, IdFactory(clock, SeededRandomness())
    )
    fields = {"name": AGENT, "slug": AGENT, "models": ["maker:model"], "tools": list(TOOLS)}
    await agents.create(LOCAL_OWNER, fields)
    await store.close()
