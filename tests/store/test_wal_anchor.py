"""The anchor of the log: acknowledged changes that are missing are named, a torn tail is not."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.errors import Code, Internal, Unavailable
from holdfast.domain.models import model_of
from holdfast.store.sqlite import wal_anchor as sqlite_wal_anchor
from holdfast.store.sqlite.backup import back_up, restore
from holdfast.store.sqlite.connection import Connection, connect, set_key
from holdfast.store.sqlite.salvage import salvage
from holdfast.store.sqlite.store import SqliteStore
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

FRAME = 24 + 4096

WRITER = """
import asyncio, sys
from pathlib import Path
from holdfast.domain.models import model_of
from holdfast.store.sqlite.store import SqliteStore
KEY = bytes(range(32))

async def main() -> None:
    store = SqliteStore(Path(sys.argv[1]), KEY)
    for number in range(int(sys.argv[3])):
        name = f"{sys.argv[2]}{number}"
        await store.write(lambda tx, n=name: tx.models.add(model_of(f"a:{n}" + "x" * 3_000)))
        print(number, flush=True)
        if number % 7 == 6:
            await store.scrub()
    await store.close()

asyncio.run(main())
"""


async def _add(store: SqliteStore, *names: str) -> None:
    for name in names:
        await store.write(lambda tx, n=name: tx.models.add(model_of(f"a:{n}")))


async def _names(file: Path) -> set[str]:
    store = SqliteStore(file, KEY)
    try:
        return {model.name for model in await store.read(lambda tx: tx.models.all())}
    finally:
        await store.close()


def _log(file: Path) -> Path:
    return Path(f"{file}-wal")


def _anchor(file: Path) -> Path:
    return Path(f"{file}-anchor")


def _copied(file: Path, to: str) -> Path:
    folder = file.parent.with_name(to)
    shutil.copytree(file.parent, folder, ignore=shutil.ignore_patterns("*-shm"))
    return folder / file.name


def _frames(file: Path) -> int:
    record = sqlite_wal_anchor.load(file)
    assert record is not None
    return record.frame


async def test_a_flip_in_each_of_the_last_ten_frames_is_refused(
    store: SqliteStore, file: Path
) -> None:
    await store.scrub()
    await _add(store, *map(str, range(12)))
    last = _frames(file)
    assert last >= 10

    for number, frame in enumerate(range(last - 10, last)):
        for place in (0, 5, 9, 17, 24 + 1_000):
            copy = _copied(file, f"flipped{number}-{place}")
            content = bytearray(_log(copy).read_bytes())
            content[32 + frame * FRAME + place] ^= 4
            _log(copy).write_bytes(content)

            with pytest.raises(Internal, match="acknowledged") as caught:
                SqliteStore(copy, KEY)

            assert caught.value.code is Code.CORRUPT_STORE
            assert _log(copy).read_bytes() == content


async def test_a_log_that_was_cut_off_below_the_anchor_is_refused(
    store: SqliteStore, file: Path
) -> None:
    await store.scrub()
    await _add(store, "one", "two", "three")
    size = _log(file).stat().st_size

    for number, cut in enumerate((0, 31, 32, 32 + FRAME, size - FRAME, size - 1)):
        copy = _copied(file, f"cut{number}")
        os.truncate(_log(copy), cut)

        with pytest.raises(Internal, match="acknowledged"):
            SqliteStore(copy, KEY)


def _flip_the_last_frame(file: Path) -> None:
    content = bytearray(_log(file).read_bytes())
    content[32 + (_frames(file) - 1) * FRAME + 24 + 1_000] ^= 4
    _log(file).write_bytes(content)


def _cut_the_last_frame_off(file: Path) -> None:
    os.truncate(_log(file), 32 + (_frames(file) - 1) * FRAME)


DAMAGE = (_flip_the_last_frame, _cut_the_last_frame_off, lambda file: _log(file).unlink())


@pytest.mark.parametrize("damage", DAMAGE, ids=["flipped", "cut", "removed"])
async def test_only_the_anchor_tells_lost_commits_from_an_interrupted_write(
    store: SqliteStore, file: Path, damage: Callable[[Path], None]
) -> None:
    await store.scrub()
    await _add(store, "one", "two")
    refused, silent = _copied(file, "refused"), _copied(file, "silent")
    for copy in (refused, silent):
        damage(copy)
    _anchor(silent).unlink()

    with pytest.raises(Internal, match="acknowledged"):
        SqliteStore(refused, KEY)

    # The control: without the anchor the acknowledged commit is gone, and nothing says so.
    assert "two" not in await _names(silent)


def _begin_a_log(connection: Connection) -> None:
    """Reset a checkpointed log, write uncommitted frames into it, and roll back."""
    connection.query("PRAGMA cache_size = 1")
    connection.query("BEGIN IMMEDIATE")
    connection.query("CREATE TABLE spilled (content)")
    for _ in range(40):
        connection.query("INSERT INTO spilled VALUES (zeroblob(20000))")
    connection.query("ROLLBACK")


def _commit_without_a_record(connection: Connection) -> None:
    """Do what a process does that is killed before it has recorded its commit."""
    connection.query("BEGIN IMMEDIATE")
    connection.query("CREATE TABLE unrecorded (content)")
    connection.query("COMMIT")


def _salts(file: Path) -> int:
    return int.from_bytes(_log(file).read_bytes()[16:20])


async def _checkpoint(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit once with a checkpoint after it."""
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_wal_anchor, "CHECKPOINT_FRAMES", 1)
        await _add(store, "checkpointed")


