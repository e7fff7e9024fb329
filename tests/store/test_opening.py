"""Opening a store: encrypted unless told otherwise, and never another's or a newer one."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import Config, RunScope, open_holdfast
from holdfast.domain.errors import Code, Conflict, HoldfastError, Internal, Unavailable
from holdfast.domain.models import model_of
from holdfast.store.sqlite.backup import back_up, open_draft
from holdfast.store.sqlite.connection import (
    APPLICATION_ID,
    PLAIN_HEADER,
    cipher_of,
    connect,
    is_plain,
    require_version,
    translate_error,
)
from holdfast.store.sqlite.migrate import newest, up
from holdfast.store.sqlite.store import SqliteStore
from tests.houses import raw
from tests.marks import demands, each_case
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

OTHER_KEY = bytes(32)
ONE = model_of("a:one")


async def _filled(file: Path, key: bytes | None) -> bytes:
    """Make a store with a model in it, and return its bytes."""
    store = SqliteStore(file, key)
    await store.write(lambda tx: tx.models.add(ONE))
    await store.close()
    return _bytes(file)


def _bytes(file: Path) -> bytes:
    return file.read_bytes()


def _flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


async def _models(file: Path, key: bytes | None) -> list[object]:
    store = SqliteStore(file, key)
    try:
        return list(await store.read(lambda tx: tx.models.all()))
    finally:
        await store.close()


def _refused(file: Path, key: bytes | None) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        SqliteStore(file, key)
    return caught.value


async def test_a_store_is_read_again_with_its_key(file: Path) -> None:
    content = await _filled(file, KEY)

    assert not content.startswith(PLAIN_HEADER)
    assert await _models(file, KEY) == [ONE]


async def test_a_wrong_key_is_refused_and_changes_nothing(file: Path) -> None:
    content = await _filled(file, KEY)

    for key in (OTHER_KEY, None):
        refused = _refused(file, key)
        assert isinstance(refused, Unavailable)
        assert refused.code is Code.STORE_KEY_WRONG
    assert _bytes(file) == content
    assert await _models(file, KEY) == [ONE]


async def test_a_plain_store_stays_plain_whatever_the_key(file: Path) -> None:
    await _filled(file, None)

    assert is_plain(file)
    assert await _models(file, KEY) == [ONE]
    assert is_plain(file)


@pytest.mark.parametrize("content", [b"not a database", b"hello world\n" * 1000, bytes(8192)])
def test_a_file_that_is_no_store_is_refused_and_left_alone(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    assert _refused(file, KEY).code is Code.STORE_KEY_WRONG
    assert file.read_bytes() == content


def test_an_empty_file_becomes_a_store(file: Path) -> None:
    file.touch()

    connection = connect(file, KEY)

    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def _foreign(file: Path, application: int = 0) -> None:
    connection = apsw.Connection(str(file))
    connection.execute("CREATE TABLE recipes (name)")
    connection.pragma("application_id", application)
    connection.close()


@pytest.mark.parametrize("application", [0, 0x12345678])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(
    file: Path, application: int
) -> None:
    _foreign(file, application)
    content = file.read_bytes()

    refused = _refused(file, KEY)

    assert isinstance(refused, Conflict)
    assert refused.code is Code.STORE_FOREIGN
    assert file.read_bytes() == content
    assert not file.with_name("history.db-wal").exists()


@pytest.mark.parametrize(
    ("version", "code"), [(99, Code.SCHEMA_NEWER), (-1, Code.SCHEMA_OLDER)], ids=["newer", "older"]
)
async def test_a_store_of_another_schema_is_refused_and_says_which(
    file: Path, home: Path, version: int, code: Code
) -> None:
    await _filled(file, KEY)
    with raw(home) as connection:
        connection.pragma("user_version", version)

    refused = _refused(file, KEY)

    assert isinstance(refused, Conflict)
    assert (refused.code, refused.details) == (code, {"store": version, "program": newest()})
    with raw(home) as connection:
        assert connection.execute("SELECT count(*) FROM models").get == 1


@each_case("version", ["3.51.2", "3.40.1", "2.9.9"])
def test_an_unsafe_sqlite_is_refused(version: str) -> None:
    with pytest.raises(Internal) as caught:
        require_version(version)

    assert version in caught.value.message


@each_case("version", ["3.51.3", "3.52.0", "3.54.0.1", "4.0.0"])
def test_a_safe_sqlite_is_taken(version: str) -> None:
    require_version(version)


def test_a_connection_syncs_fully_and_trusts_nothing(file: Path) -> None:
    connection = connect(file, KEY)
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "secure_delete": 1,
        "temp_store": 2,
    }

    found = {name: connection.pragma(name) for name in wanted}
    connection.close()

    assert found == wanted


def test_a_store_that_others_make_at_the_same_moment_is_waited_for(file: Path, home: Path) -> None:
    """While somebody writes to a file without a log, SQLite refuses one, and does not wait."""
    with raw(home) as other:
        other.pragma("application_id", APPLICATION_ID)
        other.execute("BEGIN IMMEDIATE")
        leaving = threading.Timer(0.05, lambda: other.execute("COMMIT"))
        leaving.start()

        connection = connect(file, KEY)
        leaving.join()

    assert connection.pragma("journal_mode") == "wal"
    connection.close()


@each_case(
    ("error", "code"),
    [
        (apsw.FullError, Code.STORAGE_FULL),
        (apsw.NotADBError, Code.STORE_KEY_WRONG),
        (apsw.CorruptError, Code.CORRUPT_STORE),
        (apsw.BusyError, Code.STORE_BUSY),
        (apsw.LockedError, Code.STORE_BUSY),
        (apsw.ReadOnlyError, Code.STORE_UNWRITABLE),
        (apsw.CantOpenError, Code.STORE_UNWRITABLE),
        (apsw.PermissionsError, Code.STORE_UNWRITABLE),
        (apsw.IOError, Code.STORE_POISONED),
        (apsw.NoMemError, Code.STORE_POISONED),
        (apsw.SQLError, Code.INTERNAL),
    ],
)
def test_every_error_of_sqlite_has_a_meaning(error: type[apsw.Error], code: Code) -> None:
    told = translate_error(error("secret detail"))

    assert told.code is code
    assert "secret detail" not in told.message


@demands("S0-280", "S0-322")
async def test_a_marker_is_in_no_byte_of_any_file_of_an_encrypted_home(home: Path) -> None:
    marker = "xyzzy-marker-plugh"
    async with open_holdfast(home) as house:
        await house.agents.create(house.owner, {"name": "Helper", "system_prompt": marker})
        session = await house.open("helper")
        await house.send(session.id, f"repeat after me: {marker}")
        async for event in house.follow(session.id):
            if type(event.payload).__name__ == "TurnEnded":
                break
        rows = await house.read(session.id)
        while_open = _files_with(home, marker)

    assert [marker in row.text for row in rows] == [True, True]
    assert (while_open, _files_with(home, marker)) == ([], [])


def _files_with(home: Path, marker: str) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file() and _holds(path, marker)]


def _holds(path: Path, marker: str) -> bool:
    content = path.read_bytes()
    return marker.encode() in content or marker.encode("utf-16-le") in content


@pytest.fixture
def open_mask() -> Iterator[None]:
    """Let every new file be readable by everyone, unless its maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("encryption", ["auto", "off"])
