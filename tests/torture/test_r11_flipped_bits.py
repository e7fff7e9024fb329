"""R11: one bit of the file, the log or a backup is flipped; it is found before use, or harmless."""

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import apsw
import pytest

from holdfast import (
    Holdfast,
    HoldfastError,
    RunScope,
    SessionId,
    SessionRequest,
    open_holdfast,
)
from holdfast.store.sqlite.backup import back_up, restore
from holdfast.store.sqlite.integrity import WHOLE_MOST
from tests.marks import proves
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.notebooks import key_beside
from tests.torture.recovery import quiet
from tests.torture.witness import Testimony, differences, refusal, refusals, witnessed

pytestmark = pytest.mark.slow

SESSIONS = [SessionId(new_id(random.Random(number))) for number in range(6)]
FORK, WAITING = SESSIONS[4:]
GONE = SessionId(new_id(random.Random(6)))
ASKED = [*SESSIONS, GONE]
LOG_HEADER, FRAME_HEADER = 32, 24
FORM = {"encrypted": "auto", "plain": "off"}
LIMIT = {"plain": f" (beyond {WHOLE_MOST >> 20} MiB without the trees of messages and events)"}

# Indexes that are made anew without some of their rows, and what can then not be told.
LACKING: dict[str, tuple[str, str, set[str]]] = {
    "sessions_by_time": (
        "CREATE INDEX sessions_by_time ON sessions (owner, created_at, id)",
        f"WHERE id != '{SESSIONS[1]}'",
        {"sessions by created_at", "count", "waiting", f"session {SESSIONS[1]}"},
    ),
    "sessions_unsettled": (
        "CREATE INDEX sessions_unsettled ON sessions (key)"
        " WHERE (turn > settled OR holder IS NOT NULL)",
        "AND 1 = 0",
        {"waiting", f"session {WAITING}"},
    ),
    "messages_by_id": (
        "CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key)",
        "WHERE sequence > 1",
        {f"message {SESSIONS[0]}"},
    ),
}


