"""Hosts of the web on loopback: real sockets, real TLS, certificates of an authority of our own."""

import asyncio
import datetime
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.domain.tools import Grant
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Slice, ToolWorkspace
from holdfast.tools.tool import LocalTool
from holdfast.tools.toolbox import LocalToolbox
from holdfast.tools.web.connection import WebSettings
from holdfast.tools.web.http_request import web_tools

HOST = "api.example.com"
OTHER = "other.example.com"


class NoShelf:
    """A shelf for calls that keep nothing."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        raise AssertionError("nothing is kept here")

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        return None


@dataclass
class Heard:
    """A request as it came in, to the byte."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        """Return method and target."""
        return self.head.split(b"\r\n", 1)[0].decode().removesuffix(" HTTP/1.1")

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers, names in lower case."""
        lines = [line.decode().partition(": ") for line in self.head.split(b"\r\n")[1:] if line]
        return {name.lower(): value for name, _, value in lines}


Play = Callable[[Heard, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Host:
    """A server that was started; `connections` counts everybody who came as far as a socket."""

    port: int
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0


def says(body: bytes = b"hello", *, status: str = "200 OK", headers: Sequence[str] = ()) -> Play:
    """Answer everything with these words."""

    async def play(_: Heard, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode("latin-1") + body)

    return play


def sends(*parts: bytes) -> Play:
    """Answer everything with exactly these bytes."""

    async def play(_: Heard, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return play


@asynccontextmanager
async def serving(
    play: Play, *, names: Sequence[str] = (HOST, OTHER), at: tuple[str, int] = ("127.0.0.1", 0)
) -> AsyncIterator[Host]:
    """Serve on loopback until the block ends."""
    host = Host(port=0)
    talking: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                heard = await _heard(reader)
                host.heard.append(heard)
                await play(heard, writer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            talking.discard(task)

    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.BaseProtocol:
        # Made for each socket that was accepted, before anything is said over it.
        host.connections += 1
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), talk)

    server = await loop.create_server(protocol, *at, ssl=_server_tls(tuple(names)))
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        for task in list(talking):
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


async def _heard(reader: asyncio.StreamReader) -> Heard:
    head = await reader.readuntil(b"\r\n\r\n")
    heard = Heard(head=head.removesuffix(b"\r\n\r\n"), body=b"")
    length = int(heard.headers.get("content-length", "0"))
    heard.body = await reader.readexactly(length)
    return heard


def settings(host: Host | None = None, **changes: Any) -> WebSettings:
    """Return settings by which every name leads to this machine, and that is allowed."""

    async def resolve(_: str, __: int) -> Sequence[str]:
        return ("127.0.0.1",)

    given: dict[str, Any] = {"resolve": resolve, "address_check": lambda _: None, "tls": client_tls}
    return WebSettings(**{**given, **changes})


def a_place(*grants: Grant, **changes: Any) -> ToolWorkspace:
    """Return a workplace with these grants."""
    given: dict[str, Any] = {
        "session": "s1",
        "working_dir": "/srv",
        "scratch": "/srv/scratch",
        "grants": grants,
        "tools": frozenset({"http_request"}),
        "shelf": NoShelf(),
    }
    return ToolWorkspace(**{**given, **changes})


def granting(*domains: str) -> ToolWorkspace:
    """Return a workplace from which these domains can be reached."""
    return a_place(Grant(domains=domains))


def asked(name: str = "http_request", **arguments: Any) -> RequestedCall:
    """Return a call."""
    return RequestedCall(id="c1", name=name, arguments=arguments, idempotency_key="k1")


async def done(tool: LocalTool[Any], place: ToolWorkspace, asking: RequestedCall) -> CallOutcome:
    """Plan the call and run it, as if somebody had agreed."""
    toolbox = LocalToolbox([tool])
    planned = await toolbox.plan(place, asking)
    return await toolbox.run(place, planned) if isinstance(planned, PlannedCall) else planned


async def requested(given: WebSettings, place: ToolWorkspace, **arguments: Any) -> CallOutcome:
    """Have `http_request` done."""
    (tool,) = web_tools(given)
    return await done(tool, place, asked(**arguments))


def code_of(answer: PlannedCall | CallOutcome) -> str:
    """Return status and code of what was refused, or just the status."""
    if isinstance(answer, PlannedCall):
        return "planned"
    return f"{answer.status}/{answer.error.code}" if answer.error else str(answer.status)


@dataclass(frozen=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


@cache
def _authority(name: str = "Authority of the tests") -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = _unsigned(named, named, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return _Authority(key, made.sign(key, hashes.SHA256()))


def client_tls() -> ssl.SSLContext:
    """Return a context that trusts our own authority and nobody else."""
    pem = _authority().certificate.public_bytes(serialization.Encoding.PEM)
    return ssl.create_default_context(cadata=pem.decode())


@cache
def _server_tls(names: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.pem"
        path.write_bytes(chain(*names))
        context.load_cert_chain(path)
    return context


def chain(*names: str) -> bytes:
    """Return certificate and key of a host with these names."""
    authority, key = _authority(), ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    made = _unsigned(subject, authority.certificate.subject, key).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
    )
    certificate = made.sign(authority.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
