"""The anchor of the log: acknowledged changes that are missing are named, a torn tail is not."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Internal, Unavailable
from holdfast.domain.models import model_of
from holdfast.store.sqlite import wal_anchor as sqlite_wal_anchor
from holdfast.store.sqlite.backup import back_up, restore
from holdfast.store.sqlite.connection import connect
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
