"""A server that is timed from its first breath until it is ready, and then plays what waits."""

import asyncio
import os
import signal
import time
from pathlib import Path

from holdfast import SessionId, open_holdfast
from tests.torture.attempts import Record
from tests.torture.clients.house import settings
from tests.torture.servers import holds


async def main(home: str, record: str, talk_to: list[str]) -> None:
    """Start; with sessions to talk to, die as soon as all of them run; without, just say when."""
    config = settings(Path(home))
    if talk_to:
        # No turn ends before the last one has begun, however slow the machine is.
        endless = Path(home).parent / "endless.yaml"
        endless.write_text('- {text: "never said", delay_ms: 3600000, repeat: 1000000}\n')
        config = settings(Path(home), default_model=f"scripted:{endless}")
    begun = time.monotonic()
    async with open_holdfast(config=config) as house:
        Record(Path(record)).note(ready_ms=round((time.monotonic() - begun) * 1000))
        for session in talk_to:
            await house.send(SessionId(session), "some words")
        while talk_to:
            states = holds(Path(home))
            if all(states[session].status == "running" for session in talk_to):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.02)
