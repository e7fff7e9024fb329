"""The server of `fanout_http`: ours on a real socket, with the writer beside it in one process.

Run as a process of its own. It says where it listens, writes once enough readers have come, and
says what it wrote.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.servers import run
from bench.streams import READERS, write
from holdfast import RunScope, open_holdfast
from holdfast.http.app import AppOptions, create_app
from holdfast.http.server import listen, serve

# Whoever started this may be gone, and then nobody comes.
COMING_SECONDS: Final = 60


async def _main(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        _, token = await holdfast.tokens.ensure_local()
        session = await holdfast.open()
        with listen("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            app = create_app(holdfast, _probe, AppOptions(port=port))
            ready, stop = asyncio.Event(), asyncio.Event()
            serving = asyncio.create_task(serve(app, listener, ready=ready.set, stop=stop))
            await ready.wait()
            _say({"port": port, "token": token, "session": session.id})
            async with asyncio.timeout(COMING_SECONDS):
                while app.metrics.open_streams < READERS:  # noqa: ASYNC110 — nothing rings for it
                    await asyncio.sleep(0.05)
            began, used = time.perf_counter(), time.process_time()
            events = await write(holdfast, session)
            seconds, used = time.perf_counter() - began, time.process_time() - used
            _say({"events": events, "seconds": seconds, "cpu": used})
            await asyncio.to_thread(sys.stdin.read)
            stop.set()
            await serving


async def _probe() -> None:
    return None


def _say(told: dict[str, Any]) -> None:
    print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    run(_main(Path(sys.argv[1])))
