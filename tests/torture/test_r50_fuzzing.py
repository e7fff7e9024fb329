"""R50: every reader of what comes from outside is fed what nobody would send; none falls over."""

import json
import random
import time
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.fuzzing import Prey, hunted
from tests.torture.prey import prey

pytestmark = pytest.mark.slow

NAMES = (
    *("bodies", "queries", "cursors", "streams", "stream writer", "answers of servers"),
    *("lines of programs", "updates of programs", "stored parts", "stored news", "snapshots"),
    *("transcripts", "agent files", "paths", "addresses of the web", "addresses of machines"),
    *("arguments", "patterns"),
)
# They take so many times as long as the others, and get so much less to read.
SLOW = {"agent files": 100} | dict.fromkeys(
    (
        *("patterns", "paths", "updates of programs", "answers of servers"),
        *("addresses of the web", "arguments"),
    ),
    10,
)


@proves("R50")
@pytest.mark.parametrize("name", NAMES)
def test_no_input_makes_a_reader_fall_over(
    tmp_path: Path, name: str, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=1_000, test=3_000, torture=100_000, release=10_000_000)
    count = max(count // SLOW.get(name, 1), 200)
    (reader,) = (each for each in prey(tmp_path) if each.name == name)
    started = time.perf_counter()

    taken, faults = hunted(reader, luck, count)

    rate = count / (time.perf_counter() - started)
    tell(f"{name} {count:,} ({taken:,} taken, {rate:,.0f}/s)")
    assert faults == []
    # Otherwise every input was refused at the first letter, and nothing behind it was tried.
    assert taken > 0


@proves("R50")
def test_a_reader_that_expects_too_much_is_found(luck: random.Random) -> None:
    def trusting(given: bytes) -> int:
        return len(json.loads(given)["name"])

    trusted = Prey("trusting", (b'{"name":"a"}',), trusting, (ValueError,))

    _, faults = hunted(trusted, luck, 3_000)

    assert faults != []


def test_every_reader_is_tried(tmp_path: Path) -> None:
    assert tuple(each.name for each in prey(tmp_path)) == NAMES
