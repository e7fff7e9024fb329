"""A log that lost something acknowledged is refused at every door, and left as it is."""

import shutil
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Internal
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import a_model

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
FRAME = 24 + 4096


@pytest.fixture
async def cut_off(tmp_path: Path) -> Path:
    """A store as a kill leaves it: its last commits are in the log only."""
    store = SqliteStore(tmp_path / "history.db", KEY)
    for number in range(8):
        await store.write(lambda tx, n=number: tx.models.add(a_model(f"a:{n}")))
    left = tmp_path / "left"
    left.mkdir()
    for name in ("history.db", "history.db-wal"):
        shutil.copy(tmp_path / name, left / name)
    await store.close()
    return left / "history.db"


def flipped(store: Path, place: int) -> bytes:
    log = Path(f"{store}-wal")
    content = bytearray(log.read_bytes())
    content[place] ^= 4
    log.write_bytes(content)
    return bytes(content)


def log_of(store: Path) -> bytes:
    return Path(f"{store}-wal").read_bytes()


def torn(store: Path) -> None:
    log = Path(f"{store}-wal")
    log.write_bytes(log.read_bytes()[:-100])


async def test_a_log_that_a_kill_left_is_whole(cut_off: Path) -> None:
    connection = connect(cut_off, KEY)

    assert connection.query("SELECT count(*) FROM models") == [(8,)]
    connection.close()


@pytest.mark.parametrize("place", [0, 3, 9, 16, 17, 20, 24, 31, 32 + 100, 32 + 5 * FRAME + 9])
async def test_a_bit_in_the_way_of_what_was_acknowledged_is_found(
    cut_off: Path, place: int
) -> None:
    log = flipped(cut_off, place)

    with pytest.raises(Internal) as caught:
        connect(cut_off, KEY)

    assert caught.value.code is Code.CORRUPT_STORE
    assert log_of(cut_off) == log


async def test_a_last_commit_that_is_torn_was_never_acknowledged(cut_off: Path) -> None:
    torn(cut_off)

    connection = connect(cut_off, KEY)

    assert connection.query("SELECT count(*) FROM models") == [(7,)]
    connection.close()
