"""R22: eight processes read and then write, all at once; nobody is told that the store is busy."""

import asyncio
import random
from pathlib import Path

import apsw
import pytest

from holdfast import open_holdfast
from tests.marks import proves
from tests.torture.attempts import Record, read_attempts, read_lines
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.recovery import recovered

pytestmark = pytest.mark.slow

PROCESSES = 8
SLOWEST_OF_HUNDRED = 0.250


@proves("R22")
def test_nobody_is_told_that_the_store_is_busy(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    seconds = sized(quick=1, test=5, torture=20, release=60)
    home, shared = tmp_path / "home", new_id(luck)
    asyncio.run(_opened(tmp_path, shared))

    processes = [
        crew.start(
            "hammer",
            home=home,
            record=tmp_path / f"h{number}.jsonl",
            shared=shared,
            seconds=seconds,
            seed=luck.randrange(1 << 32),
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.wait(timeout=seconds + PATIENCE) == 0, crew.log_of(process)
    asyncio.run(recovered(home))

    lines = read_lines(tmp_path.glob("h*.jsonl"))
    times = sorted(each for line in lines for each in line.get("commits", []))
    p99 = times[len(times) * 99 // 100]
    result = audit(home, records=tmp_path.glob("*.jsonl"), mark=crew.mark)
    tell(f"{len(times)} commits by {PROCESSES} processes in {seconds} s, p99 {p99 * 1000:.0f} ms")
    assert result.is_clean, result
    assert {each.outcome for each in read_attempts(tmp_path.glob("*.jsonl"))} == {"ok"}
    assert p99 <= sized.within(SLOWEST_OF_HUNDRED)


@proves("R22")
def test_a_reader_that_turns_writer_would_be_told(tmp_path: Path) -> None:
    one, two = (apsw.Connection(str(tmp_path / "x.db")) for _ in range(2))
    one.execute("PRAGMA journal_mode=wal").fetchall()
    one.execute("CREATE TABLE t (x)")
    one.set_busy_timeout(5_000)

    # The same work without `BEGIN IMMEDIATE`: the snapshot is stale before the write.
    one.execute("BEGIN")
    one.execute("SELECT count(*) FROM t").fetchall()
    two.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(apsw.BusyError):
        one.execute("INSERT INTO t VALUES (2)")
    one.close()
    two.close()


async def _opened(folder: Path, session: str) -> None:
    record = Record(folder / "parent.jsonl")
    async with open_holdfast(config=settings(folder / "home")) as house:
        await Client(house, record).open(session)
    record.close()
