"""S08: one request in, one request seen, whatever two readers could make of the bytes."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.processes import COMMAND, PATIENCE, environment
from tests.cli.server_probe import card_of
from tests.http.sockets import Heard, Line
from tests.marks import proves
from tests.torture.conftest import Tell
from tests.torture.crew import wait_until

pytestmark = pytest.mark.slow

Made = Callable[["Case"], bytes]


@dataclass(frozen=True)
class Case:
    """One connection: `open` is the path of the request, `hidden` that of the one inside."""

    number: int
    line: Line

    @property
    def open(self) -> str:
        return f"/open-{self.number}"

    @property
    def hidden(self) -> str:
        return f"/hidden-{self.number}"

    def inner(self) -> str:
        """Return the request that must not be seen."""
        return f"GET {self.hidden} HTTP/1.1\r\nHost: 127.0.0.1:{self.line.port}\r\n\r\n"

    def outer(self, *headers: str, body: str = "", method: str = "POST") -> bytes:
        """Return a request with headers as they are given, and a body."""
        lines = [f"{method} {self.open} HTTP/1.1", f"Host: 127.0.0.1:{self.line.port}", *headers]
        return "\r\n".join([*lines, "", body]).encode("latin-1")


def framed(*headers: str) -> Made:
    """Frame a body in such a way that another reader would see a second request in it."""
    return lambda case: case.outer(*headers, body=f"0\r\n\r\n{case.inner()}")


def chunks(text: str) -> Made:
    """Send a chunked body; `@` stands for the hidden request, `#` for its length."""

    def made(case: Case) -> bytes:
        body = text.replace("#", f"{len(case.inner()):x}").replace("@", case.inner())
        return case.outer("Transfer-Encoding: chunked", body=body)

    return made


def line(text: str) -> Made:
    """Begin with another line; `*` stands for the path."""

    def made(case: Case) -> bytes:
        _, _, rest = case.outer(method="GET").partition(b"\r\n")
        return text.replace("*", case.open).encode("latin-1") + b"\r\n" + rest

    return made


def header(text: str, method: str = "GET") -> Made:
    """Send a request with one more header."""
    return lambda case: case.outer(text, body=case.inner(), method=method)


LENGTHS = (
    "abc", "-1", "+5", "5, 5", "5,6", "0x5", "5 5", "", "5.0", "5e0", "\xb25", "1_0",
    "99999999999999999999", "18446744073709551621", "5\x0b", "5;", '"5"', "0\t0",
)  # fmt: skip
CODINGS = (
    "xchunked", "chunked, identity", "identity", "identity, chunked", "gzip, chunked",
    "\x0bchunked", "chunked,", ", chunked", '"chunked"', "chunked;q=1", "chunked\x00",
    "chunked, chunked",
)  # fmt: skip
SIZES = ("-1", "0x5", "5 ", " 5", "+5", "g", "", "5\n", "10000000000000005", "5;\n", "05_")
LINES = (
    "GET * HTTP/2.0", "GET * HTTP/0.9", "GET * HTTP/1.2", "GET * http/1.1", "GET * HTTP/1.1 x",
    "GET\t*\tHTTP/1.1", "GET *", "get * HTTP/1.1", "FROB * HTTP/1.1", "GET http://evil* HTTP/1.1",
    "GET *\x00 HTTP/1.1", "GET *\xe9 HTTP/1.1", "GET *#x HTTP/1.1", "CONNECT * HTTP/1.1",
    "PRI * HTTP/2.0", " GET * HTTP/1.1", "GET *\rX HTTP/1.1",
)  # fmt: skip
HEADERS = (
    "X : y", "X\x00: y", "X: y\x00", "X: y\rZ: a", "X: y\nTransfer-Encoding: chunked", " X: y",
    "X: y\r\n folded", ": y", "X", "X\xe9: y", "(X): y", "Host : evil", "X: y\x7f\x00",
)  # fmt: skip


def refused() -> Iterator[tuple[str, Made]]:
    """Yield what is no request: nothing of it is seen at all."""
    for length in LENGTHS:
        yield f"length {length!r}", framed(f"Content-Length: {length}")
    for coding in CODINGS:
        yield f"coding {coding!r}", framed(f"Transfer-Encoding: {coding}")
    both = ("Content-Length: 5", "Transfer-Encoding: chunked")
    yield "length and coding", framed(*both)
    yield "coding and length", framed(*reversed(both))
    yield "two lengths", framed("Content-Length: 5", "Content-Length: 6")
    yield "a length twice", framed("Content-Length: 5", "Content-Length: 5")
    yield "two codings", framed("Transfer-Encoding: chunked", "Transfer-Encoding: identity")
    yield "a coding twice", framed("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")
    yield "a space before the colon", framed("Transfer-Encoding : chunked")
    for text in LINES:
        yield f"line {text!r}", line(text)
    for text in HEADERS:
        yield f"header {text!r}", header(text)


def taken() -> Iterator[tuple[str, Made]]:
    """Yield requests with another inside that is data: the outer one is seen, and no more."""
    yield (
        "a body of a known length",
        lambda case: case.outer(f"Content-Length: {len(case.inner())}", body=case.inner()),
    )
    yield (
        "a body of a GET",
        lambda case: case.outer(
            f"Content-Length: {len(case.inner())}", body=case.inner(), method="GET"
        ),
    )
    yield "a chunk", chunks("#\r\n@\r\n0\r\n\r\n")
    yield "a chunk with an extension", chunks('#;a="b"\r\n@\r\n0\r\n\r\n')
    yield "zeros before a size", chunks("000000#\r\n@\r\n0\r\n\r\n")
    yield "a header behind the body", chunks("1\r\nx\r\n0\r\nX: y\r\nHost: evil\r\n\r\n")
    for size in SIZES:
        yield f"size {size!r}", chunks(f"{size}\r\n@\r\n0\r\n\r\n")
    yield "lines without a carriage return", chunks("#\n@\n0\n\n")
    yield "a chunk that is longer than it says", chunks("1\r\n@\r\n0\r\n\r\n")
    yield "the last request", header("Connection: close")
    yield "version 1.0", lambda case: line("GET * HTTP/1.0")(case) + case.inner().encode()
    yield "an upgrade", header("Connection: Upgrade\r\nUpgrade: websocket")
    yield "an upgrade to version 2", header("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c")


@proves("S08")
def test_what_is_unclear_is_refused_and_never_seen(tmp_path: Path, tell: Tell) -> None:
    cases = dict(refused())

    heard, seen = spoken(tmp_path, cases)

    tell(f"{len(cases)} requests that two readers could read in two ways")
    assert {name: each.statuses for name, each in heard.items() if each.statuses != [400]} == {}
    assert not [name for name, each in heard.items() if not each.is_over]
    assert seen == {}


@proves("S08")
def test_a_request_inside_another_is_never_seen(tmp_path: Path, tell: Tell) -> None:
    cases = dict(taken())

    heard, seen = spoken(tmp_path, cases)

    tell(f"{len(cases)} requests with another inside")
    assert {name: each.statuses for name, each in heard.items() if len(each.statuses) != 1} == {}
    assert seen == {f"/open-{number}": 1 for number in range(len(cases))}


@proves("S08")
def test_a_second_request_would_be_seen(tmp_path: Path) -> None:
    heard, seen = spoken(
        tmp_path, {"two": lambda case: case.outer(method="GET") + case.inner().encode()}
    )

    assert heard["two"].statuses == [401, 401]
    assert seen == {"/open-0": 1, "/hidden-0": 1}


def spoken(folder: Path, cases: Mapping[str, Made]) -> tuple[dict[str, Heard], dict[str, int]]:
    """Say all of it to the server as it is deployed; return what came back, and what it saw."""
    log = folder / "log"
    with deployed(folder / "home", log) as port:
        heard = asyncio.run(_said(Line(port), cases))
        wait_until(lambda: "/last" in log.read_text())
    seen: dict[str, int] = {}
    for text in log.read_text().splitlines():
        event = json.loads(text)
        if event["logger"] == "holdfast.access" and event.get("path") not in (None, "/last"):
            seen[event["path"]] = seen.get(event["path"], 0) + 1
    return heard, seen


async def _said(where: Line, cases: Mapping[str, Made]) -> dict[str, Heard]:
    async def say(number: int, made: Made) -> Heard:
        # Until the server ends the connection, so that a late answer is heard, too.
        return await where.say(made(Case(number, where)))

    said = [say(number, made) for number, made in enumerate(cases.values())]
    heard = await asyncio.gather(*said)
    await where.say(where.request("/last"), answers=1)
    return dict(zip(cases, heard, strict=True))


@contextmanager
def deployed(home: Path, log: Path) -> Iterator[int]:
    """Run the command that serves, with its log in a file; give its port."""
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [COMMAND, "serve", "--port", "0", "--json", "-v"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(home),
        )
    try:
        yield int(card_of(server)["url"].rpartition(":")[2])
        os.kill(server.pid, signal.SIGTERM)
        server.wait(timeout=PATIENCE)
    finally:
        server.kill()
        server.communicate()
