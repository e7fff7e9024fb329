"""Durable appends through the services, one session at a time and a hundred at once."""

import asyncio
import time
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure, at_least, measures, middle
from bench.yardsticks import raw_appends, raw_store
from holdfast import Holdfast, RunScope, Session, open_holdfast
from holdfast.cli.command import run_on_loop

ROUNDS = 7
ROWS = 600
WARM_UP = 3_000
TEXT = "x" * 200


@measures("append_1", "append_100")
def appends(folder: Path) -> dict[str, Figure]:
    """Alternate yardstick and ours, so that both meet the same disk."""
    return run_on_loop(_appends(folder))


async def _appends(folder: Path) -> dict[str, Figure]:
    raw = raw_store(folder / "raw.db")
    bare, one, hundred = [], [], []
    async with open_holdfast(folder / "home", scope=RunScope.NONE) as holdfast:
        single = await holdfast.open()
        many = [await holdfast.open() for _ in range(100)]
        # A log that has been round once no longer grows, which is how it spends its life.
        raw_appends(raw, 0, WARM_UP)
        await send_all(holdfast, [single], WARM_UP)
        for number in range(1, ROUNDS + 1):
            bare.append(raw_appends(raw, WARM_UP * number, ROWS))
            one.append(await send_all(holdfast, [single], ROWS))
            hundred.append(await send_all(holdfast, many, ROWS // 20))
    figures = {
        "append_1": at_least(middle(one), "messages/s", middle(bare), 0.5),
        "append_100": at_least(middle(hundred), "messages/s", middle(bare), 6),
    }
    note = "on uvloop, as `holdfast serve`"
    return {name: replace(figure, note=note) for name, figure in figures.items()}


async def send_all(holdfast: Holdfast, sessions: list[Session], rows: int) -> float:
    """Return messages per second, each acknowledged before the session's next one."""

    async def one(session: Session) -> None:
        for _ in range(rows):
            await holdfast.send(session.id, TEXT)

    started = time.perf_counter()
    await asyncio.gather(*(one(session) for session in sessions))
    return len(sessions) * rows / (time.perf_counter() - started)
