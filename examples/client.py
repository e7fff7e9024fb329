"""Talk to a server, and read on when it is killed in the middle and started again.

    python examples/client.py

The server is a process of its own. It is killed as soon as its model was asked; another one takes
its place at the same address, plays the turn to its end, and the reader notices nothing.
"""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from holdfast import Event, Timeouts, connect
from holdfast.domain.events import name_of


async def start(port: int) -> Process:
    """Start a server, and wait until it listens."""
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--port", str(port), "--json"]
    server = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    if server.stdout is None or not await server.stdout.readline():
        raise SystemExit("The server did not start.")
    return server


async def stop(server: Process) -> None:
    """Kill a server, as a power cut would."""
    server.kill()
    await server.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def local_token() -> str:
    """Return the token that a server of this machine has made for its owner."""
    return Path(os.environ["HOLDFAST_HOME"], "token").read_text().strip()


async def main() -> None:
    port = free_port()
    server = await start(port)
    # Quicker than usual to come back, because here the server is never gone for long.
    timeouts = Timeouts(pause=0.05, longest=0.5)
    url = f"http://127.0.0.1:{port}"
    async with connect(url, local_token(), timeouts=timeouts) as hf:
        session = await hf.open()
        await hf.send(session.id, "Repeat after me: hold fast")
        heard: list[int] = []
        async for item in hf.follow(session.id, until_settled=True):
            if not isinstance(item, Event):
                continue
            print(f"{item.sequence:>3}  {name_of(item.payload)}", flush=True)
            heard.append(item.sequence)
            if heard == [1, 2, 3, 4]:
                await stop(server)
                print("     (the server was killed)", flush=True)
                server = await start(port)
        whole = list(range(1, len(heard) + 1))
        print("Nothing was lost, and nothing came twice." if heard == whole else heard)
        answer = (await hf.read(session.id))[-1]
        print(f"{answer.role}: {answer.text}")
    await stop(server)


asyncio.run(main())
