"""A server in a process of its own: plays every waiting turn until it is asked to stop."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from holdfast import open_holdfast
from holdfast.app import Environment
from tests.torture.clients.house import settings
from tests.torture.machine import DATABASE
from tests.torture.spies import UnfencedStore

TURNS = 200
# Where the tools of a session leave a line for each time that they ran.
EFFECTS = "effects.txt"


async def main(
    home: str, said: str, delay_ms: int = 800, unfenced: bool = False, tools: bool = False
) -> None:
    """Serve; what this server's model says begins with a word of its own."""
    script = Path(home).parent / f"{said}.json"
    _write(script, steps(said, delay_ms, tools=tools))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    config = settings(Path(home), default_model=f"scripted:{script}")
    if unfenced and DATABASE in os.environ:
        save_anyway()
    outside = Environment(wrap=UnfencedStore) if unfenced else Environment()
    async with open_holdfast(config=config, outside=outside):
        print("ready", flush=True)
        await stopping.wait()


def _write(script: Path, said: list[dict[str, Any]]) -> None:
    script.write_text(json.dumps(said))


def steps(said: str, delay_ms: int, *, tools: bool) -> list[dict[str, Any]]:
    """Return what the model says; with tools, it leaves a line somewhere before it speaks."""
    words = {"text": f"{said} " * 600, "delay_ms": delay_ms}
    if not tools:
        return [words | {"repeat": 1_000_000}]
    line = {"path": EFFECTS, "content": f"{said}\n", "mode": "append"}
    return [
        {"tool_calls": [{"name": "write_file", "arguments": line}], "delay_ms": delay_ms},
        words | {"delay_ms": 0},
    ] * TURNS


def save_anyway() -> None:
    """Take the second fence away: the epoch and the holder that a commit expects on Postgres."""
    from holdfast.store.postgres import commit

    fence = "s.epoch = given.was_epoch\n       AND s.holder IS NOT DISTINCT FROM given.was_holder"
    assert fence in commit._FOUND
    commit._FOUND = commit._FOUND.replace(fence, "TRUE")  # type: ignore[misc]
