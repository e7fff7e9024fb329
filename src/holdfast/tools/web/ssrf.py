"""SSRF policy: which URLs a tool may name, and which addresses it may connect to.

The address table is ours, because libraries disagree and change. Connecting is `connection.py`.

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
# Of IPv6 one block is given out to the world; everything else is refused without a list.
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
    """Return why nobody may connect to the address; `None` for one that all the world can reach.

    An IPv4 address inside of an IPv6 one is what the connection ends at, so that one is judged.
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
    """Tell whether the address is this machine itself, in a spelling that hides nothing."""
    parsed = _parse_address(address)
    if isinstance(parsed, IPv4Address):
        return parsed in _LOOPBACK_4
    return parsed == _LOOPBACK_6


def _parse_address(address: str) -> Address | None:
    # A zone names a link, so what carries one is no address of the world.
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
        # The server in clear, the client with every bit turned.
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
# Controls, blanks, direction marks and what has no meaning: nobody sees them, programs do.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_PLAIN: Final = "/?:@!$&'()*+,;=-._~%"
_LOCAL_NAMES: Final = ("localhost", "local", "internal", "home.arpa")


class Url(Struct, frozen=True, kw_only=True):
    """Where a request goes; `target` is the path with the query, as it is sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def text(self) -> str:
        """Return the address built anew from what was read."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def authority(self) -> str:
        """Return the host, and the port where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _USUAL_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Return what two addresses of one server have in common."""
        return self.scheme, self.host, self.port


def read_url(text: str, *, schemes: Iterable[str] = ("https",)) -> Url:
    """Return the parts of an address; raise `insecure_url` for anything but a plain one."""
    found = _URL.fullmatch(text) if len(text) <= URL_LONGEST else None
    if found is None or "\\" in text or any(unicodedata.category(each) in _UNSEEN for each in text):
        raise _insecure_url("it is no plain https address")
    scheme = found["scheme"].lower()
    if scheme not in schemes:
        raise _insecure_url("only https is spoken")
    if "@" in found["authority"]:
        raise _insecure_url("it carries a user name or a password")
    authority = _AUTHORITY.fullmatch(found["authority"])
    host = _bracketed(authority["host"]) if authority else None
    port = int((authority and authority["port"]) or _USUAL_PORT[scheme])
    if host is None or port > 0xFFFF:
        raise _insecure_url("its host cannot be read in one way only")
    target = (found["path"] or "/") + (found["query"] or "")
    return Url(scheme=scheme, host=host, port=port, target=quote(target, safe=_PLAIN))


def read_local_url(text: str) -> Url | None:
    """Return the parts of an address on this machine, plain http allowed; `None` for any other."""
    url = read_url(text, schemes=("http", "https"))
    return url if url.host == "localhost" or is_loopback(url.host) else None


def require_domain(url: Url, grants: Iterable[Grant]) -> None:
    """Refuse a host that one of the grants does not name, and one that no grant can name."""
    if (url.host, url.port) not in allowed_domains(grants):
        raise ToolFailure(
            ResultCode.DOMAIN_NOT_ALLOWED,
            f"{url.host}:{url.port} is not among the allowed domains.",
        )
    if is_local_name(url.host):
        raise ToolFailure(
            ResultCode.ADDRESS_BLOCKED,
            f"{url.host} names an address or a local machine; only names of the web are reached.",
        )


def allowed_domains(grants: Iterable[Grant]) -> frozenset[tuple[str, int]]:
    """Return host and port of every entry that all of the grants have."""
    each = [frozenset(filter(None, map(_entry, grant.domains))) for grant in grants]
    return frozenset.intersection(*each) if each else frozenset()


def is_local_name(host: str) -> bool:
    """Tell whether the host is an address in any spelling, or a name that stays at home."""
    # Whatever ends in a number is an address to one program or another, however it is spelled.
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return True
    return any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES)


def _entry(text: str) -> tuple[str, int] | None:
    found = _AUTHORITY.fullmatch(text)
    host = _bracketed(found["host"]) if found else None
    if found is None or host is None:
        return None
    return host, int(found["port"] or _USUAL_PORT["https"])


def _bracketed(text: str) -> str | None:
    if text.startswith("["):
        inner = text[1:-1].lower()
        return inner if re.fullmatch(r"[0-9a-f:.]*:[0-9a-f:.]*", inner) else None
    return _name(text)


def _name(text: str) -> str | None:
    """Return the host in its one spelling: lower case, ASCII, no dot at the end."""
    host = text.lower().removesuffix(".")
    # A letter that only becomes ASCII in lower case is a look-alike too.
    if len(host) > 253 or host.isascii() != text.isascii():
        return None
    if not host.isascii():
        # To some programs a digit is a digit in every script, and digits are an address.
        if any(each.isdecimal() and not each.isascii() for each in host):
            return None
        try:
            ascii_host = host.encode("idna").decode("ascii")
            # The codec folds look-alikes together; what does not come back as it went is one.
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
    # What claims to be encoded has to be, and by one spelling only.
    is_plain = unicodedata.normalize("NFKC", decoded) == decoded == decoded.lower()
    return is_plain and not any(unicodedata.category(each) in _UNSEEN for each in decoded)


def _insecure_url(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.INSECURE_URL, f"The URL is refused: {why}.")
