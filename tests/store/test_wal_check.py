"""The log of a store: what was acknowledged in it is never dropped without a word."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.errors import Code, Internal
from holdfast.domain.models import model_of
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.wal_check import require_whole
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

FRAME = 24 + 4096


@pytest.fixture
async def left(store: SqliteStore, file: Path) -> Path:
    """Return what a power cut leaves after three commits that are in the log only."""
    await store.scrub()
    for name in ("one", "two", "three"):
        anchor = _anchor(file).read_bytes()
        await store.write(lambda tx, n=name: tx.models.add(model_of(f"a:{n}")))
    copy = _copied(file)
    # As after a power cut: the anchor is written without a sync, and may be behind the log.
    _anchor(copy).write_bytes(anchor)
    return copy


def _copied(file: Path) -> Path:
    folder = file.parent.with_name("left")
    shutil.copytree(file.parent, folder, ignore=shutil.ignore_patterns("*-shm"))
    return folder / file.name


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _anchor(file: Path) -> Path:
    return file.with_name(f"{file.name}-anchor")


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def _names(file: Path) -> set[str]:
    store = SqliteStore(file, KEY)
    try:
        return {model.name for model in await store.read(lambda tx: tx.models.all())}
    finally:
        await store.close()


async def test_a_whole_log_is_taken_whole(left: Path) -> None:
    assert await _names(left) == {"one", "two", "three"}


async def test_damage_before_an_acknowledged_commit_is_refused_and_nothing_cleared_away(
    left: Path,
) -> None:
    _flip(_log(left), 32 + 100)
    content = _log(left).read_bytes()

    for _ in range(2):
        with pytest.raises(Internal) as caught:
            SqliteStore(left, KEY)
        assert caught.value.code is Code.CORRUPT_STORE
        assert caught.value.details["recovered"] == 0
        assert caught.value.details["acknowledged"] > 0

    assert _log(left).read_bytes() == content


async def test_a_log_that_was_moved_away_is_refused_and_no_new_one_is_made(left: Path) -> None:
    _log(left).rename(left.with_name("moved"))

    with pytest.raises(Internal, match="salvage") as caught:
        SqliteStore(left, KEY)

    assert caught.value.code is Code.CORRUPT_STORE
    assert not _log(left).exists()
    left.with_name("moved").rename(_log(left))
    assert await _names(left) == {"one", "two", "three"}


async def test_a_last_write_that_was_cut_off_is_nothing_that_was_acknowledged(left: Path) -> None:
    log = _log(left)
    log.write_bytes(log.read_bytes()[: -FRAME // 2])

    assert await _names(left) == {"one", "two"}


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 4096])
async def test_a_log_that_holds_nothing_is_refused_where_something_was_acknowledged(
    left: Path, content: bytes
) -> None:
    _log(left).write_bytes(content)

    with pytest.raises(Internal, match="acknowledged"):
        SqliteStore(left, KEY)

    assert _log(left).read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 4096])
async def test_without_an_anchor_a_log_that_holds_nothing_is_no_damage(
    left: Path, content: bytes
) -> None:
    _anchor(left).unlink()
    _log(left).write_bytes(content)

    assert await _names(left) == set()


async def test_a_log_that_was_begun_anew_counts_from_its_own_beginning(
    store: SqliteStore, file: Path
) -> None:
    for name in ("one", "two", "three"):
        await store.write(lambda tx, n=name: tx.models.add(model_of(f"a:{n}" + "x" * 9_000)))
    # Moved into the file, but not cut: frames of the round before stand behind the new ones.
    store._writer.connection.raw.wal_checkpoint(mode=1)
    await store.write(lambda tx: tx.models.add(model_of("a:four")))

    assert len(await _names(_copied(file))) == 4


class _Watched:
    """A connection beside which others act: after its first look, and before its second."""

    def __init__(self, raw: apsw.Connection, *meanwhile: Callable[[], object]) -> None:
        self._raw = raw
        self._meanwhile = list(meanwhile)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def wal_checkpoint(self, **given: Any) -> tuple[int, int]:
        told = self._raw.wal_checkpoint(**given)
        self._meanwhile.pop(0)()
        return told if self._meanwhile else self._raw.wal_checkpoint(**given)


def test_a_log_that_is_begun_anew_while_it_is_looked_at_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    raw, other = apsw.Connection(str(path)), apsw.Connection(str(path))
    other.pragma("journal_mode", "wal")
    other.execute("CREATE TABLE rows (row)")
    raw.execute("SELECT * FROM rows").fetchall()

    def write_twice() -> None:
        for _ in range(2):
            other.execute("INSERT INTO rows VALUES (1)")

    def begin_anew() -> None:
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        other.execute("INSERT INTO rows VALUES (2)")

    watched = _Watched(raw, write_twice, begin_anew)
    require_whole(watched, path)  # type: ignore[arg-type]

    assert watched._meanwhile == []
