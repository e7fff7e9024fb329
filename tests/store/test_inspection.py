"""What can be told about a store without changing anything."""

from pathlib import Path

import pytest

from holdfast.store.sqlite.checks import (
    is_filled,
    library_version,
    open_permissions,
    unsuitable_file_system,
)
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.migrate import up
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import an_agent
from tests.store.conftest import KEY


def test_the_version_of_sqlite_is_told() -> None:
    assert tuple(map(int, library_version().split("."))) >= (3, 51, 3)


def test_what_others_can_reach_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name, mode in {"history.db": 0o640, "key": 0o600, "notes.txt": 0o644}.items():
        (home / name).touch()
        (home / name).chmod(mode)

    assert open_permissions(home) == [
        f"{home / 'history.db'} has mode 0640: others than its owner can reach it."
    ]
    assert open_permissions(tmp_path / "nothing") == []


def test_a_file_system_that_forgets_is_named(tmp_path: Path) -> None:
    assert unsuitable_file_system(tmp_path) is None
    assert unsuitable_file_system(Path("/dev/shm")) == "tmpfs"


@pytest.mark.anyio
async def test_a_store_is_filled_when_somebody_made_something(file: Path) -> None:
    connection = connect(file, KEY)
    empty = is_filled(connection)
    up(connection)
    fresh = is_filled(connection)
    store = SqliteStore(file, KEY)
    await store.write(lambda tx: tx.agents.add(an_agent()))
    await store.close()
    filled = is_filled(connection)
    connection.close()

    assert (empty, fresh, filled) == (False, False, True)
