"""Backups: consistent while others write, whole or not there; and a restore that loses nothing."""

import asyncio
import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    StorageFull,
    Unavailable,
)
from holdfast.domain.ids import SessionId
from holdfast.store.sqlite.backup import back_up, free_name, restore
from holdfast.store.sqlite.connection import is_plain
from holdfast.store.sqlite.files import exclusively
from tests.store.conftest import KEY

pytestmark = pytest.mark.slow

SECRET = "a marker that stands in no other place"


def written(home: Path, *texts: str) -> SessionId:
    """Write messages into a new session of a home."""

    async def write() -> SessionId:
        async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
            session = await holdfast.open()
            for text in texts:
                await holdfast.send(session.id, text)
            return session.id

    return asyncio.run(write())


def read(home: Path, session: SessionId) -> list[str]:
    """Return the texts of a session, its chain checked."""

    async def rows() -> list[str]:
        async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
            assert (await holdfast.sessions.verify(holdfast.owner, session)).faults == ()
            return [row.text for row in await holdfast.read(session)]

    return asyncio.run(rows())


def test_a_backup_is_one_private_encrypted_file(file: Path, tmp_path: Path) -> None:
    written(file.parent, SECRET)
    target = tmp_path / "a.backup"

    assert back_up(file, KEY, target) == target

    assert target.stat().st_mode & 0o777 == 0o600
    assert not is_plain(target)
    assert SECRET.encode() not in target.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.backup", "home"]


def test_a_backup_of_a_plain_store_is_plain(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    session = written(home, "hello")
    target = tmp_path / "a.backup"

    back_up(home / "history.db", None, target)
    restore(target, None, tmp_path / "home" / "history.db")

    assert is_plain(target)
    assert read(home, session) == ["hello"]


def test_backups_made_while_others_write_are_each_a_moment_of_the_record(
    file: Path, tmp_path: Path
) -> None:
    targets = [tmp_path / f"{number}.backup" for number in range(4)]

    session, counts = asyncio.run(backed_up_under_load(file, targets))

    for target, (before, after) in zip(targets, counts, strict=True):
        fresh = tmp_path / target.stem
        fresh.mkdir()
        shutil.copy(file.parent / "key", fresh / "key")
        restore(target, KEY, fresh / "history.db")
        texts = read(fresh, session)
        assert before <= len(texts) <= after
        assert texts == [str(number) for number in range(len(texts))]
    assert counts[-1][1] > 0


async def backed_up_under_load(
    file: Path, targets: list[Path]
) -> tuple[SessionId, list[tuple[int, int]]]:
    """Back a store up while it is written to; return how much was written before and after."""
    counts = []
    async with open_holdfast(file.parent, scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write_for_ever(holdfast, session.id))
            for target in targets:
                before = await count(holdfast, session.id)
                await asyncio.to_thread(back_up, file, KEY, target)
                counts.append((before, await count(holdfast, session.id)))
            writing.cancel()
    return session.id, counts


async def write_for_ever(holdfast: Holdfast, session: SessionId) -> None:
    """Write numbers until cancelled."""
    number = 0
    while True:
        await holdfast.send(session, str(number))
        number += 1


async def count(holdfast: Holdfast, session: SessionId) -> int:
    """Return how many messages were acknowledged."""
    return (await holdfast.sessions.get(holdfast.owner, session)).message_count


def test_a_restore_goes_back_to_the_backup_and_keeps_what_was_there(
    file: Path, tmp_path: Path
) -> None:
    first = written(file.parent, "one")
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)
    second = written(file.parent, "two")

    kept = [restore(target, KEY, file), restore(target, KEY, file)]

    assert kept == [file.with_name(f"history.db.before-restore-{number}") for number in (1, 2)]
    assert read(file.parent, first) == ["one"]
    with pytest.raises(NotFound):
        read(file.parent, second)
    assert restore(kept[0], KEY, file) is not None
    assert read(file.parent, second) == ["two"]


def test_a_restore_into_nothing_keeps_nothing(file: Path, tmp_path: Path) -> None:
    session = written(file.parent, "one")
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)
    file.unlink()
    # The log of a store that is gone must not be played into the one that comes.
    Path(f"{file}-wal").write_bytes(b"left behind")

    assert restore(target, KEY, file) is None

    assert read(file.parent, session) == ["one"]