async def test_every_file_of_a_home_is_its_owners_only(
    home: Path, open_mask: None, encryption: str
) -> None:
    config = Config(home=home, encryption=encryption)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        modes = _modes(home)

    desk = Path(session.context.working_dir)
    wanted = dict.fromkeys(("home", "workspaces", desk.parent.name, desk.name), 0o700)
    files = {f"history.db{end}" for end in ("", "-wal", "-shm", "-reserve", "-anchor")}
    files |= {"key"} if encryption == "auto" else set()
    assert modes == wanted | dict.fromkeys(files, 0o600)


def _modes(home: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (home, *home.rglob("*"))}


async def test_a_store_of_an_earlier_version_keeps_its_cipher(file: Path) -> None:
    with open_draft(file, KEY, cipher="chacha20") as draft:
        up(draft)
    store = SqliteStore(file, KEY)
    await store.write(lambda tx: tx.models.add(ONE))
    await store.close()

    assert cipher_of(file) == "chacha20"
    assert await _models(file, KEY) == [ONE]
    copy = back_up(file, KEY, file.with_name("backup.db"))
    assert cipher_of(copy) == "chacha20"
    assert await _models(copy, KEY) == [ONE]


async def test_a_page_of_a_new_store_is_authenticated(file: Path) -> None:
    await _filled(file, KEY)

    assert cipher_of(file) == "aegis"
    _flip(file, 4096 + 100)
    with pytest.raises(Internal) as caught:
        back_up(file, KEY, file.with_name("backup.db"))
    assert caught.value.code is Code.CORRUPT_STORE
