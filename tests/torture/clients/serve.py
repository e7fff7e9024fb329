"""A server in a process of its own: plays every waiting turn until it is asked to stop."""

import asyncio
import signal
from pathlib import Path

from holdfast import open_holdfast
from holdfast.bootstrap import Outside
from tests.torture.clients.house import settings
from tests.torture.spies import UnfencedStore


async def main(home: str, said: str, delay_ms: int = 800, unfenced: bool = False) -> None:
    """Serve; what this server's model says begins with a word of its own."""
    script = Path(home).parent / f"{said}.yaml"
    words = f"{said} " * 600
    script.write_text(f'- {{text: "{words}", delay_ms: {delay_ms}, repeat: 1000000}}\n')
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    config = settings(Path(home), default_model=f"scripted:{script}")
    outside = Outside(wrap=UnfencedStore) if unfenced else Outside()
    async with open_holdfast(config=config, outside=outside):
        print("ready", flush=True)
        await stopping.wait()
