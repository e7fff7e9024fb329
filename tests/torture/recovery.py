"""The end of a row: somebody opens the home once more, plays what waits, and goes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import open_holdfast
from tests.torture.clients.house import settings
from tests.torture.crew import PATIENCE
from tests.torture.notebooks import looking

WAITING = """
SELECT id
  FROM sessions
 WHERE turn > settled
   AND status IN ('pending', 'running', 'idle')
"""


def waiting(home: Path) -> int:
    """Return in how many sessions a turn is open or waits."""
    with looking(home) as connection:
        return len(connection.execute(WAITING).fetchall())


async def recovered(home: Path) -> tuple[float, float]:
    """Open the home and play all that waits; return the seconds to ready and to quiet."""
    begun = time.monotonic()
    async with open_holdfast(config=settings(home)):
        ready = time.monotonic() - begun
        await quiet(home)
        return ready, time.monotonic() - begun


async def quiet(home: Path) -> None:
    """Return when no turn is open or waits."""
    await until(lambda: not waiting(home))


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again until a condition holds, and let everybody else work meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 — seen from outside, nobody rings a bell
            await asyncio.sleep(0.01)
