"""S24: an answer has a size, a time and a place, whatever the other side makes of it."""

import asyncio
import gzip
import random
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from holdfast.domain.secrets import Secret
from holdfast.tools.web.http_request import BODY_LARGEST
from tests.marks import proves
from tests.tools.http_hosts import (
    HOST,
    OTHER,
    Heard,
    Play,
    client_tls,
    code_of,
    granting,
    requested,
    says,
    sends,
    serving,
    settings,
)
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE

pytestmark = pytest.mark.slow

LIMIT = 1.0
# What may be on its way in buffers of both sides when we hang up.
SLACK = 12 << 20
OK = b"HTTP/1.1 200 OK\r\n"
# The beginning of a gzip, and blocks of it that hold nothing.
EMPTY = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * 4096
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@dataclass(frozen=True)
class Bomb:
    """What a host does, and the only thing that may come of it."""

    name: str
    play: Play
    code: str
    at_most: int = BODY_LARGEST + SLACK


def endless(head: bytes, piece: bytes, *, pause: float = 0.0) -> Play:
    """Begin, and then never stop."""

    async def play(_: Heard, writer: asyncio.StreamWriter) -> None:
        SENT.append(0)
        writer.write(OK + head)
        while not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()
            SENT[-1] += len(piece)
            await asyncio.sleep(pause)

    return play


SENT: list[int] = []


def packed(encoding: str, content: bytes) -> Play:
    """Answer with something compressed."""
    return says(content, headers=[f"Content-Encoding: {encoding}"])


def swelling(size: int) -> bytes:
    """Return zeros that pack a thousandfold."""
    return gzip.compress(b"0" * size)


