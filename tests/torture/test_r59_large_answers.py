"""R59: long lists, exports and searches, read slowly or at once, cost neither memory nor time."""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from holdfast import RunScope, SessionId
from holdfast.app import Environment
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.messages import Role, Text
from holdfast.services.journal import SessionWriter
from tests.houses import House, open_house
from tests.marks import proves
from tests.stand_ins import GatedRuntime
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.served import Server

pytestmark = pytest.mark.slow

MIB = 1 << 20
SIZE = 1_000_000
# Whole lists, and pages of them; most are refused.
STALLED, EXPORTS, SEARCHES = 240, 4, 16
QUERIES = ("", "?limit=20")
MEMORY_MOST = 200 * MIB
HEALTH_P99 = 0.25
# What readers that stopped and exports that ended leave behind.
KEPT_MOST = 40 * MIB
IN_A_WRITE = 10
# What lies in the kernel for a reader that was cut off, at most; read within so many seconds.
LEFT_MOST = 2 * MIB
CUT_SECONDS = 30.0
# Every message begins so, and has it nowhere else.
MARK = b"The beginning."


@proves("R59")
def test_large_answers_cost_neither_memory_nor_the_time_of_others(
    tmp_path: Path, outside: Environment, crew: Crew, sized: Sized, tell: Tell
) -> None:
    home = tmp_path / "home"
    listed = sized(quick=8, test=60, torture=300)
    exported = sized(quick=3, test=20, torture=94)
    stalled = sized(quick=30, test=STALLED, torture=STALLED)
    ids = asyncio.run(written(home, outside, (listed, exported)))
    seen = Seen()

    asyncio.run(read_all(Server(crew, home), ids, seen, stalled_count=stalled))

    tell(
        f"{stalled} stalled readers of {listed} MB, {EXPORTS} exports of {exported} MB: "
        f"{seen.peak / MIB:.0f} MiB at most, p99 of /healthz {seen.p99 * 1000:.0f} ms"
    )
    assert seen.is_well
    assert seen.cut == stalled
    assert seen.exported == [exported] * EXPORTS
    assert seen.listed == listed
    assert all(seen.hits)
    assert seen.peak <= MEMORY_MOST
    assert seen.after - seen.before <= KEPT_MOST
    assert seen.p99 <= sized.within(HEALTH_P99)


@proves("R59")
def test_a_server_that_makes_answers_whole_is_found(
    tmp_path: Path, outside: Environment, crew: Crew
) -> None:
    home = tmp_path / "home"
    ids = asyncio.run(written(home, outside, (60, 1)))
    seen = Seen()

    asyncio.run(read_all(Server(crew, home, fault="whole"), ids, seen, stalled_count=8, exports=0))

    assert seen.cut == 0
    assert seen.peak > MEMORY_MOST


@dataclass
class Seen:
    """What the server took, and what its readers got."""

    before: int = 0
    peak: int = 0
    after: int = 0
    cut: int = 0
    listed: int = 0
    is_well: bool = True
    hits: list[int] = field(default_factory=list)
    exported: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Return how long nearly all requests of others took."""
        return sorted(self.delays)[len(self.delays) * 99 // 100]


async def written(
    home: Path, outside: Environment, counts: tuple[int, int]
) -> tuple[SessionId, SessionId]:
    """Write two sessions of so many messages of 1 MB."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        return await lived(house, counts[0]), await lived(house, counts[1])


