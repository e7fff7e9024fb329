"""Outgoing connections: resolve the name once, check every address, connect to a checked one.

Pinning the connection to a checked address is the defence against DNS rebinding.
"""

import asyncio
import re
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolFailure, UnansweredRequest
from holdfast.tools.web.ssrf import Url, blocked_reason, is_loopback

# Framing and proxy headers are set here only, to prevent request smuggling and spoofing.
RESERVED_HEADERS: Final = re.compile(
    r"host|content-length|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|proxy-.*|forwarded|x-forwarded-.*"
)
_TRIED_AT_MOST: Final = 4


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
AddressCheck = Callable[[str], str | None]
CredentialSource = Callable[[], Awaitable[Secret]]


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Resolve a host to all its addresses with the system resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def secure_context() -> ssl.SSLContext:
    """Return a TLS context with the system trust store; certificates and names are verified."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """Settings of all outgoing web requests of tools.

    `credentials` maps an exact host to its credential source. `judge` returns why an address is
    blocked, or `None`. `time_limit` covers a whole request, including name resolution.
    """

    resolve: Resolver = resolve_by_system
    judge: AddressCheck = blocked_reason
    tls: Callable[[], ssl.SSLContext] = secure_context
    credentials: Mapping[str, CredentialSource] = field(default_factory=dict)
    time_limit: float = 30.0


async def connect(url: Url, settings: WebSettings, *, local: bool = False) -> "WebConnection":
    """Return a connection to a checked address, with the certificate verified.

    `local` inverts the rule: then every address must be loopback.
    """
    addresses = await _checked(url, settings, local=local)
    # In a thread, because loading certificates reads files.
    tls = await asyncio.to_thread(settings.tls) if url.scheme == "https" else None
    for address in addresses:
        try:
            async with asyncio.timeout(settings.time_limit / len(addresses)):
                return await _open(url, address, tls)
        except ssl.SSLError as error:
            raise _connection_failure(
                f"{url.host} shows no certificate that can be trusted"
            ) from error
        except (OSError, TimeoutError):
            continue
    raise _connection_failure(f"{url.host} cannot be reached")


async def credential_for(url: Url, settings: WebSettings) -> str | None:
    """Return the credential for this exact host; never for an unencrypted connection."""
    look_up = settings.credentials.get(url.host)
    if look_up is None or url.scheme != "https":
        return None
    try:
        value = (await look_up()).reveal()
    except HoldfastError:
        raise ToolFailure(
            ResultCode.UNAVAILABLE, f"The credential for {url.host} cannot be had now."
        ) from None
    # A single word is a bearer token; otherwise the value contains its own scheme.
    return value if " " in value else f"Bearer {value}"


class WebConnection:
    """An open connection; the caller must close it."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Return the next bytes of the response; empty at EOF."""
        try:
            return await self._reader.read(1 << 16)
        except OSError as error:
            raise UnansweredRequest(ResultCode.FAILED, "The connection broke off.") from error

    async def write(self, content: bytes) -> None:
        """Send everything; write errors are ignored, because the peer may have responded."""
        try:
            self._writer.write(content)
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        """Abort immediately; a graceful shutdown could be delayed by the peer."""
        self._writer.transport.abort()


async def _checked(url: Url, settings: WebSettings, *, local: bool) -> Sequence[str]:
    """Resolve and check the addresses of the host; one blocked address blocks all of them."""
    try:
        # A loopback address needs no resolution.
        found = [url.host] if is_loopback(url.host) else await settings.resolve(url.host, url.port)
    except (OSError, UnicodeError) as error:
        raise _connection_failure(f"{url.host} cannot be resolved") from error
    for address in found:
        why = settings.judge(address) if not local else _not_loopback_reason(address)
        if why is not None:
            raise ToolFailure(
                ResultCode.ADDRESS_BLOCKED,
                f"{url.host} leads to an address that is {why}; nothing was sent.",
            )
    if not found:
        raise _connection_failure(f"{url.host} cannot be resolved")
    return found[:_TRIED_AT_MOST]


def _not_loopback_reason(address: str) -> str | None:
    return None if is_loopback(address) else "not on this machine"


async def _open(url: Url, address: str, tls: ssl.SSLContext | None) -> WebConnection:
    reader, writer = await asyncio.open_connection(
        address,
        url.port,
        ssl=tls,
        server_hostname=url.host if tls else None,
        # Numeric addresses only, so that no second DNS lookup happens (DNS rebinding).
        flags=socket.AI_NUMERICHOST,
    )
    return WebConnection(reader, writer)


def _connection_failure(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.FAILED, f"{why}.")
