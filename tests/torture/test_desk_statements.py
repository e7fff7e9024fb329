"""Whatever is done to a desk: killed or refused at any statement of it, it was done or it was not.

A process that is killed leaves the files as they are at that moment, so they are copied there.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, HoldfastError, RunScope, open_holdfast
from holdfast.ports.store import Tx
from holdfast.store.sqlite.checks import faults
from holdfast.store.sqlite.connection import connect, drive
from holdfast.store.sqlite.store import Tables
from holdfast.zones.binding import stamp_of
from holdfast.zones.files import copy_zone
from holdfast.zones.merge import merge_zone
from holdfast.zones.model import PART_SIZE
from tests.torture.clients.house import settings
from tests.torture.notebooks import key_beside

pytestmark = [pytest.mark.slow, pytest.mark.torture]

AGENT = "holdfast"
ADOPTER = "0192f0c1-0000-7000-8000-000000000009"
LINE = '{"n":1}'
# Beginnings and ends of transactions: what fails there is the store's affair and not a desk's.
FRAME = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
Act = Callable[[Holdfast], Awaitable[Any]]
State = dict[str, object]


async def _oldest(house: Holdfast) -> int:
    return (await house.zones.list_archives(house.owner, AGENT))[-1].archived_at_ms


async def _append(house: Holdfast, size: int) -> object:
    return await house.zones.append_output(house.owner, AGENT, "x" * size)


async def _restore(house: Holdfast) -> object:
    return await house.zones.restore_archive(house.owner, AGENT, await _oldest(house))


async def _delete(house: Holdfast) -> object:
    return await house.zones.delete_archive(house.owner, AGENT, await _oldest(house))


async def _close(house: Holdfast) -> object:
    session = (await house.zones.show(house.owner, AGENT)).session_id
    assert session is not None
    return await house.sessions.close(house.owner, session)


async def _move(house: Holdfast) -> object:
    """Move the desk onto another one that is older in one file and newer in the other."""
    old = (await house.zones.show(house.owner, AGENT)).zone
    stamp = stamp_of(house.zones.stamping)
    return await house.store.write(
        lambda tx: merge_zone(tx, house.owner, old, "agent:other:current", stamp=stamp)
    )


async def _copy(house: Holdfast) -> object:
    old = (await house.zones.show(house.owner, AGENT)).zone
    stamp = stamp_of(house.zones.stamping)
    return await house.store.write(
        lambda tx: copy_zone(tx, house.owner, old, "agent:copy:current", stamp=stamp)
    )


ACTS: dict[str, Act] = {
    "write": lambda house: house.zones.write_state(house.owner, AGENT, "y" * 70_000),
    "append a line": lambda house: _append(house, 50),
    "append a piece": lambda house: _append(house, 5_000),
    "append parts": lambda house: _append(house, 3 * PART_SIZE),
    "append first": lambda house: house.zones.append_output(house.owner, "new", LINE),
    "archive": lambda house: house.zones.archive(house.owner, AGENT),
    "restore": _restore,
    "delete": _delete,
    "purge": lambda house: house.zones.purge(house.owner, AGENT, confirm=AGENT),
    "open": lambda house: house.open(AGENT),
    "close": _close,
    "move": _move,
    "copy": _copy,
    "adopt": lambda house: house.agents.create(house.owner, {"name": "Other"}, id=ADOPTER),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a desk that a session sits at, two archives, and another desk."""
    home = tmp_path_factory.mktemp("start") / "home"
    asyncio.run(_prepared(home))
    return home


async def _prepared(home: Path) -> None:
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        await house.agents.get(house.owner, "holdfast")
        for number in range(2):
            await house.zones.append_output(house.owner, AGENT, f"{number}" * 70_000)
            await house.zones.write_state(house.owner, AGENT, '{"sourceBlockId":"b"}')
            await house.zones.archive(house.owner, AGENT)
        await house.zones.append_output(house.owner, "other", "theirs")
        await house.open(AGENT)
        await house.zones.write_state(house.owner, AGENT, "ours")
        await house.zones.append_output(house.owner, AGENT, "ours" * 100)
        await house.zones.append_output(house.owner, AGENT, "more")
        await house.zones.write_state(house.owner, "other", "theirs, and newer")


