"""A program that changes the schema on a disk of ours, and dies at a chosen touch of the disk."""

import os
import signal
from pathlib import Path

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.store.sqlite import migrate as sqlite_migrate
from holdfast.store.sqlite.connection import connect
from tests.torture.clients.house import settings
from tests.torture.disks import Disk, Operation
from tests.torture.notebooks import key_beside


async def main(home: str, direction: str, dies_at: int) -> None:
    """Open a new home, or take the schema down or up; 0 means to live."""
    disk = Disk(recording=False)
    left = dies_at

    def count(operation: Operation) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    disk.fault = count
    await _change(home, direction, disk)
    print("touches", dies_at - left)


async def _change(home: str, direction: str, disk: Disk) -> None:
    if direction == "open":
        outside = Environment(vfs=disk.vfs)
        async with open_holdfast(config=settings(Path(home)), scope=RunScope.NONE, outside=outside):
            return
    connection = connect(Path(home) / "history.db", key_beside(Path(home)), vfs=disk.vfs)
    if direction.startswith("down to "):
        sqlite_migrate.down(connection, int(direction.removeprefix("down to ")))
    elif direction == "down":
        sqlite_migrate.down(connection, 0)
    elif direction == "down without a transaction":
        connection.query(sqlite_migrate.migrations()[-1].down)
    else:
        sqlite_migrate.up(connection)
    connection.close()
