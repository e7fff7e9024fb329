"""Settings of outgoing requests, and the addresses that they may connect to.

Names are resolved once and every address is checked. `exchange.py` connects to a checked address.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolFailure
from holdfast.tools.web.ssrf import Url, blocked_reason, is_loopback

# Framing and proxy headers are set by `exchange.py` only, against request smuggling and spoofing.
RESERVED_HEADERS: Final = re.compile(
    r"host|content-length|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|proxy-.*|forwarded|x-forwarded-.*"
)
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
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

    `credentials` maps an exact host to its credential source. `address_check` returns why an
    address is blocked, or `None`. `time_limit` covers a whole request, including name resolution.
    """

    resolve: Resolver = resolve_by_system
    address_check: AddressCheck = blocked_reason
    tls: Callable[[], ssl.SSLContext] = secure_context
    credentials: Mapping[str, CredentialSource] = field(default_factory=dict)
    time_limit: float = 30.0


async def credential_for(url: Url, settings: WebSettings) -> str | None:
    """Return the credential for this exact host; never for an unencrypted connection."""
    look_up = settings.credentials.get(url.host)
    if look_up is None or url.scheme != "https":
        return None
    try:
        value = (await look_up()).reveal()
    except HoldfastError:
        raise ToolFailure(
            ResultCode.UNAVAILABLE, f"The credential for {url.host} is not available now."
        ) from None
    # A single word is a bearer token; otherwise the value contains its own scheme.
    return value if " " in value else f"Bearer {value}"


async def checked_addresses(url: Url, settings: WebSettings, *, local: bool) -> Sequence[str]:
    """Resolve the host and check its addresses (SSRF); one blocked address blocks all of them.

    `local` inverts the rule: then every address must be loopback.
    """
    try:
        # A loopback address needs no resolution.
        found = [url.host] if is_loopback(url.host) else await settings.resolve(url.host, url.port)
    except (OSError, UnicodeError) as error:
        raise ToolFailure(ResultCode.FAILED, f"{url.host} cannot be resolved.") from error
    for address in found:
        why = settings.address_check(address) if not local else _not_loopback_reason(address)
        if why is not None:
            raise ToolFailure(
                ResultCode.ADDRESS_BLOCKED,
                f"{url.host} resolves to an address that is {why}; nothing was sent.",
            )
    if not found:
        raise ToolFailure(ResultCode.FAILED, f"{url.host} cannot be resolved.")
    return found[:_TRIED_AT_MOST]


def _not_loopback_reason(address: str) -> str | None:
    return None if is_loopback(address) else "not on this machine"
