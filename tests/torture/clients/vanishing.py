"""Readers whose packets are lost from one moment on; some of them are gone, too.

Runs in a network namespace of its own, where an address can be made to lead nowhere.
"""

import asyncio
import socket
import subprocess
import time
from pathlib import Path

from tests.torture.attempts import Record
from tests.torture.callers import Caller
from tests.torture.crew import Crew
from tests.torture.ears import Listening
from tests.torture.served import Server

# An address of this machine that nobody else uses.
ADDRESS = "127.0.0.9"
ESTABLISHED = "01"


async def main(home: str, record: str, peers: int, limit: float, fault: str) -> None:
    """Open streams, lose them, and write down how long the server held on to each of them."""
    _ip("link", "set", "lo", "up")
    written = Record(Path(record), synced=False)
    with Crew(Path(record).parent) as crew:
        server = Server(crew, Path(home), fault=fault)
        server.start()
        async with Caller(server) as caller:
            session = (await caller.sure("POST", "/v1/agents/holdfast/sessions", {}))["id"]
            readers = [await _reader(server, session) for _ in range(peers)]
            opened = await _open(caller)
            _ip("route", "add", "blackhole", f"{ADDRESS}/32", "table", "local")
            for each in readers[::2]:
                each.close()
            # Half of the time there is something on its way to them.
            body = {"role": "user", "content": {"text": "long words"}}
            await caller.sure("POST", f"/v1/sessions/{session}/messages", body)
            took = await _forgotten(server, caller, limit)
        written.note(opened=opened, took=took, left=held(server.port), streams=await _last(server))
        server.kill()
    for each in readers[1::2]:
        each.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


async def _reader(server: Server, session: str) -> socket.socket:
    """Open a stream and wait for its first words."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    connection.bind((ADDRESS, 0))
    await loop.sock_connect(connection, ("127.0.0.1", server.port))
    lines = (
        f"GET {Listening(session).path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n"
    )
    await loop.sock_sendall(connection, lines.encode())
    heard = b""
    while b"session.opened" not in heard:
        heard += await loop.sock_recv(connection, 65_536)
    return connection


async def _open(caller: Caller) -> int:
    """Return how many streams the server says are open."""
    told = (await caller.ask("GET", "/metrics")).text
    return int(told.partition("\nholdfast_open_streams ")[2].partition("\n")[0])


async def _last(server: Server) -> int:
    async with Caller(server) as caller:
        return await _open(caller)


async def _forgotten(server: Server, caller: Caller, limit: float) -> float | None:
    """Return after how long no connection and no stream was left, or None if that took longer."""
    begun = time.monotonic()
    while time.monotonic() - begun <= limit:
        if held(server.port) == 0 and await _open(caller) == 0:
            return time.monotonic() - begun
        await asyncio.sleep(0.05)
    return None


def held(port: int) -> int:
    """Return how many connections with the lost address the server has in its hands."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    lost = "".join(f"{int(part):02X}" for part in reversed(ADDRESS.split(".")))
    ours = [row for row in rows if row[1].endswith(f":{port:04X}") and row[2].startswith(lost)]
    # Without a file behind it, it is the kernel's alone.
    return sum(row[3] == ESTABLISHED and row[9] != "0" for row in ours)