def bombs(luck: random.Random) -> Sequence[Bomb]:
    """Return every kind of bomb."""
    noise = gzip.compress(luck.randbytes(1 << 20).hex().encode() * 3)
    half = len(noise) // 2
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    gzipped = b"Content-Encoding: gzip\r\n\r\n"
    return (
        Bomb("endless chunks", endless(chunked, CHUNK), "error/too_large"),
        Bomb("endless until the end", endless(b"\r\n", b"x" * 65536), "error/too_large"),
        Bomb(
            "a great length",
            endless(b"Content-Length: 99999999999\r\n\r\n", b"x" * 65536),
            "error/too_large",
        ),
        Bomb("one byte now and then", endless(b"\r\n", b"x", pause=0.05), "error/timeout", 1 << 10),
        Bomb(
            "chunks of one byte",
            endless(chunked, b"1\r\nx\r\n", pause=0.05),
            "error/timeout",
            1 << 10,
        ),
        Bomb("a slow head", endless(b"X: ", b"x", pause=0.05), "error/timeout", 1 << 10),
        Bomb("an endless header", endless(b"X: ", b"x" * 4096), "error/too_large"),
        Bomb("endless headers", endless(b"", b"X: y\r\n" * 100), "error/too_large"),
        Bomb("endless beginnings", endless(b"\r\n", b"", pause=0.05), "error/timeout", 1 << 10),
        Bomb("endless greetings", greetings, "error/failed"),
        Bomb("an endless chunk size", endless(chunked, b"0" * 4096), "error/too_large"),
        Bomb(
            "an endless chunk extension", endless(chunked + b"1;", b"x" * 4096), "error/too_large"
        ),
        Bomb("10,000 headers", sends(OK + b"X: y\r\n" * 10_000 + b"\r\n"), "error/too_large"),
        Bomb("300 headers", sends(OK + b"X: y\r\n" * 300 + b"\r\n"), "error/too_large"),
        Bomb(
            "one header of a megabyte",
            sends(OK + b"X: " + b"y" * (1 << 20) + b"\r\n\r\n"),
            "error/too_large",
        ),
        Bomb("gzip, a thousandfold", packed("gzip", swelling(64 << 20)), "error/too_large"),
        Bomb(
            "gzip, a little, a thousandfold", packed("gzip", swelling(1 << 20)), "error/too_large"
        ),
        Bomb("gzip, plain and too large", packed("gzip", noise), "error/too_large"),
        Bomb("gzip in many pieces", packed("gzip", swelling(64 << 10) * 200), "error/too_large"),
        Bomb("endless empty gzip", endless(gzipped, gzip.compress(b"") * 1000), "error/too_large"),
        Bomb("endless nothing", endless(gzipped + EMPTY[:10], EMPTY[10:]), "error/too_large"),
        Bomb(
            "deflate, a thousandfold",
            packed("deflate", zlib.compress(b"0" * (64 << 20))),
            "error/too_large",
        ),
        Bomb(
            "gzip in gzip", packed("gzip, gzip", gzip.compress(swelling(64 << 20))), "error/failed"
        ),
        Bomb("gzip that breaks off", packed("gzip", noise[:half]), "error/failed"),
        Bomb("brotli", packed("br", b"\xcf\xff\xff\x7f\xf8" + b"0" * 1000), "error/failed"),
        Bomb("zstd", packed("zstd", b"\x28\xb5\x2f\xfd" + b"0" * 1000), "error/failed"),
        Bomb("shorter than it says", sends(OK + b"Content-Length: 9\r\n\r\nx"), "error/failed"),
        Bomb("a length below zero", sends(OK + b"Content-Length: -1\r\n\r\nx"), "error/failed"),
        Bomb(
            "two lengths",
            sends(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy"),
            "error/failed",
        ),
        Bomb("a chunk below zero", sends(OK + chunked + b"-1\r\nx\r\n"), "error/failed"),
        Bomb("chunks without an end", sends(OK + chunked + b"5\r\nhello\r\n"), "error/failed"),
        Bomb("nothing at all", sends(b""), "error/failed"),
        Bomb("silence", silence, "error/timeout"),
    )


async def greetings(_: Heard, writer: asyncio.StreamWriter) -> None:
    """Say that it goes on, for ever."""
    SENT.append(0)
    while not writer.transport.is_closing():
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        SENT[-1] += 25
        await asyncio.sleep(0)


async def silence(_: Heard, __: asyncio.StreamWriter) -> None:
    """Say nothing."""
    await asyncio.sleep(3600)


@proves("S24")
def test_no_answer_is_larger_or_takes_longer_than_it_may(
    luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kinds = bombs(luck)
    count = sized(test=len(kinds), torture=40)
    chosen = [kinds[number % len(kinds)] for number in range(count)]

    wrong, longest, most = asyncio.run(thrown(chosen))

    tell(f"{count} bombs, the longest took {longest:.1f} s, the largest sent {most >> 20} MiB")
    assert wrong == []
    assert longest < LIMIT + sized.within(2)


@proves("S24")
def test_a_host_that_never_stops_would_be_seen() -> None:
    async def heard_out() -> int:
        async with serving(endless(b"\r\n", b"x" * 65536)) as host:
            # A reader without a limit, which is what the measure has to notice.
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", host.port, ssl=client_tls(), server_hostname=HOST
            )
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readexactly(BODY_LARGEST + 2 * SLACK)
            writer.transport.abort()
            return SENT[-1]

    assert asyncio.run(heard_out()) > BODY_LARGEST + SLACK


@proves("S24")
def test_nothing_is_kept_and_nothing_is_carried_to_another_host(tell: Tell) -> None:
    heard = asyncio.run(visited())

    sent = [(each.headers["host"].partition(":")[0], each.headers) for each in heard]
    tell(f"{len(heard)} requests, cookies and credentials where they belong")
    assert [host for host, _ in sent] == [HOST, OTHER, HOST]
    assert [headers.get("authorization") for _, headers in sent] == [
        "Bearer canary",
        None,
        "Bearer canary",
    ]
    assert not any("cookie" in headers or "referer" in headers for _, headers in sent)


async def thrown(chosen: Sequence[Bomb]) -> tuple[list[str], float, int]:
    """Ask for every bomb; return what went wrong, the longest wait, and the most that was sent."""
    wrong, longest, most = [], 0.0, 0
    for bomb in chosen:
        SENT.clear()
        async with serving(bomb.play) as host:
            place, url = granting(f"{HOST}:{host.port}"), f"https://{HOST}:{host.port}/"
            began = time.monotonic()
            # Whoever is to be cut off for another reason has time to get there.
            is_slow = bomb.code == "error/timeout"
            limit = LIMIT if is_slow else PATIENCE
            code = code_of(await requested(settings(time_limit=limit), place, url=url))
            longest = max(longest, time.monotonic() - began if is_slow else 0)
            sent = SENT[-1] if SENT else 0
        most = max(most, sent)
        if code != bomb.code or sent > bomb.at_most:
            wrong.append(f"{bomb.name}: {code}, {sent} bytes")
    return wrong, longest, most


async def visited() -> list[Heard]:
    """Go to a host that hands out cookies, to the one it names, and back."""

    async def token() -> Secret:
        return Secret("canary")

    async def sticky(heard: Heard, writer: asyncio.StreamWriter) -> None:
        port = heard.headers["host"].rpartition(":")[2]
        there = ["Set-Cookie: s=1", f"Location: https://{OTHER}:{port}/"]
        await says(b"", status="302 Found", headers=there)(heard, writer)

    async with serving(sticky) as host:
        given = settings(credentials={HOST: token})
        place = granting(f"{HOST}:{host.port}", f"{OTHER}:{host.port}")
        url = f"https://{HOST}:{host.port}/"
        for _ in range(2):
            done = await requested(given, place, url=url)
            url = done.result["headers"]["location"]
        await requested(given, place, url=f"https://{HOST}:{host.port}/")
    return host.heard
