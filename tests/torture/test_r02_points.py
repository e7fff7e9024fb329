"""R02: a process kills itself right before and right after each kind of commit."""

import asyncio
import random
import shutil
import signal
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from tests.marks import proves
from tests.torture.attempts import Record, read_attempts
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.recovery import recovered

pytestmark = pytest.mark.slow

# What is struck, and at which of its occurrences in one life.
MARKS = (
    ("agent", 1),
    ("open", 1),
    ("admit", 1),
    ("admit", 2),
    ("turn start", 1),
    ("turn start", 2),
    ("step", 1),
    ("delta batch", 1),
    ("delta batch", 4),
    ("mend", 1),
    ("turn end", 1),
    ("turn failure", 1),
    ("interrupt", 1),
    ("update", 1),
    ("fork", 1),
    ("close", 1),
    ("resume", 1),
    ("prune", 1),
    ("delete", 1),
    ("renew", 1),
    ("release", 1),
)
POINTS = [(kind, nth, when) for kind, nth in MARKS for when in ("before", "after")]


@proves("R02")
def test_nothing_is_lost_or_done_twice_around_any_commit(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=1, torture=5, release=25)
    # Of the pairs around each commit, the quick run takes the one or the other.
    points = POINTS[:: sized(quick=3, test=1, torture=1)]
    home = tmp_path / "home"
    run = 0

    for _ in range(rounds):
        for point in points:
            if point[0] == "mend":
                # There is something to mend only after a death in the middle of a step.
                run += 1
                struck(crew, home, run, ("delta batch", 2, "after"))
            run += 1
            struck(crew, home, run, point)
    asyncio.run(recovered(home))

    records = list(tmp_path.glob("*.jsonl"))
    result = audit(home, records=records, mark=crew.mark)
    tell(f"{rounds * len(points)} kills at {len(points)} points, {result.acknowledged} kept")
    assert result.is_clean, result
    refused = {each.outcome for each in read_attempts(records)} - {"ok", None}
    # What is asked again of a deleted session is refused.
    assert refused <= {"session_not_found", "id_reused"}


# The fourth and the seventh message are queued while the commit of the one before is held back.
@proves("R02")
@pytest.mark.parametrize(("nth", "lost"), [(4, 1), (7, 1)])
def test_the_points_find_a_store_that_answers_too_early(
    tmp_path: Path, crew: Crew, nth: int, lost: int
) -> None:
    struck(crew, tmp_path / "home", 1, ("admit", nth, "before"), lying=True)
    asyncio.run(recovered(tmp_path / "home"))

    assert audit(tmp_path / "home", records=tmp_path.glob("*.jsonl")).counts["LOST"] == lost


@proves("R02")
def test_what_the_dead_left_in_the_log_is_neither_damage_nor_history(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asyncio.run(_written_over_the_dead(tmp_path, crew, luck))

    asyncio.run(recovered(tmp_path / "crashed"))

    result = audit(tmp_path / "crashed", records=tmp_path.glob("*.jsonl"))
    assert result.is_clean, result


async def _written_over_the_dead(folder: Path, crew: Crew, luck: random.Random) -> None:
    """Let processes die amid ever smaller commits while one goes on writing where they wrote."""
    home, session = folder / "home", new_id(luck)
    record = Record(folder / "survivor.jsonl")
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        client = Client(house, record)
        await client.open(session)
        for size in (400_000, 200_000, 100_000):
            record_of = folder / f"{size}.jsonl"
            dying = crew.start("dying", home=home, record=record_of, session=session, size=size)
            assert dying.wait(timeout=PATIENCE) == -signal.SIGKILL, crew.log_of(dying)
            await client.send(session, new_id(luck, "short"))
        # As if the survivor died as well, now: nobody has tidied the log.
        shutil.copytree(home, folder / "crashed", ignore=shutil.ignore_patterns("*-shm"))
    record.close()


def struck(
    crew: Crew, home: Path, run: int, point: tuple[str, int, str], *, lying: bool = False
) -> None:
    """Run a life that must end at its point; lives of one owner share their record."""
    record = home.parent / (f"owner-{run}.jsonl" if point[0] == "agent" else "points.jsonl")
    process = crew.start("points", home=home, record=record, run=run, point=point, lying=lying)
    status = process.wait(timeout=PATIENCE)
    assert status == -signal.SIGKILL, f"{point}: {status}\n{crew.log_of(process)}"
