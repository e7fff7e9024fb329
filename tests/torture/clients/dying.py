"""A process that dies in the middle of a commit: its frames are written, and not yet synced."""

import os
import random
import signal
from pathlib import Path

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from tests.torture.attempts import Record
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.disks import Disk, Operation


async def main(home: str, record: str, session: str, size: int) -> None:
    """Send a message of so many characters and die when the log is to be synced."""
    disk = Disk(recording=False)

    def die_at_sync(operation: Operation) -> None:
        if (operation.kind, operation.file) == ("sync", "wal"):
            os.kill(os.getpid(), signal.SIGKILL)

    outside = Environment(vfs=disk.vfs)
    config = settings(Path(home))
    async with open_holdfast(config=config, scope=RunScope.NONE, outside=outside) as house:
        disk.fault = die_at_sync
        client = Client(house, Record(Path(record)))
        await client.send(session, new_id(random.Random(size)), "x" * size)
