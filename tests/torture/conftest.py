"""What a row may ask for: how hard to try, its luck, a crew of processes, and where to tell."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.torture.crew import Crew
from tests.torture.rows import QUICK

# How much slower a machine may be that runs other tests at the same time.
SHARED = 60

Tell = Callable[[str], None]


@pytest.fixture
def level(request: pytest.FixtureRequest) -> str:
    """How hard the run tries: test, torture or release; `quick` tries like test."""
    chosen = str(request.config.getoption("--level"))
    return "test" if chosen == QUICK else chosen


class Sized:
    """What a level means for sizes and for deadlines."""

    def __init__(self, level: str, *, is_quick: bool) -> None:
        self._level = level
        self.is_quick = is_quick

    def __call__(
        self, *, test: int, torture: int, release: int | None = None, quick: int | None = None
    ) -> int:
        """Choose a size; without one of its own, release is as torture, and quick is as test."""
        sizes = {"test": test, "torture": torture, "release": release or torture}
        return quick if self.is_quick and quick else sizes[self._level]

    def within(self, seconds: float) -> float:
        """Return the seconds that a promise of so many may take.

        At the level `test` other tests run beside, and a deadline would measure those.
        """
        return seconds * SHARED if self._level == "test" else seconds


@pytest.fixture
def sized(request: pytest.FixtureRequest, level: str) -> Sized:
    """Choose sizes by level, and how strict a deadline is."""
    return Sized(level, is_quick=request.config.getoption("--level") == QUICK)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's luck; a failure shows it, and `--seed` brings it back."""
    given = request.config.getoption("--seed")
    chosen = int(given) if given is not None else int.from_bytes(os.urandom(4))
    print(f"--seed {chosen}")
    return chosen


@pytest.fixture
def luck(seed: int) -> random.Random:
    """Dice that fall the same way for the same seed."""
    return random.Random(seed)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Say in a few words what was done; the line of the row shows it."""

    def say(what: str) -> None:
        print(what)
        record_property("told", what)

    return say


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes that end with the test, whatever happens."""
    with Crew(tmp_path) as hands:
        yield hands
