"""R09: the store's log is torn at every byte of a commit that nobody was told of."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from holdfast import HoldfastError, RunScope, open_holdfast
from holdfast.store.sqlite.connection import connect, drive
from holdfast.store.sqlite.store import Tables
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.notebooks import key_beside
from tests.torture.tails import TEARS, torn
from tests.torture.test_r11_flipped_bits import FORM, last_commit

pytestmark = pytest.mark.slow

ZONE = "agent:a:current"
LOG, STORE, ANCHOR = "history.db-wal", "history.db", "history.db-anchor"


@pytest.fixture(scope="module", params=list(FORM))
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a store whose log ends with a commit of several pages."""
    folder = tmp_path_factory.mktemp(request.param)
    asyncio.run(_written(folder, FORM[request.param]))
    return folder / "crashed"


async def _written(folder: Path, encryption: str) -> None:
    config = settings(folder / "home", encryption=encryption)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, "in the file")
    # From here on in a log that begins anew.
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        await house.send(session.id, "in the log")
        for number in range(3):
            await house.zones.append_output(house.owner, "a", f'{{"n":{number}}}')
        (folder / "crashed").mkdir()
        # The last commit is one that was not acknowledged, so the anchor does not name it.
        shutil.copy(folder / "home" / ANCHOR, folder / "crashed" / ANCHOR)
        await house.zones.append_output(house.owner, "a", "unheard of " * 2_000)
        for name in (STORE, LOG, "key"):
            if (folder / "home" / name).exists():
                shutil.copy(folder / "home" / name, folder / "crashed" / name)


@proves("R09")
def test_a_commit_that_was_torn_is_as_if_it_had_never_been_begun(
    crashed: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    whole = (crashed / LOG).read_bytes()
    start = last_commit(crashed / LOG)
    count = min(sized(quick=60, test=220, torture=2_200, release=1 << 30), len(whole) - start)
    places = sorted({start, len(whole) - 1, *luck.sample(range(start, len(whole)), count)})
    before = read(laid_out(crashed, tmp_path / "before", whole[:start]))
    after = read(laid_out(crashed, tmp_path / "after", whole))

    wrong = torn_and_read(crashed, tmp_path / "torn", luck, places, {"before": before})

    tell(f"{crashed.parent.name[:-1]} log: {len(places)} tears, what was told is there after each")
    assert wrong == []
    assert before != after
    assert before.startswith(b'{"n":0}\n{"n":1}\n{"n":2}\n|')


@proves("R09")
def test_the_comparison_sees_a_tear_in_what_was_acknowledged(
    crashed: Path, tmp_path: Path, luck: random.Random
) -> None:
    whole = (crashed / LOG).read_bytes()
    start = last_commit(crashed / LOG)
    before = read(laid_out(crashed, tmp_path / "before", whole[:start]))
    places = [start - 1, start - 24, start - 5_000]

    wrong = torn_and_read(crashed, tmp_path / "torn", luck, places, {"before": before})

    assert len(wrong) == len(places)


@proves("R09")
def test_whoever_meets_a_torn_log_goes_on_writing_behind_what_was_told(
    crashed: Path, tmp_path: Path, luck: random.Random
) -> None:
    whole = (crashed / LOG).read_bytes()
    start = last_commit(crashed / LOG)
    for how in TEARS:
        home = tmp_path / how
        laid_out(crashed, home, torn(whole, luck.randrange(start, len(whole) - 1), how, luck))

        async def go_on(home: Path) -> tuple[tuple[str, ...], list[str]]:
            config = settings(home, encryption=FORM[crashed.parent.name[:-1]])
            async with open_holdfast(config=config, scope=RunScope.NONE) as house:
                await house.zones.append_output(house.owner, "a", "more")
                lines = (await house.zones.read_lines(house.owner, "a")).lines
                return lines, [
                    *await house.store.check(),
                    *await house.store.missing_events(),
                ]

        lines, faults = asyncio.run(go_on(home))
        assert (lines, faults) == (('{"n":0}', '{"n":1}', '{"n":2}', "more"), [])


def torn_and_read(
    crashed: Path,
    folder: Path,
    luck: random.Random,
    places: list[int],
    allowed: dict[str, bytes],
) -> list[str]:
    """Tear the log at each place, one at a time; return where what is read is not allowed."""
    whole = (crashed / LOG).read_bytes()
    wrong = []
    for number, place in enumerate(places):
        how = TEARS[number % len(TEARS)]
        left = torn(whole, place, how, luck)
        # Where nothing but NUL was left to write, nothing is torn.
        if left != whole and read(laid_out(crashed, folder, left)) not in allowed.values():
            wrong.append(f"{how} at byte {place}")
    return wrong


def laid_out(crashed: Path, home: Path, log: bytes) -> Path:
    """Put the files of a crash into a home, with another log."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(crashed, home)
    (home / LOG).write_bytes(log)
    return home


def read(home: Path) -> bytes:
    """Return what is on the desk and what was said, proven as everywhere; or that it is refused."""
    try:
        connection = connect(home / STORE, key_beside(home))
    except HoldfastError as error:
        return f"refused: {error.code}".encode()
    try:
        tables = Tables(connection, {})
        (zone,) = drive(tables.zones.all())
        (file,) = drive(tables.zones.files(*zone))
        said = connection.query("SELECT parts, hash FROM messages ORDER BY sequence")
        content = drive(tables.zones.read(file, 0, file.size))
        return content + b"|" + b"|".join(column for row in said for column in row)
    finally:
        connection.close()