def test_what_a_crash_left_in_the_log_is_kept_with_the_old_store(
    file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.backup"
    written(file.parent, "one")
    back_up(file, KEY, target)
    session = crashed(file.parent)
    assert Path(f"{file}-wal").stat().st_size > 0

    kept = restore(target, KEY, file)

    assert kept is not None
    restore(kept, KEY, file)
    assert read(file.parent, session) == ["in the log"]


def test_the_log_of_a_store_that_cannot_be_read_is_kept_beside_it(
    file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.backup"
    session = written(file.parent, "one")
    back_up(file, KEY, target)
    file.write_bytes(b"\x55" * 8192)
    Path(f"{file}-wal").write_bytes(b"its log")

    kept = restore(target, KEY, file)

    assert kept is not None
    assert kept.read_bytes() == b"\x55" * 8192
    assert Path(f"{kept}-wal").read_bytes() == b"its log"
    assert read(file.parent, session) == ["one"]


def test_a_store_that_somebody_has_open_is_not_replaced(file: Path, tmp_path: Path) -> None:
    session = written(file.parent, "one")
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)

    with holding(file.parent), pytest.raises(Conflict) as refused:
        restore(target, KEY, file)

    assert refused.value.code is Code.STORE_IN_USE
    assert read(file.parent, session) == ["one"]
    assert list(file.parent.glob("*before*")) == []


def test_nobody_gets_in_while_a_store_is_held(file: Path) -> None:
    written(file.parent, "one")

    with exclusively(file):
        probe = "import sys; from pathlib import Path; from holdfast.store.sqlite.files import *\n"
        probe += "try:\n  with exclusively(Path(sys.argv[1])): print('in')\n"
        probe += "except Exception as error: print(error.code)"
        done = subprocess.run(
            [sys.executable, "-c", probe, str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.stdout == "store_in_use\n"


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"", Invalid, Code.BACKUP_INVALID),
        (b"not a database at all" * 500, Unavailable, Code.STORE_KEY_WRONG),
    ],
)
def test_what_is_no_backup_is_refused_and_nothing_changes(
    file: Path, tmp_path: Path, content: bytes, kind: type[HoldfastError], code: Code
) -> None:
    session = written(file.parent, "one")
    target = tmp_path / "a.backup"
    target.write_bytes(content)

    with pytest.raises(kind) as refused:
        restore(target, KEY, file)

    assert refused.value.code is code
    assert read(file.parent, session) == ["one"]
    assert list(file.parent.glob(".*")) == []


def test_a_database_of_another_program_is_no_backup(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "other.db"
    with closing(sqlite3.connect(target)) as database:
        database.execute("CREATE TABLE t (a)")

    with pytest.raises(Invalid, match="not a backup"):
        restore(target, None, file)


def test_a_backup_with_another_key_is_refused(file: Path, tmp_path: Path) -> None:
    written(file.parent, "one")
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)

    with pytest.raises(Unavailable) as refused:
        restore(target, bytes(32), file)

    assert refused.value.code is Code.STORE_KEY_WRONG


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_flipped_bit_in_a_backup_is_found_before_it_is_used(
    file: Path, tmp_path: Path, place: float
) -> None:
    session = written(file.parent, *("x" * 3000 for _ in range(40)))
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)
    data = bytearray(target.read_bytes())
    data[int(len(data) * place)] ^= 1
    target.write_bytes(data)

    with pytest.raises(HoldfastError):
        restore(target, KEY, file)

    assert len(read(file.parent, session)) == 40


