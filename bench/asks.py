"""The short way: what `ask` adds to a bare turn, and what a blocking call adds to a verb."""

import asyncio
import time
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure, at_most, below, measures, middle
from bench.turns import TEXT_TURN, UNCAPPED, play_turn
from holdfast import open_holdfast, sync

ROUNDS = 7
EACH = 30
CALLS = 1_000


@measures("ask_turn")
def ask_turn(folder: Path) -> dict[str, Figure]:
    """Ask in a session, and alternate with messages that are sent and followed."""
    return asyncio.run(_ask_turn(folder))


async def _ask_turn(folder: Path) -> dict[str, Figure]:
    script = folder / "script.yaml"
    script.write_text(TEXT_TURN * (EACH * (ROUNDS + 1)))
    asked, bare = [], []
    async with open_holdfast(folder / "home") as hf:
        request = replace(UNCAPPED, model=f"scripted:{script}")
        one, other = await hf.open(request=request), await hf.open(request=request)
        for number in range(ROUNDS + 1):
            started = time.perf_counter()
            for _ in range(EACH):
                await play_turn(hf, one, "Do it.")
            between = time.perf_counter()
            for _ in range(EACH):
                await hf.ask("Do it.", session=other.id)
            # The first round warms up.
            if number:
                bare.append((between - started) * 1000 / EACH)
                asked.append((time.perf_counter() - between) * 1000 / EACH)
    return {"ask_turn": at_most(middle(asked), "ms", middle(bare), 1.2)}


@measures("sync_call_us")
def sync_call(folder: Path) -> dict[str, Figure]:
    """Call a verb that does nothing from a thread without a loop."""
    spent = []
    with sync.open_holdfast(folder / "home") as hf:
        for _ in range(ROUNDS):
            started = time.perf_counter()
            for _ in range(CALLS):
                hf.defaults()
            spent.append((time.perf_counter() - started) * 1_000_000 / CALLS)
    return {"sync_call_us": below(middle(spent), "µs", 300)}
