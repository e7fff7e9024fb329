"""R14: the schema is made and changed by processes that die at every touch of the disk."""

import asyncio
import hashlib
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import HoldfastError, RunScope, open_holdfast
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.migrate import down, newest
from tests.marks import proves
from tests.torture.audit import judge
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.notebooks import key_beside, reading
from tests.torture.stocks import stock

pytestmark = pytest.mark.slow

Schema = list[tuple[str, str]]
# The migration that moved messages and events into other tables.
KEYED = 11


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Schema]:
    """The schemas of a store that was taken up and down without any trouble, from none to whole."""
    home = tmp_path_factory.mktemp("steps") / "home"
    asyncio.run(_opened(home))
    found = [schema(home)]
    connection = connect(home / "history.db", key_beside(home))
    for number in range(newest() - 1, -1, -1):
        down(connection, number)
        found.append(schema(home))
    connection.close()
    return found[::-1]


@pytest.fixture(scope="module")
def whole(steps: list[Schema]) -> Schema:
    """The schema of a store that was made without any trouble."""
    return steps[-1]


@proves("R14")
def test_a_store_whose_making_was_cut_off_anywhere_is_made_by_the_next_start(
    tmp_path: Path, crew: Crew, whole: Schema, sized: Sized, tell: Tell
) -> None:
    deaths = 0
    for touch in spread(sized(quick=3, test=8, torture=45), last=touches(crew, tmp_path, "open")):
        home = tmp_path / f"{touch}" / "home"
        home.parent.mkdir()
        deaths += crew.run("migrating", home=home, direction="open", dies_at=touch) != 0

        asyncio.run(_opened(home))

        assert schema(home) == whole
        assert judge(home, []).is_clean

    tell(f"{deaths} deaths while a store was made, each made whole by the next start")
    assert deaths > 0


@proves("R14")
def test_a_migration_that_was_cut_off_has_happened_or_not(
    tmp_path: Path, crew: Crew, steps: list[Schema], sized: Sized, tell: Tell
) -> None:
    taken_back = deaths = 0
    for touch in spread(sized(test=6, torture=40), last=touches(crew, tmp_path, "down") + 1):
        home = tmp_path / f"{touch}" / "home"
        home.parent.mkdir()
        asyncio.run(_opened(home))

        deaths += died(crew.run("migrating", home=home, direction="down", dies_at=touch))
        after_down = schema(home)
        deaths += died(crew.run("migrating", home=home, direction="up", dies_at=touch))
        after_up = schema(home)
        assert crew.run("migrating", home=home, direction="up", dies_at=0) == 0

        assert after_down in steps
        assert after_up in steps
        assert schema(home) == steps[-1]
        taken_back += after_down == []

    tell(f"{deaths} deaths amid migrations, {taken_back} times taken back, never by half")
    assert deaths > 0
    assert taken_back > 0


@proves("R14")
def test_rows_that_a_migration_moves_are_whole_wherever_it_was_cut_off(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    filled = tmp_path / "filled" / "home"
    filled.parent.mkdir()
    asyncio.run(stock(filled, luck, sessions=4, messages=sized(test=20, torture=200)))
    whole, down_one = dump(filled), f"down to {KEYED - 1}"
    last = touches(crew, tmp_path, down_one, home=filled)
    deaths = 0
    for touch in spread(sized(quick=3, test=6, torture=40), last=last):
        home = Path(shutil.copytree(filled, tmp_path / f"{touch}" / "home"))
        for direction in (down_one, "up"):
            deaths += died(crew.run("migrating", home=home, direction=direction, dies_at=touch))
            assert crew.run("migrating", home=home, direction=direction, dies_at=0) == 0

        assert dump(home) == whole
        assert judge(home, []).is_clean

    tell(f"{deaths} deaths while {sum(map(len, whole))} rows were moved, none lost or changed")
    assert deaths > 0


@proves("R14")
def test_a_migration_without_a_transaction_would_be_found_by_half(
    tmp_path: Path, crew: Crew, steps: list[Schema]
) -> None:
    halves = 0
    # How often the last migration touches the disk depends on what it changes.
    for touch in range(2, 42, 2):
        home = tmp_path / str(touch) / "home"
        home.parent.mkdir()
        asyncio.run(_opened(home))
        direction = "down without a transaction"
        if not died(crew.run("migrating", home=home, direction=direction, dies_at=touch)):
            break
        halves += schema(home) not in steps

    assert halves > 0


@proves("R14")
def test_a_store_of_an_older_schema_is_made_whole_unasked_only_if_nobody_has_used_it(
    tmp_path: Path, whole: Schema
) -> None:
    unused, used = tmp_path / "unused" / "home", tmp_path / "used" / "home"
    for home in (unused, used):
        home.parent.mkdir()
        asyncio.run(_opened(home, session=home is used))
        connection = connect(home / "history.db", key_beside(home))
        down(connection, newest() - 1)
        connection.close()
    before = schema(used)

    asyncio.run(_opened(unused))
    with pytest.raises(HoldfastError) as refused:
        asyncio.run(_opened(used))

    assert schema(unused) == whole
    assert (str(refused.value.code), schema(used)) == ("schema_older", before)


@proves("R14")
def test_two_processes_that_migrate_at_once_do_it_once(
    tmp_path: Path, crew: Crew, whole: Schema, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=2, torture=10)
    for number in range(rounds):
        home = tmp_path / str(number) / "home"
        home.parent.mkdir()
        starts = [crew.start("migrating", home=home, direction="open", dies_at=0) for _ in range(4)]
        for process in starts:
            assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)

        assert schema(home) == whole
        assert judge(home, []).is_clean

    tell(f"{rounds} homes made by 4 processes at once")


