"""A disk that fails, fills up or lies: we refuse, loudly, and keep what was acknowledged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import Code, HoldfastError, Internal, StorageFull, Unavailable
from holdfast.domain.models import Model, model_of
from holdfast.store.sqlite.store import SqliteStore
from tests.store.conftest import KEY
from tests.store.faulty_vfs import DISK, VFS, failing
from tests.store.holding import held

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = (model_of(f"a:{name}") for name in ("one", "two", "three"))


@pytest.fixture(autouse=True)
def healthy_again() -> Iterator[None]:
    """Leave the disk healthy."""
    yield
    DISK.behave()


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """Open a store on the disk that can fail, with one model in it."""
    store = SqliteStore(file, KEY, vfs=VFS)
    await _add(store, ONE)
    yield store
    DISK.behave()
    await store.close()


async def _add(store: SqliteStore, model: Model, *, urgent: bool = False) -> None:
    await store.write(lambda tx: tx.models.add(model), urgent=urgent)


async def _refused(store: SqliteStore, model: Model, *, urgent: bool = False) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await _add(store, model, urgent=urgent)
    return caught.value


async def _models(store: SqliteStore) -> set[Model]:
    return set(await store.read(lambda tx: tx.models.all()))


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_or_sync_acknowledges_nothing_until_the_store_was_verified(
    store: SqliteStore, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    DISK.behave(failing(operation, "-wal", apsw.IOError("broken"), times=1))

    refused = await _refused(store, TWO)
    opened = DISK.asked["open", "history.db"]
    with caplog.at_level(logging.WARNING):
        await _add(store, THREE)

    assert isinstance(refused, Unavailable)
    assert refused.code is Code.STORE_POISONED
    assert DISK.asked["open", "history.db"] == opened + 1
    assert "the store was reopened and verified" in caplog.messages
    assert {ONE, THREE} <= await _models(store)


async def test_all_callers_of_a_group_learn_the_same_fate(store: SqliteStore) -> None:
    async with held(store):
        others = [asyncio.create_task(_refused(store, model)) for model in (TWO, THREE)]
        DISK.behave(failing("sync", "-wal", apsw.IOError("broken"), times=1))

    assert {error.code for error in await asyncio.gather(*others)} == {Code.STORE_POISONED}


async def test_a_store_stays_poisoned_while_it_cannot_be_opened(store: SqliteStore) -> None:
    DISK.behave(failing("sync", "-wal", apsw.IOError("broken")))
    await _refused(store, TWO)
    DISK.behave(failing("open", "history.db", apsw.CantOpenError("gone")))

    assert (await _refused(store, TWO)).code is Code.STORE_UNWRITABLE
    assert (await _refused(store, TWO)).code is Code.STORE_UNWRITABLE
    DISK.behave()
    await _add(store, THREE)
    assert {ONE, THREE} <= await _models(store)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (apsw.BusyError("locked"), Code.STORE_BUSY),
        (apsw.FullError("full"), Code.STORAGE_FULL),
        (apsw.IOError("broken"), Code.STORE_POISONED),
    ],
)
async def test_a_verification_that_fails_does_not_make_a_store_sound(
    store: SqliteStore, error: Exception, code: Code
) -> None:
    DISK.behave(failing("sync", "-wal", apsw.IOError("broken"), times=1))
    await _refused(store, TWO)
    opened = DISK.asked["open", "history.db"]
    DISK.behave(failing("write", "history.db", error, times=1))

    assert (await _refused(store, TWO)).code is code
    await _add(store, THREE)

    assert DISK.asked["open", "history.db"] == opened + 2


async def test_a_store_that_is_found_damaged_acknowledges_nothing_more(
    file: Path,
) -> None:
    store = SqliteStore(file, None, vfs=VFS)
    try:
        await _add(store, ONE)
        assert await store.scrub()
        DISK.behave(failing("sync", "-wal", apsw.IOError("broken"), times=1))
        await _refused(store, TWO)
        _scribble(file)

        for _ in range(2):
            refused = await _refused(store, THREE)
            assert isinstance(refused, Internal)
            assert refused.code is Code.CORRUPT_STORE
    finally:
        await store.close()


def _scribble(file: Path) -> None:
    """Overwrite the page of the `models` table."""
    content = file.read_bytes()
    at = content.index(b'"name":"one"') // 4096 * 4096
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff" * 64)


async def test_a_full_disk_refuses_and_changes_nothing(store: SqliteStore) -> None:
    DISK.behave(failing("write", "-wal", apsw.FullError("full"), times=1))

    refused = await _refused(store, TWO)

    assert isinstance(refused, StorageFull)
    assert refused.code is Code.STORAGE_FULL
    assert await _models(store) == {ONE}
    await _add(store, THREE)
    assert await _models(store) == {ONE, THREE}


async def test_on_a_full_disk_urgent_work_is_taken_from_the_reserve(
    store: SqliteStore, file: Path
) -> None:
    reserve = file.with_name("history.db-reserve")
    assert reserve.stat().st_size == 4 << 20

    def full_while_reserved(operation: str, path: Path) -> None:
        if operation == "write" and reserve.exists():
            raise apsw.FullError("full")

    DISK.behave(full_while_reserved)
    await _add(store, TWO, urgent=True)

    assert await _models(store) == {ONE, TWO}
    assert not reserve.exists()


async def test_urgent_work_that_the_reserve_cannot_help_is_refused_too(
    store: SqliteStore,
) -> None:
    DISK.behave(failing("write", "-wal", apsw.FullError("full")))

    assert isinstance(await _refused(store, TWO, urgent=True), StorageFull)
    assert await _models(store) == {ONE}


async def test_what_is_in_the_way_of_a_reserve_does_not_make_the_disk_full(
    store: SqliteStore, file: Path
) -> None:
    DISK.behave(failing("write", "-wal", apsw.FullError("full"), times=1))
    await _refused(store, TWO)
    obstacle = file.with_name("history.db-reserve")
    obstacle.mkdir()

    await _add(store, TWO)
    await _add(store, THREE, urgent=True)

    assert await _models(store) == {ONE, TWO, THREE}
    obstacle.rmdir()


async def test_a_reserve_that_was_given_up_is_taken_again_when_there_is_room(
    store: SqliteStore, file: Path
) -> None:
    DISK.behave(failing("write", "-wal", apsw.FullError("full"), times=1))
    await _add(store, TWO, urgent=True)

    await _add(store, THREE)

    assert file.with_name("history.db-reserve").stat().st_size == 4 << 20
    assert await _models(store) == {ONE, TWO, THREE}


async def test_a_look_at_a_store_that_cannot_be_opened_is_refused(store: SqliteStore) -> None:
    DISK.behave(failing("sync", "-wal", apsw.IOError("broken")))
    await _refused(store, TWO)
    DISK.behave(failing("open", "history.db", apsw.CantOpenError("gone")))
    await _refused(store, TWO)

    with pytest.raises(HoldfastError):
        await store.version()


async def test_a_fault_in_the_writer_itself_reaches_its_callers_and_stops_nothing(
    store: SqliteStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = file.with_name("history.db-reserve")
    reserve.unlink()
    reserve.mkdir()
    DISK.behave(failing("write", "-wal", apsw.FullError("full"), times=1))

    refused = await _refused(store, TWO)

    assert isinstance(refused, Internal)
    assert "the writer failed with an internal error" in caplog.messages
    reserve.rmdir()
    await _add(store, THREE)
    assert await _models(store) == {ONE, THREE}


async def test_damage_that_shows_in_the_middle_of_work_is_told_to_all_of_its_group(
    store: SqliteStore,
) -> None:
    async with held(store):
        broken = asyncio.create_task(store.write(lambda tx: _broken()))
        other = asyncio.create_task(_refused(store, TWO))

    with pytest.raises(Internal) as caught:
        await broken
    assert (caught.value.code, (await other).code) == (Code.CORRUPT_STORE, Code.CORRUPT_STORE)
    assert await _models(store) == {ONE}


async def test_a_connection_that_cannot_even_be_rolled_back_is_opened_anew(
    store: SqliteStore,
) -> None:
    opened = DISK.asked["open", "history.db"]

    async def close_and_break(tx: object) -> None:
        store._writer.connection.raw.close()
        raise apsw.CorruptError("damaged")

    with pytest.raises(Internal):
        await store.write(close_and_break)
    await _add(store, THREE)

    assert DISK.asked["open", "history.db"] == opened + 1
    assert await _models(store) == {ONE, THREE}


async def test_a_read_that_fails_is_told_and_the_next_one_works(
    store: SqliteStore, file: Path
) -> None:
    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: _broken())
    assert caught.value.code is Code.CORRUPT_STORE
    assert await _models(store) == {ONE}


async def _broken() -> None:
    raise apsw.CorruptError("damaged")
