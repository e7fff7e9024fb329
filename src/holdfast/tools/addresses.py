"""Which addresses a tool may connect to: our own table, because libraries disagree and change.

Names are no business of this module; `urls.py` reads them, `fetching.py` resolves them.
"""

from collections.abc import Iterator, Mapping
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final

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


def blocked_because(address: str) -> str | None:
    """Return why nobody may connect to the address; `None` for one that all the world can reach.

    An IPv4 address inside of an IPv6 one is what the connection ends at, so that one is judged.
    """
    parsed = _parsed(address)
    if parsed is None:
        return "no address"
    if isinstance(parsed, IPv4Address):
        return _first(_BLOCKED_4, parsed)
    if parsed in (_UNSPECIFIED, _LOOPBACK_6):
        return "loopback" if parsed == _LOOPBACK_6 else "unspecified"
    inner = tuple(_inside(parsed))
    if inner:
        return next((why for each in inner if (why := _first(_BLOCKED_4, each))), None)
    if parsed not in _GLOBAL_6:
        return "not global"
    return _first(_BLOCKED_6, parsed)


def is_loopback(address: str) -> bool:
    """Tell whether the address is this machine itself, in a spelling that hides nothing."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv4Address):
        return parsed in _LOOPBACK_4
    return parsed == _LOOPBACK_6


def _parsed(address: str) -> Address | None:
    # A zone names a link, so what carries one is no address of the world.
    if "%" in address:
        return None
    try:
        return ip_address(address)
    except (AddressValueError, ValueError):
        return None


def _inside(address: IPv6Address) -> Iterator[IPv4Address]:
    bits = int(address)
    if any(address in network for network in _IN_LAST_BITS):
        yield _four(bits)
    elif address in _SIX_TO_FOUR:
        yield _four(bits >> 80)
    elif address in _TEREDO:
        # The server in clear, the client with every bit turned.
        yield _four(bits >> 64)
        yield _four(~bits)


def _four(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFF_FFFF)


def _first(
    table: Mapping[IPv4Network, str] | Mapping[IPv6Network, str], parsed: Address
) -> str | None:
    return next((why for network, why in table.items() if parsed in network), None)