async def lived(house: House, count: int) -> SessionId:
    """Write a session of so many messages of 1 MB."""
    session = await house.open()
    text = MARK.decode() + "so many words, " * (SIZE // 15)
    said = MessageDraft(role=Role.SYSTEM, parts=(Text(text=text),))

    async def write(writer: SessionWriter, rows: int) -> None:
        for _ in range(rows):
            writer.add_message(said, 0)

    for start in range(0, count, IN_A_WRITE):
        rows = min(IN_A_WRITE, count - start)
        await house.journal.write(house.owner, session.id, lambda writer, n=rows: write(writer, n))
    return session.id


async def read_all(
    server: Server,
    ids: tuple[SessionId, SessionId],
    seen: Seen,
    *,
    stalled_count: int,
    exports: int = EXPORTS,
) -> None:
    """Stall, export and list at the same time, and watch the server meanwhile."""
    server.start()
    # What was just written is still being indexed, and that is another row's business.
    await until_idle(server)
    listed, exported = ids
    seen.before = server.resident()
    watch = Watch(server, seen)
    watch.start()
    path = f"/v1/sessions/{listed}/messages"
    queries = [QUERIES[number % len(QUERIES)] for number in range(stalled_count)]
    stalled = [Stalled(server, path + query) for query in queries]
    await asyncio.gather(*(each.connect() for each in stalled))
    forms = ["markdown", "jsonl"]
    paths = [f"/v1/sessions/{exported}/export?format={forms[n % 2]}" for n in range(exports)]
    reads = [asyncio.to_thread(messages_in, server, path) for path in paths]
    searches = [asyncio.to_thread(search, server) for _ in range(SEARCHES if exports else 0)]
    seen.exported, seen.hits = await asyncio.gather(
        asyncio.gather(*reads), asyncio.gather(*searches)
    )
    if exports:
        seen.listed = await asyncio.to_thread(messages_in, server, path)
        # Those that waited are cut off last; ours are the watcher's and the one that asks.
        await until_connected(server, 2)
    else:
        # Long enough for what would be made whole.
        await until_large(server)
    seen.cut = sum([await each.was_cut() for each in stalled])
    watch.stopped.set()
    await asyncio.to_thread(watch.join)
    # A connection is closed before what its answer was made of is freed.
    await until_idle(server)
    seen.after = server.resident()
    server.kill()


def messages_in(server: Server, path: str) -> int:
    """Read an answer to its end, waiting for its turn; return how many messages are in it."""
    while True:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"authorization": f"Bearer {server.token}"})
            answer = connection.getresponse()
            if answer.status == 200:
                return marks_in(answer)
            assert answer.status == 429
            time.sleep(int(answer.headers["retry-after"]))


def search(server: Server) -> int:
    """Search for a word of every long message; return how many are on the first page."""
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx.Client(timeout=PATIENCE, trust_env=False, headers=headers) as client:
        answer = client.get(f"{server.url}/v1/search?q=words&limit=100")
    assert answer.status_code == 200, answer.text
    return len(answer.json()["data"])


def marks_in(answer: HTTPResponse) -> int:
    """Count the beginnings of messages, also those that two pieces share."""
    found, rest = 0, b""
    while piece := answer.read(1 << 18):
        text = rest + piece
        found += text.count(MARK)
        rest = text[1 - len(MARK) :]
    return found


class Watch(Thread):
    """Looks at the server's memory and asks it something small, beside all that is read."""

    def __init__(self, server: Server, seen: Seen) -> None:
        super().__init__()
        self._server = server
        self._seen = seen
        self.stopped = Event()

    def run(self) -> None:
        """Look until it is stopped."""
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            while not self.stopped.wait(0.02):
                begun = time.perf_counter()
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
                self._seen.delays.append(time.perf_counter() - begun)
                self._seen.peak = max(self._seen.peak, self._server.resident())
                self._seen.is_well &= answer.status == 200


async def until_idle(server: Server) -> None:
    """Wait until the server does nothing for a second."""
    async with asyncio.timeout(PATIENCE):
        spent = -1
        while spent != (now := ticks(server)):
            spent = now
            await asyncio.sleep(1)


def ticks(server: Server) -> int:
    """Return for how many fifths of a second the server was at work."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) // 20


async def until_connected(server: Server, most: int) -> None:
    """Wait until no more than so many connections are open."""
    headers = {"authorization": f"Bearer {server.token}"}
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(timeout=PATIENCE, trust_env=False, headers=headers) as client,
    ):
        while True:
            text = (await client.get(f"{server.url}/metrics")).text
            if int(text.partition("\nholdfast_open_connections ")[2].split()[0]) <= most:
                return
            await asyncio.sleep(0.5)


async def until_large(server: Server) -> None:
    """Wait until the server has taken more memory than it may."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if server.resident() > MEMORY_MOST:
                return
            await asyncio.sleep(0.05)


class Stalled:
    """A reader that asks and reads nothing."""

    def __init__(self, server: Server, path: str) -> None:
        self._server = server
        self._path = path
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def connect(self) -> None:
        """Ask."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._server.port))
        head = (
            f"GET {self._path} HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{self._server.port}\r\n"
            f"Authorization: Bearer {self._server.token}\r\n\r\n"
        )
        await loop.sock_sendall(self._socket, head.encode())

    async def was_cut(self) -> bool:
        """Tell whether the server has ended the connection before its answer was read."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CUT_SECONDS):
                read = 0
                while piece := await loop.sock_recv(self._socket, 1 << 10):
                    read += len(piece)
                    if read > LEFT_MOST:
                        return False
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self._socket.close()
        return True