def test_a_changed_message_in_a_plain_backup_is_found(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    written(home, "pay 10 euros")
    target = tmp_path / "a.backup"
    back_up(home / "history.db", None, target)
    forge(target)

    with pytest.raises(Invalid) as refused:
        restore(target, None, home / "history.db")

    assert refused.value.code is Code.BACKUP_INVALID
    assert len(refused.value.details["faults"]) == 1


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_backup_that_is_cut_off_is_told_as_such(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    session = written(home, "one")
    target = tmp_path / "a.backup"
    back_up(home / "history.db", None, target)
    whole = target.read_bytes()
    target.write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(Invalid, match=r"^The backup (is damaged|does not verify)") as refused:
        restore(target, None, home / "history.db")

    assert refused.value.code is Code.BACKUP_INVALID
    assert len(read(home, session)) == 1


def test_a_damaged_store_gives_no_backup(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    written(home, "pay 10 euros")
    forge(home / "history.db")
    target = tmp_path / "a.backup"

    with pytest.raises(Internal, match="no backup was made"):
        back_up(home / "history.db", None, target)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["home"]


def test_a_backup_of_a_newer_program_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    written(home, "one")
    target = tmp_path / "a.backup"
    back_up(home / "history.db", None, target)
    with closing(sqlite3.connect(target)) as database:
        database.execute("PRAGMA user_version = 99")

    with pytest.raises(Conflict) as refused:
        restore(target, None, home / "history.db")

    assert refused.value.code is Code.SCHEMA_NEWER


def test_a_file_that_is_there_stays_unless_force_is_used(file: Path, tmp_path: Path) -> None:
    written(file.parent, "one")
    target = tmp_path / "a.backup"
    target.write_text("mine")

    with pytest.raises(Conflict) as refused:
        back_up(file, KEY, target)
    assert (refused.value.code, target.read_text()) == (Code.FILE_EXISTS, "mine")

    back_up(file, KEY, target, force=True)
    assert target.stat().st_size > 4


def test_the_store_is_not_its_own_backup(file: Path) -> None:
    written(file.parent, "one")

    with pytest.raises(Conflict):
        back_up(file, KEY, file, force=True)


def test_a_name_that_is_taken_meanwhile_is_left_alone(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file.parent, "one")
    target = tmp_path / "a.backup"
    sync = os.fsync

    def taken_meanwhile(descriptor: int) -> None:
        target.write_text("somebody's")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", taken_meanwhile)
    with pytest.raises(Conflict):
        back_up(file, KEY, target)

    assert target.read_text() == "somebody's"


def test_wrong_places_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing to back up"):
        back_up(file, KEY, tmp_path / "a.backup")
    written(file.parent, "one")
    with pytest.raises(Invalid, match="is not a folder"):
        back_up(file, KEY, tmp_path / "nowhere" / "a.backup")
    with pytest.raises(Invalid, match="is a folder"):
        back_up(file, KEY, tmp_path)
    with pytest.raises(NotFound):
        restore(tmp_path / "nothing", KEY, file)
    with pytest.raises(Invalid):
        restore(tmp_path, KEY, file)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFull), (errno.EIO, Denied), (errno.EDQUOT, StorageFull)],
)
def test_what_the_file_system_refuses_is_told_in_our_words(
    file: Path,
    tmp_path: Path,
    number: int,
    kind: type[HoldfastError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(file.parent, "one")

    def refused(_: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(kind):
        back_up(file, KEY, tmp_path / "a.backup")

    assert sorted(each.name for each in tmp_path.iterdir()) == ["home"]


def test_a_lock_that_fails_for_another_reason_is_told_so(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file.parent, "one")
    target = tmp_path / "a.backup"
    back_up(file, KEY, target)

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "lockf", refused)
    with pytest.raises(Denied, match="no locks"):
        restore(target, KEY, file)


@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link"])
def test_a_backup_replaces_nothing_but_a_file(file: Path, tmp_path: Path, kind: str) -> None:
    written(file.parent, "one")
    target = tmp_path / "a.backup"
    if kind == "pipe":
        os.mkfifo(target)
    else:
        (tmp_path / "other").write_text("mine")
        target.symlink_to("other" if kind == "link" else "nowhere")
    before = target.lstat().st_ino

    for force in (False, True):
        with pytest.raises(Invalid) as refused:
            back_up(file, KEY, target, force=force)
        assert refused.value.code is Code.NOT_A_FILE

    assert target.lstat().st_ino == before


def test_a_plain_backup_takes_the_place_of_a_plain_store_only(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    written(tmp_path / "plain", "readable")
    target = tmp_path / "a.backup"
    back_up(tmp_path / "plain" / "history.db", None, target)
    monkeypatch.delenv("HOLDFAST_ENCRYPTION")
    session = written(file.parent, SECRET)

    with pytest.raises(Conflict) as refused:
        restore(target, None, file)

    assert refused.value.code is Code.BACKUP_PLAIN
    assert read(file.parent, session) == [SECRET]
    assert restore(target, None, file, plain=True) is not None
    assert is_plain(file)


def test_free_names_are_numbered(tmp_path: Path) -> None:
    store = tmp_path / "history.db"
    (tmp_path / "history.db.before-down-1").touch()

    assert free_name(store, "down") == tmp_path / "history.db.before-down-2"


@contextmanager
def holding(home: Path) -> Iterator[None]:
    """Have the store open in another process."""
    code = (
        "import asyncio, sys\n"
        "from holdfast import open_holdfast, RunScope\n"
        "async def main():\n"
        "    async with open_holdfast(sys.argv[1], scope=RunScope.NONE):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate(timeout=60)


def crashed(home: Path) -> SessionId:
    """Write a message in a process that then dies without a word."""
    code = (
        "import asyncio, os, sys\n"
        "from holdfast import open_holdfast, RunScope\n"
        "async def main():\n"
        "    async with open_holdfast(sys.argv[1], scope=RunScope.NONE) as holdfast:\n"
        "        session = await holdfast.open()\n"
        "        await holdfast.send(session.id, 'in the log')\n"
        "        print(session.id, flush=True)\n"
        "        os._exit(9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return SessionId(done.stdout.strip())


def forge(file: Path) -> None:
    """Change a message of a plain store behind everybody's back."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TRIGGER messages_are_never_edited")
        database.execute("UPDATE messages SET parts = CAST(replace(parts, '10', '99') AS BLOB)")
        database.commit()
