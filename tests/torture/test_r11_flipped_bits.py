"""R11: one bit of the file, the log or a backup is flipped; it is found before use, or harmless."""

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from holdfast import HoldfastError, SessionId, SessionRequest, open_holdfast
from holdfast.storage.backup import back_up, restore
from tests.marks import proves
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.notebooks import key_beside
from tests.torture.recovery import quiet
from tests.torture.witness import Testimony, differences, refusal, refusals, witnessed

pytestmark = pytest.mark.slow

SESSIONS = [SessionId(new_id(random.Random(number))) for number in range(4)]
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
                await quiet(folder / "log")
        await house.sessions.close(house.owner, SESSIONS[3], reason="a reason")
        # What lies there now is what a crash would leave: the log was not yet moved.
        shutil.copytree(folder / "log", folder / "crashed")
    (folder / "log").rename(folder / "rest")
    (folder / "crashed").rename(folder / "log")
    (folder / "log" / "history.db-shm").unlink()


@proves("R11")
def test_a_flipped_bit_in_the_file_is_never_served_as_truth(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    file = specimen / "rest" / "history.db"

    found, lies = flipped_and_witnessed(file, tmp_path, luck, (flips, file.stat().st_size))

    tell(f"{specimen.name[:-1]} file: {flips} flips, {dict(found)}")
    assert lies == []


@proves("R11")
def test_a_flipped_bit_in_the_log_is_never_served_as_truth(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    file = specimen / "log" / "history.db-wal"

    # A flip in the last commit of the log cannot be told from a commit that was never finished.
    found, lies = flipped_and_witnessed(file, tmp_path, luck, (flips, last_commit(file)))

    tell(f"{specimen.name[:-1]} log: {flips} flips, {dict(found)}")
    assert lies == []


def flipped_and_witnessed(
    file: Path, folder: Path, luck: random.Random, trials: tuple[int, int]
) -> tuple[Counter[str], list[str]]:
    """Flip so many bits, one at a time and before a place; return what is found, and every lie."""
    source = file.parent
    truth = asyncio.run(witnessed(shutil.copytree(source, folder / "truth"), SESSIONS))
    agents = [agent.id for agent in truth["agents"].items]
    truth |= {f"agent {agent.id}": agent for agent in truth["agents"].items}
    flips, before = trials
    found: Counter[str] = Counter()
    lies: list[str] = []
    for number in range(flips):
        home = shutil.copytree(source, folder / str(number))
        place = flipped(home / file.name, luck, before=before)
        told = asyncio.run(witnessed(home, SESSIONS, agents))
        wrong = differences(truth, told)
        lies += [f"bit {place} of {file.name}: {each}" for each in wrong]
        found["wrong" if wrong else "found" if refusals(told) else "harmless"] += 1
        shutil.rmtree(home)
    return found, lies


@proves("R11")
def test_a_flipped_bit_in_a_backup_is_found_or_harmless(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    source = shutil.copytree(specimen / "rest", tmp_path / "source")
    truth = asyncio.run(witnessed(source, SESSIONS))
    key = key_beside(source)
    whole = back_up(source / "history.db", key, tmp_path / "whole.backup")

    found: Counter[str] = Counter()
    lies: list[str] = []
    for number in range(flips):
        home = tmp_path / str(number)
        home.mkdir()
        damaged = Path(shutil.copy(whole, home / "damaged.backup"))
        place = flipped(damaged, luck, before=damaged.stat().st_size)
        told = restored_and_witnessed(damaged, source, home)
        lies += [f"bit {place} of a backup: {each}" for each in differences(truth, told)]
        found["found" if refusals(told) else "harmless"] += 1
        shutil.rmtree(home)

    tell(f"{specimen.name[:-1]} backup: {flips} flips, {dict(found)}")
    assert lies == []


def restored_and_witnessed(backup: Path, source: Path, home: Path) -> Testimony:
    """Bring a backup into a new home and say what can be read there."""
    if (source / "key").exists():
        shutil.copy(source / "key", home / "key")
    try:
        restore(backup, key_beside(source), home / "history.db")
    except HoldfastError as error:
        return {"house": refusal(error)}
    return asyncio.run(witnessed(home, SESSIONS))


@proves("R11")
def test_a_row_that_was_changed_behind_our_back_is_seen_by_the_comparison(
    specimen: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(specimen / "rest", tmp_path / "home")
    truth = asyncio.run(witnessed(home, SESSIONS))
    told = dict(truth, models="other models")

    assert differences(truth, told) != []


def last_commit(log: Path) -> int:
    """Return where the last commit of the log begins."""
    content = log.read_bytes()
    size = FRAME_HEADER + int.from_bytes(content[8:12])
    starts = [LOG_HEADER]
    for place in range(LOG_HEADER, len(content) - size + 1, size):
        is_current = content[place + 8 : place + 16] == content[16:24]
        if is_current and any(content[place + 4 : place + 8]):
            starts.append(place + size)
    return starts[-2]


def flipped(file: Path, luck: random.Random, *, before: int) -> int:
    """Flip one bit of a file, before a place, and return where."""
    content = bytearray(file.read_bytes())
    place = luck.randrange(before * 8)
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    return place