@pytest.fixture(scope="module", params=list(FORM))
def specimen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same store twice: at rest, and with its last words still in the log."""
    folder = tmp_path_factory.mktemp(request.param)
    asyncio.run(_written(folder, FORM[request.param]))
    return folder


async def _written(folder: Path, encryption: str) -> None:
    config = settings(folder / "log", encryption=encryption, workspace_root=folder / "work")
    (folder / "work" / "repo" / ".git").mkdir(parents=True)
    # Its own turns only: one that somebody else has left is to wait for ever.
    async with open_holdfast(config=config, scope=RunScope.OWN) as house:
        # First of all, because a deletion empties the log.
        await house.open(id=GONE)
        await house.sessions.delete(house.owner, GONE)
        repo = await house.repos.add(house.owner, str(folder / "work" / "repo"))
        for number, session in enumerate(SESSIONS[:4]):
            request = SessionRequest(
                title=f"title {number}",
                tags=("a tag",),
                metadata={"k": "v"},
                repo_id=repo.id if number == 2 else None,
            )
            await house.open(id=session, request=request)
            for kind in ("short", "long", "broken"):
                await house.send(session, f"{kind} words of {session}")
                await quiet(folder / "log")
        await _ended(house)
        # What lies there now is what a crash would leave: the log was not yet moved.
        shutil.copytree(folder / "log", folder / "crashed")
    (folder / "log").rename(folder / "rest")
    (folder / "crashed").rename(folder / "log")
    (folder / "log" / "history.db-shm").unlink()


async def _ended(house: Holdfast) -> None:
    """Close a session, fork one, archive an agent, and leave a turn that waits."""
    await house.sessions.close(house.owner, SESSIONS[3], reason="a reason")
    await house.sessions.fork(house.owner, SESSIONS[0], id=FORK)
    agent = await house.agents.create(house.owner, {"name": "another"})
    await house.agents.archive(house.owner, agent.id)
    async with open_holdfast(config=house.config, scope=RunScope.NONE) as other:
        await other.open(id=WAITING)
        await other.send(WAITING, "words that wait")


@proves("R11")
def test_a_flipped_bit_in_the_file_is_never_served_as_truth(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(quick=4, test=10, torture=75, release=1_250)
    file = specimen / "rest" / "history.db"

    found, lies = flipped_and_witnessed(file, tmp_path, luck, (flips, file.stat().st_size))

    form = specimen.name[:-1]
    tell(f"{form} file: {flips} flips, {dict(found)}{LIMIT.get(form, '')}")
    assert lies == []


@proves("R11")
def test_a_flipped_bit_in_the_log_is_never_served_as_truth(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    file = specimen / "log" / "history.db-wal"

    found, lies = flipped_and_witnessed(file, tmp_path, luck, (flips, file.stat().st_size))

    tell(f"{specimen.name[:-1]} log: {flips} flips, {dict(found)}")
    assert lies == []


def flipped_and_witnessed(
    file: Path, folder: Path, luck: random.Random, trials: tuple[int, int]
) -> tuple[Counter[str], list[str]]:
    """Flip so many bits, one at a time and before a place; return what is found, and every lie."""
    source = file.parent
    truth = asyncio.run(witnessed(shutil.copytree(source, folder / "truth"), ASKED))
    flips, before = trials
    found: Counter[str] = Counter()
    lies: list[str] = []
    for number in range(flips):
        home = shutil.copytree(source, folder / str(number))
        place = flipped(home / file.name, luck, before=before)
        told = asyncio.run(witnessed(home, ASKED, truth))
        wrong = differences(truth, told)
        lies += [f"bit {place} of {file.name}: {each}" for each in wrong]
        found["wrong" if wrong else "found" if refusals(truth, told) else "harmless"] += 1
        shutil.rmtree(home)
    return found, lies


@proves("R11")
@pytest.mark.parametrize("index", LACKING)
def test_what_an_index_of_a_plain_store_lacks_is_not_called_missing(
    specimen: Path, tmp_path: Path, index: str
) -> None:
    if not specimen.name.startswith("plain"):
        # The pages of an encrypted store prove themselves, so that nobody can do this to them.
        return
    home = shutil.copytree(specimen / "rest", tmp_path / "home")
    truth = asyncio.run(witnessed(shutil.copytree(home, tmp_path / "truth"), ASKED))
    sql, condition, wanted = LACKING[index]
    thinned(home / "history.db", index, sql, condition)

    told = asyncio.run(witnessed(home, ASKED, truth))

    refused = refusals(truth, told)
    assert differences(truth, told) == []
    assert {each for each in wanted if any(what.startswith(each) for what in refused)} == wanted
    # What proves itself is still shown: the sessions beside the one that is named, and their rows.
    for what in (f"session {SESSIONS[2]}", f"messages {SESSIONS[2]}", f"events {SESSIONS[2]}"):
        assert told[what] == truth[what]


def thinned(store: Path, index: str, sql: str, condition: str) -> None:
    """Make an index anew that lacks the rows that do not meet a condition, and does not say so."""
    connection = apsw.Connection(str(store))
    connection.execute(f"DROP INDEX {index}")
    connection.execute(f"{sql} {condition}")
    connection.pragma("writable_schema", 1)
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, index))
    connection.close()


@proves("R11")
def test_a_flipped_bit_in_a_backup_is_found_or_harmless(
    specimen: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    flips = sized(test=10, torture=75, release=1_250)
    source = shutil.copytree(specimen / "rest", tmp_path / "source")
    truth = asyncio.run(witnessed(source, ASKED))
    key = key_beside(source)
    whole = back_up(source / "history.db", key, tmp_path / "whole.backup")

    found: Counter[str] = Counter()
    lies: list[str] = []
    for number in range(flips):
        home = tmp_path / str(number)
        home.mkdir()
        damaged = Path(shutil.copy(whole, home / "damaged.backup"))
        place = flipped(damaged, luck, before=damaged.stat().st_size)
        told = restored_and_witnessed(damaged, source, home, truth)
        lies += [f"bit {place} of a backup: {each}" for each in differences(truth, told)]
        found["found" if refusals(truth, told) else "harmless"] += 1
        shutil.rmtree(home)

    tell(f"{specimen.name[:-1]} backup: {flips} flips, {dict(found)}")
    assert lies == []


def restored_and_witnessed(backup: Path, source: Path, home: Path, truth: Testimony) -> Testimony:
    """Bring a backup into a new home and say what can be read there."""
    if (source / "key").exists():
        shutil.copy(source / "key", home / "key")
    try:
        restore(backup, key_beside(source), home / "history.db")
    except HoldfastError as error:
        return {"house": refusal(error)}
    return asyncio.run(witnessed(home, ASKED, truth))


@proves("R11")
def test_a_row_that_was_changed_behind_our_back_is_seen_by_the_comparison(
    specimen: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(specimen / "rest", tmp_path / "home")
    truth = asyncio.run(witnessed(home, ASKED))
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