def other_program(path: Path) -> None:
    """Make a database of somebody else."""
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", 42)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def nameless_program(path: Path) -> None:
    """Make a database of a program that does not say who it is."""
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def tomorrows_store(path: Path) -> None:
    """Make a store that a newer Holdfast has written."""
    asyncio.run(_opened(path.parent, encryption="off"))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()


def half_a_store(path: Path) -> None:
    """Make a store of ours that has tables and says that it has none."""
    asyncio.run(_opened(path.parent, encryption="off"))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 0)
    connection.close()


def no_database(path: Path) -> None:
    """Make a file that is something else altogether."""
    path.write_bytes(b"To whom it may concern: this is a letter.\n" * 300)


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "of another program": (other_program, "store_foreign"),
    "of a program that does not say so": (nameless_program, "store_foreign"),
    "of a newer Holdfast": (tomorrows_store, "schema_newer"),
    "that contradicts itself": (half_a_store, "corrupt_store"),
    "that is no database": (no_database, "store_key_wrong"),
}


@proves("R14")
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_store_is_refused_and_left_as_it_was(tmp_path: Path, kind: str) -> None:
    make, code = ODD[kind]
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    make(home / "history.db")
    (home / "key").write_text("ab" * 32)
    before = hashlib.sha256((home / "history.db").read_bytes()).hexdigest()

    with pytest.raises(HoldfastError) as refused:
        asyncio.run(_opened(home))

    assert str(refused.value.code) == code
    assert hashlib.sha256((home / "history.db").read_bytes()).hexdigest() == before


def spread(count: int, *, last: int) -> list[int]:
    """Return so many places between 1 and the last, the first ones close together."""
    return sorted({1 + (last - 1) * number**2 // (count - 1) ** 2 for number in range(count)})


def dump(home: Path) -> list[list[tuple[Any, ...]]]:
    """Return the rows of messages, events and deltas; an encrypted store checks no event."""
    event = "key, turn, at, name, ids, payload"
    with reading(home / "history.db", key_beside(home)) as connection:
        return [
            connection.execute(f"SELECT {columns} FROM {table} ORDER BY key").fetchall()
            for table, columns in (("messages", "*"), ("events", event), ("deltas", event))
        ]


def touches(crew: Crew, folder: Path, direction: str, home: Path | None = None) -> int:
    """Return how often the disk is touched when nobody dies, in a new home or a copy of one."""
    filled, home = home, folder / "dry" / "home"
    home.parent.mkdir()
    if filled is not None:
        shutil.copytree(filled, home)
    elif direction != "open":
        asyncio.run(_opened(home))
    process = crew.start("migrating", home=home, direction=direction, dies_at=0)
    assert process.wait(timeout=PATIENCE) == 0
    return int(crew.log_of(process).split()[-1])


def died(status: int) -> bool:
    """Tell whether a program was killed; any other end but the good one is a failure."""
    assert status in {0, -signal.SIGKILL}, status
    return status != 0


async def _opened(home: Path, *, session: bool = False, **changes: str) -> None:
    async with open_holdfast(config=settings(home, **changes), scope=RunScope.NONE) as house:
        if session:
            await house.open()


def schema(home: Path) -> Schema:
    """Return everything that the schema consists of, and which steps have been marked as done."""
    with reading(home / "history.db", key_beside(home)) as connection:
        things = connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        marks = []
        if any(name == "migrations" for name, _ in things):
            marks = connection.execute("SELECT name, checksum FROM migrations").fetchall()
        return [(str(name), str(sql)) for name, sql in [*things, *marks]]
