"""SSRF policy: which URLs a tool may name, and which addresses it may connect to.

The address table is our own, because libraries disagree and change. Connecting belongs to
`connection.py`.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from holdfast.domain.tools import Grant, ResultCode
from holdfast.tools.tool import ToolFailure

Address = IPv4Address | IPv6Address
_BLOCKED_4: Final[Mapping[IPv4Network, str]] = {
    IPv4Network("0.0.0.0/8"): "unspecified",
    IPv4Network("10.0.0.0/8"): "private",
    IPv4Network("100.64.0.0/10"): "shared by a carrier",
    IPv4Network("127.0.0.0/8"): "loopback",
    IPv4Network("169.254.0.0/16"): "link-local",
    IPv4Network("172.16.0.0/12"): "private",
    IPv4Network("192.0.0.0/24"): "reserved",
    IPv4Network("192.0.2.0/24"): "for documentation",
    IPv4Network("192.88.99.0/24"): "reserved",
    IPv4Network("192.168.0.0/16"): "private",
    IPv4Network("198.18.0.0/15"): "for benchmarks",
    IPv4Network("198.51.100.0/24"): "for documentation",
    IPv4Network("203.0.113.0/24"): "for documentation",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv4Network("240.0.0.0/4"): "reserved",
}
# Only this IPv6 block is allocated for global unicast; everything else is refused.
_GLOBAL_6: Final = IPv6Network("2000::/3")
_BLOCKED_6: Final[Mapping[IPv6Network, str]] = {
    IPv6Network("2001::/23"): "reserved",
    IPv6Network("2001:db8::/32"): "for documentation",
    IPv6Network("3ffe::/16"): "reserved",
    IPv6Network("3fff::/20"): "for documentation",
}
_UNSPECIFIED: Final = IPv6Address("::")
_LOOPBACK_4: Final = IPv4Network("127.0.0.0/8")
_LOOPBACK_6: Final = IPv6Address("::1")
_IN_LAST_BITS: Final = (
    IPv6Network("::ffff:0:0/96"),  # mapped
    IPv6Network("::/96"),  # compatible
    IPv6Network("64:ff9b::/96"),  # NAT64
)
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")


def blocked_reason(address: str) -> str | None:
    """Return why the address is blocked (SSRF); `None` for a globally reachable one.

    An IPv4 address embedded in an IPv6 address is checked, because the connection ends there.
    """
    parsed = _parse_address(address)
    if parsed is None:
        return "no address"
    if isinstance(parsed, IPv4Address):
        return _first(_BLOCKED_4, parsed)
    if parsed in (_UNSPECIFIED, _LOOPBACK_6):
        return "loopback" if parsed == _LOOPBACK_6 else "unspecified"
    inner = tuple(_embedded_address(parsed))
    if inner:
        return next((why for each in inner if (why := _first(_BLOCKED_4, each))), None)
    if parsed not in _GLOBAL_6:
        return "not global"
    return _first(_BLOCKED_6, parsed)


def is_loopback(address: str) -> bool:
    """Return whether the address is loopback; embedded IPv4 addresses do not count."""
    parsed = _parse_address(address)
    if isinstance(parsed, IPv4Address):
        return parsed in _LOOPBACK_4
    return parsed == _LOOPBACK_6


def _parse_address(address: str) -> Address | None:
    # A zone id names a local link, so the address is not global.
    if "%" in address:
        return None
    try:
        return ip_address(address)
    except (AddressValueError, ValueError):
        return None


def _embedded_address(address: IPv6Address) -> Iterator[IPv4Address]:
    bits = int(address)
    if any(address in network for network in _IN_LAST_BITS):
        yield _ipv4_of(bits)
    elif address in _SIX_TO_FOUR:
        yield _ipv4_of(bits >> 80)
    elif address in _TEREDO:
        # The server address is stored as is, the client address with all bits inverted.
        yield _ipv4_of(bits >> 64)
        yield _ipv4_of(~bits)


def _ipv4_of(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFF_FFFF)


def _first(
    table: Mapping[IPv4Network, str] | Mapping[IPv6Network, str], parsed: Address
) -> str | None:
    return next((why for network, why in table.items() if parsed in network), None)


URL_LONGEST: Final = 8192
_USUAL_PORT: Final = {"https": 443, "http": 80}
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]+)"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>[1-9][0-9]{0,4}))?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Control, blank, direction and unassigned characters: invisible to people, not to programs.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_PLAIN: Final = "/?:@!$&'()*+,;=-._~%"
_LOCAL_NAMES: Final = ("localhost", "local", "internal", "home.arpa")


class Url(Struct, frozen=True, kw_only=True):
    """The destination of a request; `target` is the path with the query, as sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def text(self) -> str:
        """Return the URL rebuilt from its parsed parts."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def authority(self) -> str:
        """Return the host, and the port unless it is the default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _USUAL_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Return scheme, host and port."""
        return self.scheme, self.host, self.port


def read_url(text: str, *, schemes: Iterable[str] = ("https",)) -> Url:
    """Parse a URL; raise `insecure_url` for anything that parsers could read differently."""
    found = _URL.fullmatch(text) if len(text) <= URL_LONGEST else None
    if found is None or "\\" in text or any(unicodedata.category(each) in _UNSEEN for each in text):
        raise _insecure_url("it is not a plain https URL")
    scheme = found["scheme"].lower()
    if scheme not in schemes:
        raise _insecure_url("only https is supported")
    if "@" in found["authority"]:
        raise _insecure_url("it contains a user name or a password")
    authority = _AUTHORITY.fullmatch(found["authority"])
    host = _bracket(authority["host"]) if authority else None
    port = int((authority and authority["port"]) or _USUAL_PORT[scheme])
    if host is None or port > 0xFFFF:
        raise _insecure_url("its host is ambiguous")
    target = (found["path"] or "/") + (found["query"] or "")
    return Url(scheme=scheme, host=host, port=port, target=quote(target, safe=_PLAIN))


def read_local_url(text: str) -> Url | None:
    """Parse a loopback URL, plain http allowed; `None` for any other host."""
    url = read_url(text, schemes=("http", "https"))
    return url if url.host == "localhost" or is_loopback(url.host) else None


def require_domain(url: Url, grants: Iterable[Grant]) -> None:
    """Refuse a host that is not in every grant, and any IP address or local name (SSRF)."""
    if (url.host, url.port) not in allowed_domains(grants):
        raise ToolFailure(
            ResultCode.DOMAIN_NOT_ALLOWED,
            f"{url.host}:{url.port} is not an allowed domain.",
        )
    if is_local_name(url.host):
        raise ToolFailure(
            ResultCode.ADDRESS_BLOCKED,
            f"{url.host} is an IP address or a local name; only public host names are allowed.",
        )


def allowed_domains(grants: Iterable[Grant]) -> frozenset[tuple[str, int]]:
    """Return host and port of every entry that all grants contain."""
    each = [frozenset(filter(None, map(_entry, grant.domains))) for grant in grants]
    return frozenset.intersection(*each) if each else frozenset()


def is_local_name(host: str) -> bool:
    """Return whether the host is an IP address in any notation, or a local name."""
    # Some programs parse any host with a numeric last label as an IP address.
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return True
    return any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES)


def _entry(text: str) -> tuple[str, int] | None:
    found = _AUTHORITY.fullmatch(text)
    host = _bracket(found["host"]) if found else None
    if found is None or host is None:
        return None
    return host, int(found["port"] or _USUAL_PORT["https"])


def _bracket(text: str) -> str | None:
    if text.startswith("["):
        inner = text[1:-1].lower()
        return inner if re.fullmatch(r"[0-9a-f:.]*:[0-9a-f:.]*", inner) else None
    return _name(text)


def _name(text: str) -> str | None:
    """Return the host in canonical form: lower case, ASCII, without a trailing dot."""
    host = text.lower().removesuffix(".")
    # Homoglyph: a letter that becomes ASCII only in lower case.
    if len(host) > 253 or host.isascii() != text.isascii():
        return None
    if not host.isascii():
        # Some programs read decimal digits of any script as an IP address.
        if any(each.isdecimal() and not each.isascii() for each in host):
            return None
        try:
            ascii_host = host.encode("idna").decode("ascii")
            # The codec maps homoglyphs to one form; a failed round trip reveals one.
            if ascii_host.encode("ascii").decode("idna") != host:
                return None
        except UnicodeError:
            return None
        host = ascii_host
    return host if all(map(_is_label, host.split("."))) else None


def _is_label(label: str) -> bool:
    if not _LABEL.fullmatch(label):
        return False
    if not label.startswith("xn--"):
        return True
    try:
        decoded = label[4:].encode().decode("punycode")
    except UnicodeError:
        return False
    # A punycode label must decode, and its encoding must be canonical.
    is_plain = unicodedata.normalize("NFKC", decoded) == decoded == decoded.lower()
    return is_plain and not any(unicodedata.category(each) in _UNSEEN for each in decoded)


def _insecure_url(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.INSECURE_URL, f"The URL is refused: {why}.")
