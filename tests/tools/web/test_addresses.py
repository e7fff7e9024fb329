"""Addresses: what all the world can reach, and everything else."""

import ipaddress
from collections.abc import Iterable
from typing import Any

from holdfast.tools.web.ssrf import blocked_reason, is_loopback
from tests.marks import each_case


@each_case(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
        # A Teredo address: server 65.54.227.120, client 192.0.2.45 would be blocked; this one not.
        "2001:0:4136:e378:8000:63bf:f7f7:f7f7",
    ],
)
def test_what_all_the_world_can_reach_is_allowed(address: str) -> None:
    assert blocked_reason(address) is None


@each_case(
    ("address", "why"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("10.255.255.255", "private"),
        ("100.64.0.0", "shared by a carrier"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.169.254", "link-local"),
        ("172.31.255.255", "private"),
        ("192.0.0.8", "reserved"),
        ("192.0.2.1", "for documentation"),
        ("192.88.99.1", "reserved"),
        ("192.168.0.1", "private"),
        ("198.19.255.255", "for benchmarks"),
        ("198.51.100.7", "for documentation"),
        ("203.0.113.7", "for documentation"),
        ("224.0.0.1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "not global"),
        ("fec0::1", "not global"),
        ("fc00::1", "not global"),
        ("fd00:ec2::254", "not global"),
        ("ff02::1", "not global"),
        ("100::1", "not global"),
        ("5f00::1", "not global"),
        ("64:ff9b:1::1", "not global"),
        ("::ffff:0:127.0.0.1", "not global"),
        ("2001:2::1", "reserved"),
        ("2001:10::1", "reserved"),
        ("2001:db8::1", "for documentation"),
        ("3fff::1", "for documentation"),
        ("3ffe::1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:a9fe:a9fe", "link-local"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::10.0.0.1", "private"),
        ("2002:7f00:1::", "loopback"),
        ("2002:c0a8:101::1", "private"),
        ("2001:0:7f00:1::f7f7:f7f7", "loopback"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "for documentation"),
        ("fe80::1%eth0", "no address"),
        ("1.1.1.1%1", "no address"),
        ("example.com", "no address"),
        ("127.1", "no address"),
        ("", "no address"),
    ],
)
def test_everything_else_is_blocked(address: str, why: str) -> None:
    assert blocked_reason(address) == why


def test_nothing_that_the_standard_library_calls_private_is_allowed() -> None:
    # A spread of both families, which shifts from octet to octet: a second opinion on our table.
    four: Iterable[Any] = (
        ipaddress.IPv4Address((high << 16) + low) for high in range(0, 1 << 16, 5) for low in (0, 9)
    )
    six: Iterable[Any] = (
        ipaddress.IPv6Address((high << 112) + (1 << 64) + 1) for high in range(0, 1 << 16, 5)
    )

    # 6to4 and its relay are judged by what is inside, which the library does not do.
    allowed = [
        address
        for address in (*four, *six)
        if not address.is_global and blocked_reason(str(address)) is None
    ]

    assert allowed == []


@each_case(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", False),
        ("localhost", False),
        ("0.0.0.0", False),
        ("127.1", False),
    ],
)
def test_this_machine_is_known_by_its_plain_spellings_only(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
