"""R11: one bit of the file, the log or a backup is flipped; it is found before use, or harmless."""

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from holdfast import SessionRequest, open_holdfast
from tests.marks import proves
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.recovery import waiting
from tests.torture.witness import differences, refusals, witnessed

pytestmark = pytest.mark.slow

SESSIONS = [new_id(random.Random(number)) for number in range(4)]
LOG_HEADER, FRAME_HEADER = 32, 24
FORM = {"encrypted": "auto", "plain": "off"}


@pytest.fixture(scope="module", params=list(FORM))
def specimen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same store twice: at rest, and with its last words still in the log."""
    folder = tmp_path_factory.mktemp(request.param)
    asyncio.run(_written(folder, FORM[request.param]))
    return folder


async def _written(folder: Path, encryption: str) -> None:
    config = settings(folder / "log", encryption=encryption)
    async with open_holdfast(config=config) as house:
        for number, session in enumerate(SESSIONS):
            request = SessionRequest(title=f"title {number}", tags=("a tag",), metadata={"k": "v"})
            await house.open(id=session, request=request)
            for kind in ("short", "long", "broken"):
                await house.send(session, f"{kind} words of {session}")
                while waiting(folder / "log"):
                    await asyncio.sleep(0.01)
        await house.sessions.close(house.owner, SESSIONS[3], reason="a reason")
        # What lies there now is what a crash would leave: the log was not yet moved.
        shutil.copytree(folder / "log", folder / "crashed")
    (folder / "log").rename(folder / "rest")
    (folder / "crashed").rename(folder / "log")
    (folder / "log" / "history.db-shm").unlink()


@proves("R11")
@pytest.mark.parametrize("part", ["file", "log"])
def test_a_flipped_bit_is_never_served_as_truth(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell, part: str
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    source = specimen / ("rest" if part == "file" else "log")
    target = "history.db" if part == "file" else "history.db-wal"
    truth = asyncio.run(witnessed(shutil.copytree(source, tmp_path / "truth"), SESSIONS))

    # A flip in the last commit of the log cannot be told from a commit that was never finished.
    ends = {target: (source / target).stat().st_size, "history.db-wal": last_commit(source)}
    found: Counter[str] = Counter()
    lies: list[str] = []
    for number in range(flips):
        home = shutil.copytree(source, tmp_path / str(number))
        place = flipped(home / target, luck, before=ends[target])
        told = asyncio.run(witnessed(home, SESSIONS))
        wrong = differences(truth, told)
        lies += [f"bit {place} of {target}: {each}" for each in wrong]
        found["wrong" if wrong else "found" if refusals(told) else "harmless"] += 1
        shutil.rmtree(home)

    tell(f"{specimen.name[:-1]} {part}: {flips} flips, {dict(found)}")
    assert lies == []


@proves("R11")
def test_a_row_that_was_changed_behind_our_back_is_seen_by_the_comparison(
    specimen: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(specimen / "rest", tmp_path / "home")
    truth = asyncio.run(witnessed(home, SESSIONS))
    told = dict(truth, models="other models")

    assert differences(truth, told) != []


def last_commit(home: Path) -> int:
    """Return where the last commit of the log begins; 0 without a log."""
    log = home / "history.db-wal"
    if not log.exists() or log.stat().st_size <= LOG_HEADER:
        return 0
    content = log.read_bytes()
    size = FRAME_HEADER + int.from_bytes(content[8:12])
    starts = [LOG_HEADER]
    for place in range(LOG_HEADER, len(content) - size + 1, size):
        if content[place + 8 : place + 16] == content[16:24] and any(content[place + 4 : place + 8]):
            starts.append(place + size)
    return starts[-2]


def flipped(file: Path, luck: random.Random, *, before: int) -> int:
    """Flip one bit of a file, before a place, and return where."""
    content = bytearray(file.read_bytes())
    place = luck.randrange(before * 8)
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    return place
