"""Host check (DNS rebinding), Origin and CSRF checks, and the security headers of every response.

Authentication is `auth.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.domain.errors import Code, Denied, Invalid

# No caching, no scripts, no framing and no content sniffing unless a route allows it.
SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
# Values of `Sec-Fetch-Site` for requests that no foreign page has caused.
_SAME_SITE_VALUES: Final = frozenset({"none", "same-origin"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAME: Final = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class ServerNames:
    """Every value of `Host` that names this server, and the origins of its own pages."""

    hosts: frozenset[str]
    origins: frozenset[str]

    def is_secure(self, host: str) -> bool:
        """Return whether a browser that requests this host uses TLS."""
        return f"https://{host.lower()}" in self.origins


def server_names(
    port: int, more: Iterable[str] = (), *, has_tls: bool = False, is_behind_proxy: bool = False
) -> ServerNames:
    """Return the names of a server: loopback names on its port, and the configured ones.

    A configured name without a port matches with the server's port, and without one, because a
    proxy may listen on the default port.
    """
    local = "https" if has_tls else "http"
    given = "https" if has_tls or is_behind_proxy else "http"
    found = {(local, host) for name in LOOPBACK_NAMES for host in _spellings(name, port, local)}
    for name in more:
        host = _parse_host_name(name)
        has_port = host.rpartition("]")[2].count(":") == 1
        hosts = {host} if has_port else {host, f"{host}:{port}"}
        found |= {(given, each) for each in hosts}
    return ServerNames(
        hosts=frozenset(host for _, host in found),
        origins=frozenset(f"{scheme}://{host}" for scheme, host in found),
    )


def is_allowed_host(headers: Mapping[str, str], hosts: frozenset[str]) -> bool:
    """Return whether the request has exactly one `Host`, and it names this server.

    Against DNS rebinding: a foreign page can point its own name here, but cannot send ours.
    """
    # With two `Host` headers, a proxy may have checked the other one; joined, they match none.
    return headers.get("host", "").lower() in hosts


def require_same_site(headers: Mapping[str, str], origins: frozenset[str]) -> None:
    """Refuse a request that the browser marks as sent by a foreign page."""
    origin = headers.get("origin")
    if _site(headers) not in _SAME_SITE_VALUES or (origin is not None and origin not in origins):
        raise _cross_site_error()


def require_same_origin(headers: Mapping[str, str], origins: frozenset[str]) -> None:
    """Refuse a request that does not prove that the web UI sent it (CSRF)."""
    require_same_site(headers, origins)
    if "origin" not in headers and _site(headers) != "same-origin":
        raise _cross_site_error()


def _site(headers: Mapping[str, str]) -> str:
    # Clients other than browsers do not send it and need not.
    return headers.get("sec-fetch-site", "none")


def _cross_site_error() -> Denied:
    return Denied(
        Code.FOREIGN_ORIGIN,
        "Requests from other web sites are refused; use the server's own page, or send a token.",
    )


def _spellings(name: str, port: int, scheme: str) -> set[str]:
    """Return a host with its port, and without it where browsers omit it."""
    return {f"{name}:{port}", *((name,) if port == _DEFAULT_PORTS[scheme] else ())}


def _parse_host_name(name: str) -> str:
    host = name.strip().lower()
    if not _NAME.fullmatch(host):
        raise Invalid(
            Code.INVALID_INPUT,
            f"{name!r} is not a host name; use HOST or HOST:PORT.",
            {"field": "name"},
        )
    return host