async def test_a_new_log_with_random_salts_raises_no_alarm(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect(file, KEY)
    await _add(store, "one", "two")
    before = _salts(file)
    await _checkpoint(store, monkeypatch)
    _begin_a_log(store._writer.connection)
    assert _salts(file) == (before + 1) & 0xFFFF_FFFF

    # This connection has not seen the reset, so SQLite takes random salts.
    _commit_without_a_record(other)

    assert abs(_salts(file) - before) > 1 << 16
    names = {"one", "two", "checkpointed"}
    assert await _names(_copied(file, "killed")) == names
    connect(file, KEY).close()
    other.close()
    await _add(store, "four")
    assert await _names(_copied(file, "begun")) == {*names, "four"}


async def test_a_log_that_readers_keep_from_being_truncated_may_be_followed_by_any_other(
    store: SqliteStore, file: Path
) -> None:
    other, reader = connect(file, KEY), connect(file, KEY)
    await _add(store, "one", "two")
    reader.query("BEGIN")
    reader.query("SELECT count(*) FROM sqlite_schema")
    other.patience.is_off = True
    with pytest.raises(apsw.BusyError):
        other.empty_log()
    reader.query("COMMIT")
    reader.close()
    before = _salts(file)
    _begin_a_log(store._writer.connection)

    _commit_without_a_record(other)

    assert abs(_salts(file) - before) > 1 << 16
    assert await _names(_copied(file, "killed")) == {"one", "two"}
    other.close()


async def test_a_checkpointed_log_may_neither_be_missing_nor_damaged_nor_older(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _add(store, "one")
    older = _log(file).read_bytes()
    store._writer.connection.raw.wal_checkpoint(mode=1)
    await _add(store, "two")
    await _checkpoint(store, monkeypatch)

    def replace_by_an_older_one(file: Path) -> None:
        _log(file).write_bytes(older)

    # SQLite would read the frames that remain, or the older ones, instead of the database file.
    for number, damage in enumerate((*DAMAGE, replace_by_an_older_one)):
        damaged = _copied(file, f"damaged{number}")
        damage(damaged)
        with pytest.raises(Internal, match="acknowledged"):
            SqliteStore(damaged, KEY)


async def test_a_commit_after_a_checkpoint_is_anchored_again(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = connect(file, KEY)
    await _checkpoint(store, monkeypatch)
    # The reader keeps the log from being reset, so that the commit continues it.
    reader.query("BEGIN")
    reader.query("SELECT count(*) FROM sqlite_schema")
    await _add(store, "two")
    reader.query("COMMIT")
    copies = [_copied(file, "continued")]
    await _checkpoint(store, monkeypatch)
    await _add(store, "three")
    copies.append(_copied(file, "reset"))
    reader.close()

    for copy in copies:
        _log(copy).unlink()
        with pytest.raises(Internal, match="acknowledged"):
            SqliteStore(copy, KEY)


async def test_what_another_program_did_with_the_log_loses_nothing(
    store: SqliteStore, file: Path
) -> None:
    await _add(store, "one", "two")
    copy = _copied(file, "opened")
    other = apsw.Connection(str(copy))
    set_key(other, KEY)
    other.pragma("user_version")
    other.close()
    assert not _log(copy).exists()

    with pytest.raises(Internal, match="another SQLite program") as refused:
        SqliteStore(copy, KEY)

    assert "holdfast salvage" in refused.value.message
    assert salvage(copy, KEY, copy.with_name("whole.backup")).lost == ()
    restore(copy.with_name("whole.backup"), KEY, copy)
    assert await _names(copy) == {"one", "two"}


async def test_frames_beyond_the_anchor_are_a_torn_tail(store: SqliteStore, file: Path) -> None:
    await _add(store, "one", "two")
    behind = _anchor(file).read_bytes()
    await _add(store, "three")
    copy = _copied(file, "behind")
    _anchor(copy).write_bytes(behind)
    os.truncate(_log(copy), _log(copy).stat().st_size - 1)

    assert await _names(copy) == {"one", "two"}
    assert await _names(copy) == {"one", "two"}


async def test_an_older_log_is_refused(store: SqliteStore, file: Path) -> None:
    await _add(store, "one")
    older = _log(file).read_bytes()
    store._writer.connection.raw.wal_checkpoint(mode=1)
    await _add(store, "two")
    copy = _copied(file, "older")
    _log(copy).write_bytes(older)

    with pytest.raises(Internal, match="acknowledged"):
        SqliteStore(copy, KEY)


async def test_a_log_that_is_removed_under_a_store_ends_its_writing(
    store: SqliteStore, file: Path
) -> None:
    await _add(store, "one")
    away = file.with_name("away")
    _log(file).rename(away)

    for name in ("two", "three"):
        with pytest.raises(Unavailable, match="/proc/") as caught:
            await _add(store, name)
        assert caught.value.code is Code.STORE_POISONED
    assert sqlite_wal_anchor.load(file) is not None
    assert not _log(file).exists()

    # The same file back in its place: nothing is lost, and writing goes on.
    away.rename(_log(file))
    await _add(store, "four")
    await store.close()
    assert {"one", "four"} <= await _names(file)


def _refuse(*_: Any, **__: Any) -> str:
    raise FileNotFoundError


@pytest.mark.parametrize("is_known", [True, False], ids=["named", "unnamed"])
async def test_a_log_that_is_replaced_under_a_store_ends_its_writing(
    file: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    if not is_known:
        # As on a system without /proc.
        monkeypatch.setattr(os, "readlink", _refuse)
    store = SqliteStore(file, KEY)
    await _add(store, "one")
    shutil.copy(_log(file), file.with_name("other"))
    os.replace(file.with_name("other"), _log(file))

    with pytest.raises(Unavailable, match="removed or replaced"):
        await _add(store, "two")

    await store.close()


async def test_a_commit_does_not_ask_for_the_times_of_the_log(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives a file that was asked a new time with its next write, which a sync writes."""
    asked: list[str] = []
    stat = os.stat

    def watched(path: Any, **more: Any) -> os.stat_result:
        asked.append(str(path))
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", watched)
    await _add(store, "one", "two")

    assert str(file) in asked
    if sys.platform == "linux":
        assert str(_log(file)) not in asked


async def test_closing_saves_what_a_removed_log_held(store: SqliteStore, file: Path) -> None:
    await _add(store, "one", "two")
    _log(file).unlink()
    with pytest.raises(Unavailable):
        await _add(store, "three")

    await store.close()

    assert {"one", "two"} <= await _names(file)


async def test_the_copy_that_the_message_advises_saves_everything(
    store: SqliteStore, file: Path
) -> None:
    await _add(store, "one", "two")
    _log(file).unlink()
    with pytest.raises(Unavailable) as caught:
        await _add(store, "three")

    command = caught.value.message.partition("copy the log back: ")[2].split()
    shutil.copyfile(command[1], command[2])

    assert {"one", "two"} <= await _names(_copied(file, "copied"))


async def test_a_store_that_is_replaced_ends_its_writing(store: SqliteStore, file: Path) -> None:
    await _add(store, "one")
    shutil.copy(file, file.with_name("other"))
    os.replace(file.with_name("other"), file)

    with pytest.raises(Unavailable, match="removed or replaced"):
        await _add(store, "two")


async def test_ordinary_ends_raise_no_alarm(store: SqliteStore, file: Path) -> None:
    names = {"one", "two"}
    await _add(store, *names)
    assert await _names(_copied(file, "killed")) == names
    await store.scrub()
    assert await _names(_copied(file, "emptied")) == names
    await _add(store, "three")
    store._writer.connection.raw.wal_checkpoint(mode=1)
    assert await _names(_copied(file, "moved")) == {*names, "three"}
    await _add(store, "four")
    assert await _names(_copied(file, "begun-anew")) == {*names, "three", "four"}
    await store.close()

    assert not _log(file).exists()
    assert await _names(_copied(file, "closed")) == {*names, "three", "four"}


async def test_a_log_that_is_cut_while_its_emptying_is_noted_raises_no_alarm(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Path] = []
    true_write = sqlite_wal_anchor.write_record

    def photograph(descriptor: int, content: bytes, *, is_synced: bool) -> None:
        images.append(_copied(file, f"before{len(images)}"))
        true_write(descriptor, content, is_synced=is_synced)
        images.append(_copied(file, f"after{len(images)}"))

    await _add(store, "one")
    monkeypatch.setattr(sqlite_wal_anchor, "write_record", photograph)
    await store.scrub()
    await _add(store, "two")
    await store.close()
    monkeypatch.undo()

    found = [await _names(image) for image in images]
    assert all("one" in each for each in found)
    # Emptied: noted before and after; begun; closed.
    assert len(images) == 2 * 4


async def test_a_log_that_is_emptied_between_a_commit_and_its_record_raises_no_alarm(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect(file, KEY)
    advance = sqlite_wal_anchor.Anchor.advance

    def late(anchor: sqlite_wal_anchor.Anchor) -> None:
        if anchor is not other.anchor:
            other.empty_log()
        advance(anchor)

    await _add(store, "first")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_wal_anchor.Anchor, "advance", late)
        await _add(store, "second")
    other.close()
    await _add(store, "third")
    await store.close()

    assert await _names(file) == {"first", "second", "third"}


async def test_a_frame_that_another_process_has_not_committed_is_not_recorded(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect(file, KEY)
    advance = sqlite_wal_anchor.Anchor.advance

    def late(anchor: sqlite_wal_anchor.Anchor) -> None:
        """Empty the log and write uncommitted frames into it before the commit is recorded."""
        other.empty_log()
        other.query("PRAGMA cache_size = 1")
        other.query("BEGIN IMMEDIATE")
        other.query("CREATE TABLE spilled (content)")
        for _ in range(40):
            other.query("INSERT INTO spilled VALUES (zeroblob(20000))")
        advance(anchor)
        other.query("ROLLBACK")

    await _add(store, "first")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_wal_anchor.Anchor, "advance", late)
        await _add(store, "second")
    images = [_copied(file, "killed")]
    other.close()
    await store.close()

    assert [await _names(each) for each in (*images, file)] == [{"first", "second"}] * 2


@pytest.mark.torture
async def test_opening_beside_a_writer_that_resets_the_log_raises_no_alarm(
    store: SqliteStore, file: Path
) -> None:
    async def write() -> None:
        for number in range(60):
            await _add(store, f"n{number}")
            await store.scrub()

    def open_and_close() -> int:
        opened = 0
        while not writing.done():
            connect(file, KEY).close()
            opened += 1
        return opened

    writing = asyncio.ensure_future(write())
    opened = await asyncio.to_thread(open_and_close)
    await writing

    assert opened > 0


async def test_a_log_that_is_cut_off_between_a_commit_and_its_record_is_named(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = sqlite_wal_anchor.Anchor.advance

    def late(anchor: sqlite_wal_anchor.Anchor) -> None:
        os.truncate(f"{file}-wal", 0)
        advance(anchor)

    await _add(store, "first")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_wal_anchor.Anchor, "advance", late)
        with pytest.raises(Unavailable) as refused:
            await _add(store, "second")

    assert refused.value.code is Code.STORE_POISONED


async def test_only_one_connection_empties_the_log_at_a_time(
    store: SqliteStore, file: Path
) -> None:
    await _add(store, "one")
    record = sqlite_wal_anchor.load(file)
    with _log(file).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        assert not await store.scrub()

        assert sqlite_wal_anchor.load(file) == record
        # A commit does not wait for it: the anchor may be behind.
        await _add(store, "two")
    assert await store.scrub()
    assert await _names(_copied(file, "emptied")) == {"one", "two"}


async def test_a_restored_backup_needs_no_log(store: SqliteStore, file: Path) -> None:
    await _add(store, "one")
    backup = back_up(file, KEY, file.with_name("a.backup"))
    await _add(store, "two")
    copy = _copied(file, "restored")
    _log(copy).unlink()

    kept = restore(copy.with_name(backup.name), KEY, copy)

    assert await _names(copy) == {"one"}
    assert kept is not None
    # What was there before still says what it lost.
    with pytest.raises(Internal, match="acknowledged"):
        connect(kept, KEY)


async def test_a_damaged_anchor_is_written_anew(store: SqliteStore, file: Path) -> None:
    await _add(store, "one")
    copy = _copied(file, "damaged")
    _anchor(copy).write_bytes(b"\xff" * 64)

    assert await _names(copy) == {"one"}
    assert sqlite_wal_anchor.load(copy) is not None


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test; none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in started:
        with each:
            each.kill()


@pytest.mark.torture
@pytest.mark.slow
async def test_two_processes_that_are_killed_and_closed_raise_no_alarm(
    file: Path, processes: list[subprocess.Popen[str]]
) -> None:
    acknowledged: set[str] = set()
    for life in range(8):
        pair = [_writing(file, f"{life}{side}", 40) for side in "ab"]
        processes += pair
        # Each life ends one process by a kill and lets the other one close.
        for _ in range(5 + life):
            assert pair[0].stdout is not None
            acknowledged.add(f"{life}a{pair[0].stdout.readline().strip()}")
        pair[0].send_signal(signal.SIGKILL)
        output, errors = await asyncio.to_thread(pair[1].communicate)
        assert pair[1].returncode == 0, errors
        acknowledged |= {f"{life}b{number}" for number in output.split()}

    found = {name.rstrip("x") for name in await _names(file)}
    assert acknowledged - found == set()


def _writing(file: Path, name: str, count: int) -> "subprocess.Popen[str]":
    command: list[Any] = [sys.executable, "-c", WRITER, file, name, str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