@pytest.mark.parametrize("name", ACTS)
def test_killed_at_any_statement_it_was_done_or_it_was_not(
    start: Path, tmp_path: Path, name: str
) -> None:
    home = Path(shutil.copytree(start, tmp_path / "home"))
    before = read(home)
    copies: list[Path] = []

    def keep(_: str) -> bool:
        copies.append(_copied(home, tmp_path / str(len(copies))))
        return True

    asyncio.run(_watched(home, ACTS[name], keep))

    found = [read(copy) for copy in copies]
    after = read(home)
    done = sum(state == after for state in found)
    assert found == [before] * (len(found) - done) + [after] * done
    assert len(found) - done >= 4
    assert after != before
    assert after["faults"] == []


@pytest.mark.parametrize("name", ACTS)
def test_refused_at_any_statement_nothing_was_done_and_it_can_be_done_again(
    start: Path, tmp_path: Path, name: str
) -> None:
    home = Path(shutil.copytree(start, tmp_path / "home"))
    before = read(home)
    other = Path(shutil.copytree(start, tmp_path / "other"))
    asyncio.run(_watched(other, ACTS[name], lambda _: True))

    refused = asyncio.run(_refused_everywhere(home, ACTS[name], before))

    after = read(home)
    assert _without_times(after) == _without_times(read(other))

    assert refused >= 2
    assert after != before
    assert after["faults"] == []


def test_the_comparison_sees_what_was_done_by_halves(start: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(start, tmp_path / "home"))
    before = read(home)
    copies: list[Path] = []

    async def by_halves(house: Holdfast) -> None:
        """Do in two transactions what is one."""

        async def take_away(tx: Tx) -> None:
            await tx.zones.remove_all(house.owner, "agent:other:current")

        await _copy(house)
        await house.store.write(take_away)

    def keep(_: str) -> bool:
        copies.append(_copied(home, tmp_path / str(len(copies))))
        return True

    asyncio.run(_watched(home, by_halves, keep))

    assert any(state not in (before, read(home)) for state in map(read, copies))


async def _watched(home: Path, act: Act, watch: Callable[[str], bool]) -> None:
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        with _watching(house, watch):
            await act(house)


async def _refused_everywhere(home: Path, act: Act, before: State) -> int:
    """Refuse the first statement, then the second, until it is done; return how many there were."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        for nth in range(1, 200):
            seen = 0

            def strike(sql: str, nth: int = nth) -> bool:
                nonlocal seen
                seen += not sql.startswith(FRAME)
                return seen < nth or sql.startswith(FRAME)

            try:
                with _watching(house, strike):
                    await act(house)
                return nth - 1
            except HoldfastError:
                there = read(home)
                if there != before:
                    # Done, and the answer refused: whatever came later was only to be told.
                    return nth - 1
    raise AssertionError("it is never done")


@contextmanager
def _watching(house: Holdfast, watch: Callable[[str], bool]) -> Iterator[None]:
    """Call somebody before every statement of the one who writes; `False` refuses it."""
    connection = house.store._writer.connection.raw  # type: ignore[attr-defined]

    def look(_: apsw.Cursor, sql: str, __: object) -> bool:
        told = [line for line in sql.strip().splitlines() if not line.startswith("--")]
        return watch(told[0])

    connection.exec_trace = look
    try:
        yield
    finally:
        connection.exec_trace = None


def _copied(home: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in ("history.db", "history.db-wal", "key"):
        if (home / name).exists():
            shutil.copy(home / name, folder / name)
    return folder


def _without_times(state: State) -> list[str]:
    """Return what lies where, apart from times: an archive is named after one."""
    return sorted(
        f"{':'.join(name.split(':')[:3])}{name.rpartition(' ')[2]} {content[0]!r}"
        for name, content in state.items()
        if name.startswith("agent:") and isinstance(content, tuple)
    )


def read(home: Path) -> State:
    """Return every file of every zone with its times, who sits where, and what is wrong."""
    connection = connect(home / "history.db", key_beside(home))
    try:
        zones = Tables(connection, {}).zones
        state: State = {"faults": faults(connection)}
        for owner, zone in drive(zones.all()):
            for file in drive(zones.files(owner, zone)):
                content = drive(zones.read(file, 0, file.size))
                state[f"{zone} {file.name}"] = (content, file.created_ms, file.modified_ms)
        state["desks"] = connection.query("SELECT owner, zone, session_key FROM desks")
        state["sessions"] = connection.query("SELECT id, status, events FROM sessions")
        return state
    finally:
        connection.close()
