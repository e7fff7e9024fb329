"""R45: bodies and heads of any depth, width and size are refused, at once and cheaply."""

import asyncio
import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.http.requests import BODY_LARGEST
from tests.cli.processes import COMMAND, PATIENCE, environment
from tests.cli.server_probe import card_of
from tests.http.sockets import Heard, Line
from tests.marks import proves
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

MEMORY = 50 << 20
SECONDS = 1.0
# A little under what a body may have, so that it is its form that is refused.
FULL = BODY_LARGEST - 100
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"


@dataclass(frozen=True)
class Bomb:
    """What is sent: pieces one after another, perhaps for ever."""

    name: str
    pieces: Callable[["Server"], Iterator[bytes]]


@dataclass(frozen=True)
class Server:
    """The server as it is deployed."""

    line: Line
    pid: int
    secret: str

    def head(self, *headers: str, method: str = "POST", target: str = "/v1/agents") -> bytes:
        """Return the head of a request that may come in."""
        who = (f"Authorization: Bearer {self.secret}", "Content-Type: application/json")
        return self.line.request(target, *who, *headers, method=method)

    def memory(self, what: str) -> int:
        """Return the memory that the server has (VmRSS), or the most that it had (VmHWM)."""
        for text in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if text.startswith(what):
                return int(text.split()[1]) << 10
        raise LookupError(what)

    def forget_peak(self) -> None:
        """Let the most be what there is now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def whole(body: bytes) -> Callable[[Server], Iterator[bytes]]:
    """Send a body of a known length."""
    return lambda server: iter((server.head(f"Content-Length: {len(body)}"), body))


def wide(piece: bytes, begin: bytes = b'{"metadata":{"a":[', end: bytes = b"0]}}") -> bytes:
    """Return a body full of one piece."""
    return begin + piece * ((FULL - len(begin) - len(end)) // len(piece)) + end


def endless(
    piece: bytes, *headers: str, chunked: bool = True
) -> Callable[[Server], Iterator[bytes]]:
    """Begin a body, and never stop."""

    def pieces(server: Server) -> Iterator[bytes]:
        framing = ["Transfer-Encoding: chunked"] if chunked else []
        yield server.head(*framing, *headers)
        while True:
            yield piece

    return pieces


def headed(*pieces: bytes, forever: bytes = b"") -> Callable[[Server], Iterator[bytes]]:
    """Send a head that goes on in an odd way."""

    def made(server: Server) -> Iterator[bytes]:
        yield server.head(method="GET")[:-2]
        yield from pieces
        while forever:
            yield forever

    return made


def bombs(luck: random.Random) -> list[Bomb]:
    """Return every kind of bomb."""
    packed = gzip.compress(b" " * (1000 * 4096))
    names = b",".join(b'"%d":0' % number for number in range(600_000))[:FULL]
    return [
        Bomb("deep lists", whole(wide(b"[", b'{"metadata":', b""))),
        Bomb("deep objects", whole(wide(b'{"a":', b'{"metadata":', b""))),
        Bomb("deep and closed", whole(b'{"metadata":' + b"[" * 99_000 + b"]" * 99_000 + b"}")),
        Bomb("wide lists", whole(wide(b"[],"))),
        Bomb("wide objects", whole(wide(b"{},"))),
        Bomb("wide numbers", whole(wide(b"0,"))),
        Bomb("wide strings", whole(wide(b'"",'))),
        Bomb("wide escapes", whole(wide(b'"\\\\",'))),
        Bomb("many keys", whole(b'{"metadata":{' + names)),
        Bomb("5,000 digits", whole(b'{"max_tokens":' + b"9" * 5_000 + b"}")),
        Bomb("8,000,000 digits", whole(wide(b"9", b'{"temperature":', b"}"))),
        Bomb("8,000,000 decimals", whole(wide(b"9", b'{"temperature":0.', b"e999}"))),
        Bomb("doubled keys", whole(b'{"metadata":{' + b'"a":0,' * 90_000 + b'"a":0}}')),
        Bomb("quotes", whole(b'"' * FULL)),
        Bomb("a string without an end", whole(wide(b'\\"', b'{"name":"', b""))),
        Bomb("a large unknown key", whole(wide(b"x", b'{"', b'":1}'))),
        Bomb("100 MB, told", endless(b" " * 65536, "Content-Length: 104857600", chunked=False)),
        Bomb("100 MB, not told", endless(CHUNK)),
        Bomb("chunks of one byte", endless(b"1\r\nx\r\n" * 1000, "Content-Encoding: x")),
        Bomb("an endless chunk extension", endless(b"1;" + b"x" * 65536)),
        Bomb("an endless trailer", endless(b"0\r\nX: " + b"x" * 65536)),
        Bomb("gzip, a thousandfold", lambda server: _packed(server, packed)),
        Bomb("100,000 headers", headed(b"X: y\r\n" * 100_000 + b"\r\n")),
        Bomb("endless headers", headed(forever=b"X: y\r\n" * 100)),
        Bomb("a header without an end", headed(b"X: ", forever=b"y" * 65536)),
        Bomb("a header of a megabyte", headed(b"X: " + b"y" * (1 << 20) + b"\r\n\r\n")),
        Bomb("a cookie of a megabyte", headed(b"Cookie: " + b"a=b; " * 200_000 + b"\r\n\r\n")),
        Bomb("a path of a megabyte", lambda server: _pathed(server, "/" + "a/" * 500_000)),
        Bomb(
            "a query of 60,000 names", lambda server: _pathed(server, "/v1/agents?" + "a&" * 30_000)
        ),
        Bomb("noise", whole(luck.randbytes(FULL))),
    ]


def _packed(server: Server, body: bytes) -> Iterator[bytes]:
    yield server.head("Content-Encoding: gzip", f"Content-Length: {len(body)}")
    yield body


def _pathed(server: Server, target: str) -> Iterator[bytes]:
    yield server.head(method="GET", target=target)


@proves("R45")
def test_every_bomb_is_refused_at_once_and_costs_little(
    home: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    times = sized(test=1, torture=3, release=10)
    kinds = bombs(luck) * times

    with deployed(home) as server:
        wrong, longest, most = asyncio.run(thrown(server, kinds))
        alive = asyncio.run(server.line.say(server.line.request("/healthz"), answers=1))

    tell(f"{len(kinds)} bombs, at most {longest:.2f} s and {most >> 20} MiB more")
    assert wrong == []
    assert alive.statuses == [200]
    assert longest <= sized.within(SECONDS)
    assert most <= MEMORY


@proves("R45")
def test_whoever_trickles_is_given_up(home: Path, sized: Sized, tell: Tell) -> None:
    with deployed(home) as server:
        heard = asyncio.run(trickled(server))

    tell(f"a head of one byte a second was refused after {heard[1]:.1f} s")
    assert heard[0].statuses == [400]
    assert 5 < heard[1] <= sized.within(15)


@proves("R45")
def test_what_a_body_costs_would_be_seen() -> None:
    # So many values as a body may have, many times over: a reader that keeps them all.
    values = b"[" + b"[]," * (FULL // 3) + b"0]"
    program = (
        "import json, sys\n"
        "json.loads(sys.stdin.buffer.read())\n"
        "print(open('/proc/self/status').read())\n"
    )

    told = subprocess.run(
        [sys.executable, "-c", program], input=values, capture_output=True, check=True
    )

    peak = next(line for line in told.stdout.decode().splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) << 10 > 2 * MEMORY


async def thrown(server: Server, kinds: list[Bomb]) -> tuple[list[str], float, int]:
    """Throw every bomb; return what was not refused, the longest wait, and the most memory."""
    wrong, longest, most = [], 0.0, 0
    for bomb in kinds:
        before = server.memory("VmRSS")
        server.forget_peak()
        began = time.monotonic()
        heard = await server.line.tell(bomb.pieces(server), answers=1)
        longest = max(longest, time.monotonic() - began)
        grown = server.memory("VmHWM") - before
        most = max(most, grown)
        if len(heard.statuses) != 1 or not 400 <= heard.statuses[0] < 500:
            wrong.append(f"{bomb.name}: {heard.statuses}")
    return wrong, longest, most


async def trickled(server: Server) -> tuple[Heard, float]:
    """Send a head byte by byte."""
    began = time.monotonic()
    letters = (bytes([each]) for each in server.head(method="GET"))
    heard = await server.line.say(*letters, pause=1.0)
    return heard, time.monotonic() - began


@contextmanager
def deployed(home: Path) -> Iterator[Server]:
    """Run the command that serves."""
    server = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(home),
    )
    try:
        port = int(card_of(server)["url"].rpartition(":")[2])
        yield Server(Line(port), server.pid, (home / "token").read_text().strip())
        os.kill(server.pid, signal.SIGTERM)
        server.wait(timeout=PATIENCE)
    finally:
        server.kill()
        server.communicate()
