"""A program that brings zones in and promotes templates, and dies at a chosen touch of the disk."""

import os
import signal
from pathlib import Path

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.wiring import run_imports
from tests.torture.clients.house import settings
from tests.torture.disks import Disk, Operation


async def main(home: str, folder: str, dies_at: int) -> None:
    """Bring everything in; 0 means to live."""
    disk = Disk(recording=False)
    left = dies_at

    def count(operation: Operation) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    config = settings(Path(home), block_zones=Path(folder))
    outside = Environment(vfs=disk.vfs)
    async with open_holdfast(config=config, scope=RunScope.NONE, outside=outside) as house:
        disk.fault = count
        await run_imports(house)
        print("touches", dies_at - left)
        disk.fault = lambda operation: None
