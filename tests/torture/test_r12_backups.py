"""R12: backups are made under load, and each of them is restored and held against the record."""

import asyncio
import random
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from holdfast import HoldfastError, Message, RunScope, Text, open_holdfast
from holdfast.store.sqlite.backup import back_up, restore
from tests.marks import proves
from tests.torture.attempts import Attempt, read_attempts, read_lines
from tests.torture.audit import Audit, judge
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew, wait_until
from tests.torture.loads import Loads
from tests.torture.notebooks import key_beside
from tests.torture.nursery import Process
from tests.torture.recovery import recovered
from tests.torture.stocks import stock

pytestmark = pytest.mark.slow

CLIENTS = 4
GIGABYTE_WITHIN = 60.0


@dataclass(frozen=True)
class Backup:
    """A backup and between which instants it was made."""

    file: Path
    begun: int
    ended: int


@proves("R12")
def test_every_backup_made_under_load_is_the_record_of_its_instant(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=1, test=2, torture=10, release=200)
    home = tmp_path / "home"
    clients = loaded(crew, tmp_path, luck)

    backups = []
    for number in range(count):
        # Much is said between two backups, so that they differ.
        wait_for_answers(tmp_path, more=50)
        begun = time.time_ns()
        file = back_up(home / "history.db", key_beside(home), tmp_path / f"{number}.backup")
        backups.append(Backup(file, begun, time.time_ns()))
    crew.stop(*clients.running.values())

    results = [restored(tmp_path, each) for each in backups]
    slowest = max(each.ended - each.begun for each in backups) / 1e9
    tell(f"{count} backups, {results[-1].acknowledged} acknowledged in the last, {slowest:.1f} s")
    assert [str(result) for result in results if not result.is_clean] == []


@proves("R12")
def test_a_backup_of_another_instant_is_not_the_record(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    clients = loaded(crew, tmp_path, luck)
    file = back_up(
        tmp_path / "home" / "history.db", key_beside(tmp_path / "home"), tmp_path / "early.backup"
    )
    wait_for_answers(tmp_path, more=20)
    crew.stop(*clients.running.values())

    late = Backup(file, time.time_ns(), time.time_ns())
    assert restored(tmp_path, late).counts["LOST"] > 0


@proves("R12")
def test_a_backup_that_was_killed_is_not_there_or_whole(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    home = tmp_path / "home"
    asyncio.run(stock(home, luck, sessions=200, messages=50))
    whole = 0

    kills = sized(test=3, torture=15)
    for number in range(kills):
        target = tmp_path / f"{number}.backup"
        process = crew.start("backing", home=home, target=target)
        wait_for_a_draft(process, target)
        # It has begun to write; from then on any moment will do.
        time.sleep(luck.uniform(0, 0.5))
        process.kill()
        process.wait()
        if target.exists():
            whole += 1
            again = tmp_path / f"again{number}"
            again.mkdir()
            restore(target, key_beside(home), again / "history.db")

    tell(f"{kills} backups killed, {whole} were whole already")
    assert judge(home, []).is_clean


@proves("R12")
def test_a_damaged_backup_is_not_restored(tmp_path: Path, luck: random.Random) -> None:
    home = tmp_path / "home"
    asyncio.run(stock(home, luck, sessions=3, messages=20))
    file = back_up(home / "history.db", key_beside(home), tmp_path / "a.backup")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    file.write_bytes(content)

    with pytest.raises(HoldfastError):
        restore(file, key_beside(home), tmp_path / "new.db")

    assert not (tmp_path / "new.db").exists()


@proves("R12")
@pytest.mark.parametrize("houses", [1, 2])
def test_nothing_is_restored_while_a_process_has_the_store_open(
    tmp_path: Path, crew: Crew, houses: int
) -> None:
    home = tmp_path / "home"

    said, told, kept = asyncio.run(_restored_beside(home, crew, houses))

    assert (said, told) == ("refused: store_in_use\n", ["words"])
    assert kept == told


async def _restored_beside(home: Path, crew: Crew, houses: int) -> tuple[str, list[str], list[str]]:
    """Have a backup brought back while this process has the store open, once or several times."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                open_holdfast(config=settings(home), scope=RunScope.NONE)
            )
            for _ in range(houses)
        ]
        house = opened[0]
        session = await house.open()
        file = back_up(home / "history.db", key_beside(home), home.parent / "a.backup")
        process = crew.start("restoring", home=home, backup=file)
        status = await asyncio.to_thread(process.wait, PATIENCE)
        assert status == 0, crew.log_of(process)
        await house.send(session.id, "words")
        told = [_text(row) for row in await house.read(session.id)]
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        kept = [_text(row) for row in await house.read(session.id)]
    return crew.log_of(process), told, kept


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


@proves("R12")
def test_a_large_store_is_backed_up_in_time(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    home = tmp_path / "home"
    sessions = sized(test=100, torture=4_000)
    asyncio.run(stock(home, luck, sessions=sessions, messages=100, words=200))
    size = (home / "history.db").stat().st_size

    begun = time.monotonic()
    back_up(home / "history.db", key_beside(home), tmp_path / "large.backup")
    passed = time.monotonic() - begun

    per_gigabyte = passed * (1 << 30) / size
    tell(f"{size >> 20} MiB in {passed:.1f} s, a gigabyte in {per_gigabyte:.0f} s")
    assert per_gigabyte <= sized.within(GIGABYTE_WITHIN)


def loaded(crew: Crew, folder: Path, luck: random.Random) -> Loads:
    """Start clients that do everything at once, and wait until all have begun."""
    clients = Loads(crew, folder, luck, home=folder / "home")
    clients.start(*range(CLIENTS))
    clients.wait_for_a_yes(*range(CLIENTS))
    return clients


def wait_for_answers(folder: Path, *, more: int) -> None:
    """Wait until so many more things were acknowledged that a backup has to hold."""

    def told() -> int:
        attempts = read_attempts(folder.glob("c*.jsonl"))
        return sum(each.acknowledged and each.verb in {"open", "send"} for each in attempts)

    before = told()
    wait_until(lambda: told() >= before + more)


def wait_for_a_draft(process: Process, target: Path) -> None:
    """Wait until the draft of a backup lies beside where it will be, or all is over."""
    drafts = f".{target.name}.*"
    wait_until(lambda: any(target.parent.glob(drafts)) or process.poll() is not None)


def restored(folder: Path, backup: Backup) -> Audit:
    """Bring a backup back into a home of its own and hold it against what was known then."""
    home = folder / f"{backup.file.stem}-restored"
    home.mkdir()
    shutil.copy(folder / "home" / "key", home / "key")
    restore(backup.file, key_beside(home), home / "history.db")
    asyncio.run(recovered(home))
    return judge(home, known(folder, backup))


def known(folder: Path, backup: Backup) -> list[Attempt]:
    """Return the attempts that a backup may hold; those answered before it began it must hold."""
    begun, answered = {}, {}
    for line in read_lines(folder.glob("c*.jsonl")):
        if "verb" in line:
            begun[line["client"], line["n"]] = line["at"]
        elif "outcome" in line:
            answered[line["client"], line["n"]] = line["at"]
    attempts = []
    for each in read_attempts(folder.glob("c*.jsonl")):
        name = each.client, each.number
        if begun[name] > backup.ended:
            continue
        is_known = name in answered and answered[name] <= backup.begun
        attempts.append(each if is_known else replace(each, outcome=None, answer={}))
    return attempts
