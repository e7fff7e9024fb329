"""The end of a row: somebody opens the home once more, plays what waits, and goes."""

import asyncio
import time
from pathlib import Path

from holdfast import open_holdfast
from tests.torture.clients.house import settings
from tests.torture.notebooks import key_beside, reading

WAITING = """
SELECT count(*)
  FROM sessions
 WHERE turn > settled
   AND status IN ('pending', 'running', 'idle')
"""


def waiting(home: Path) -> int:
    """Return in how many sessions a turn is open or waits."""
    with reading(home / "history.db", key_beside(home)) as connection:
        return int(connection.execute(WAITING).fetchall()[0][0])


async def recovered(home: Path, *, within: float = 20) -> tuple[float, float]:
    """Open the home and play all that waits; return the seconds to ready and to quiet."""
    begun = time.monotonic()
    async with open_holdfast(config=settings(home)):
        ready = time.monotonic() - begun
        async with asyncio.timeout(within):
            while waiting(home):
                await asyncio.sleep(0.02)
        return ready, time.monotonic() - begun
