"""S22: no spelling of a denied address, and no name for one, is ever connected to."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.tools import Grant
from holdfast.ports.tools import PlannedCall
from holdfast.tools.tool import ToolFailure
from holdfast.tools.toolbox import LocalToolbox
from holdfast.tools.web.http_request import web_tools
from holdfast.tools.web.ssrf import blocked_reason, read_url
from tests.marks import proves
from tests.tools.http_hosts import a_place, asked, code_of, granting, requested, settings
from tests.torture.conftest import Sized, Tell

ROOT = Path(__file__).resolve().parents[2]
# Read before the tests take the environment away.
CORPORA = os.environ.get("HOLDFAST_CORPORA")
GOOD = "good.example"


def words(text: str) -> list[str]:
    """Return what stands between blanks."""
    return text.split()


FOUR = words("""
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.254 100.64.0.1 100.100.100.200 100.127.255.255
    127.0.0.1 127.0.0.53 127.255.255.254 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1
    172.31.255.254 192.0.0.1 192.0.0.192 192.0.2.1 192.168.0.1 192.168.255.254 198.18.0.1
    198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
""")
SIX = words("""
    :: ::1 fe80::1 fec0::1 fc00::1 fd00:ec2::254 ff02::1 2001:db8::1 3fff::1 100::1
    64:ff9b:1::1 2001:2::1 5f00::1
""")
# Names under which clouds and clusters keep what nobody else should see.
NAMES = words("""
    metadata.google.internal metadata.goog metadata instance-data instance-data.ec2.internal
    kubernetes.default.svc kubernetes.default.svc.cluster.local localhost localhost.localdomain
    ip6-localhost host.docker.internal gateway.docker.internal router.home.arpa printer.local
    rancher-metadata metadata.tencentyun.com metadata.platformequinix.com wpad.home.arpa
    customer1.app.localhost 127.0.0.1.nip.io 169.254.169.254.sslip.io localtest.me
""")
# With {good} granted: a URL that some reader takes for another host.
TRICKS = [
    "https://{good}@{bad}/",
    "https://{good}:x@{bad}/",
    "https://{good}%40{bad}/",
    "https://{good}\\@{bad}/",
    "https://{good}\\{bad}/",
    "https://{bad}\\@{good}/",
    "https://{bad}%2f@{good}/",
    "https://{bad}#@{good}/",
    "https://{bad}?@{good}/",
    "https://{bad};@{good}/",
    "https://{bad}&@{good}/",
    "https://{bad}\t@{good}/",
    "https://{good}.{bad}/",
    "https://{bad}.{good}.{bad}/",
    "https://{good}%00.{bad}/",
    "https://{good}%0d%0a{bad}/",
    "https:{bad}/",
    "https:/{bad}/",
    "https:\\\\{bad}/",
    "https:////{bad}/",
    "//{bad}/",
    "\\\\{bad}\\",
    "https://{bad}:443@{good}:443/",
    "https://{good}:443@{bad}/",
    "https://{good}:443:{bad}/",
    "https://[{good}]/",
    "https://[{bad}]/",
    "https://{good},{bad}/",
    "https://{good}|{bad}/",
    "https://{good}`{bad}/",
    "https://{good}{{{bad}/",
    "https://{good}<{bad}/",
    "https://{good}^{bad}/",
    "https://@{bad}/",
    "https://:@{bad}/",
    "https://{good}:@{bad}/",
    "http://{bad}/",
    "https+http://{bad}/",
    "https://{good}。{bad}/",
    "https://{bad}。/",
    "https://{good}\u2044{bad}/",
    "https://{good}\uff0f{bad}/",
    "https://{good}\uff1a443@{bad}/",
    "https://{good}\uff20{bad}/",
    "https://{good}\u200b.{bad}/",
    "https://{bad}\u00ad/",
    "view-source:https://{bad}/",
    "https://{bad}%09/",
    "https://0\u06f0.{bad}/",
    "https://{good}/../../@{bad}",
    "https://{good}/?u=https://{bad}/",
    "https://{good}/#@{bad}/",
    "https://{good}/{bad}",
    "https://{good}/\u202e{bad}",
    "https://{good}:0x1bb/",
    "https://{good}:443 /",
]

pytestmark = pytest.mark.slow

Case = tuple[str, tuple[str, ...], tuple[str, ...]]


@proves("S22")
def test_no_spelling_of_a_denied_address_is_connected_to(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    cases = list(all_cases())
    traced = luck.sample(cases, min(len(cases), sized(quick=50, test=200, torture=1 << 20)))

    codes = asyncio.run(decided(cases))
    seen, witness = watched(tmp_path, traced)

    tell(f"{len(cases)} decided {dict(codes)}, {len(traced)} traced by {witness}, {seen} connected")
    assert len(FOUR) + len(SIX) == 39
    assert len(cases) >= 2_500
    assert set(codes) == {"denied/address_blocked", "denied/insecure_url"}
    assert seen == 0


@proves("S22")
def test_a_connection_to_a_denied_address_would_be_seen(tmp_path: Path) -> None:
    cases: list[Case] = [(f"https://{GOOD}:9/", (f"{GOOD}:9",), (each,)) for each in FOUR[7:9]]

    seen, _ = watched(tmp_path, cases, "open")

    assert seen == len(cases)


@proves("S22")
def test_no_way_of_writing_a_url_leads_to_a_host_that_was_not_granted(tell: Tell) -> None:
    tricks = [
        trick.format(good=GOOD, bad=bad)
        for trick in TRICKS
        for bad in ("evil.example", "127.0.0.1", "[::1]", "localhost", "2130706433")
    ]

    hosts = asyncio.run(planned_hosts(tricks))

    tell(f"{len(tricks)} tricks, {len(hosts)} read as the granted host and nothing else")
    assert len(tricks) >= 200
    assert 0 < len(hosts) < len(tricks)
    assert set(hosts) == {GOOD}


@proves("S22")
def test_what_the_standard_reads_otherwise_is_refused(tell: Tell) -> None:
    files = sorted(Path(CORPORA).rglob("urltestdata.json")) if CORPORA else []
    entries = [each for file in files for each in json.loads(file.read_text("utf-8"))]
    tests = [each for each in entries if isinstance(each, dict) and each.get("base") is None]

    wrong = [each["input"] for each in tests if not agrees(each)]

    told = "" if tests else ": HOLDFAST_CORPORA does not have them"
    tell(f"{len(tests)} URLs of the web platform tests{told}")
    assert wrong == []


@proves("S22")
def test_a_reading_that_differs_from_the_standard_is_found() -> None:
    assert agrees({"input": "https://a.example/", "hostname": "a.example"})
    assert agrees({"input": "https://a\\b.example/", "hostname": "a"})
    assert not agrees({"input": "https://a.example/", "hostname": "b.example"})
    assert not agrees({"input": "https://a.example/", "failure": True})


def all_cases() -> Iterator[Case]:
    """Yield every spelling as the URL's host, granted by name, and every address as an answer."""
    for address in FOUR:
        for host in spellings(IPv4Address(address)):
            yield f"https://{host}/", (host, GOOD), ("93.184.216.34",)
    for address in [*SIX, *(each for four in FOUR for each in wrapped(IPv4Address(four)))]:
        for host in (address, IPv6Address(address).exploded, address.upper()):
            yield f"https://[{host}]/", (f"[{host}]", GOOD), ("93.184.216.34",)
        yield f"https://{GOOD}/", (GOOD,), (address,)
        yield f"https://{GOOD}/", (GOOD,), ("93.184.216.34", address)
    for address in FOUR:
        yield f"https://{GOOD}/", (GOOD,), (address,)
        yield f"https://{GOOD}/", (GOOD,), ("2606:4700::1111", address, "1.1.1.1")
    for name in NAMES:
        yield f"https://{name}/", (name, GOOD), ("169.254.169.254",)
        yield f"https://{name.upper()}./", (name, GOOD), ("127.0.0.1",)


def spellings(address: IPv4Address) -> Iterator[str]:
    """Yield every way in which some program or other writes an IPv4 address."""
    number, parts = int(address), address.packed
    yield from (str(number), hex(number), f"0{number:o}", f"0x{number:08X}", f"0{number:o}.")
    written = [(str(part), hex(part), f"0{part:o}") for part in parts]
    yield from (".".join(each) for each in product(*written))
    low24, low16 = number & 0xFFFFFF, number & 0xFFFF
    yield from (f"{parts[0]}.{low24}", f"{parts[0]}.{parts[1]}.{low16}", f"{hex(parts[0])}.{low24}")
    yield from (f"{address}.", f"{parts[0]:03}.{parts[1]:03}.{parts[2]:03}.{parts[3]:03}")
    yield "".join(f"%{ord(sign):02x}" for sign in str(address))
    yield str(address).translate({ord("0") + n: 0xFF10 + n for n in range(10)})
    yield str(address).replace(".", "。")
    yield str(address).translate({ord("0") + n: 0x0660 + n for n in range(10)})


def wrapped(address: IPv4Address) -> Iterator[str]:
    """Yield the IPv6 addresses that end at an IPv4 one."""
    four = int(address)
    forms = [0xFFFF << 32 | four, 0x64FF9B << 96 | four, 0x2002 << 112 | four << 80]
    forms.append(0x20010000 << 96 | 0x08080808 << 64 | (four ^ 0xFFFFFFFF))
    forms.append(0x20010000 << 96 | four << 64 | (0x08080808 ^ 0xFFFFFFFF))
    yield from (str(IPv6Address(form)) for form in forms)
    yield f"::{address}"


async def decided(cases: Sequence[Case]) -> Counter[str]:
    """Return how often each answer was given, without a network to be reached."""
    codes: Counter[str] = Counter()
    for url, domains, addresses in cases:

        async def resolve(_: str, __: int, found: Sequence[str] = addresses) -> Sequence[str]:
            return found

        given = settings(resolve=resolve, address_check=blocked_reason)
        codes[code_of(await requested(given, granting(*domains), url=url))] += 1
    return codes


async def planned_hosts(urls: Sequence[str]) -> list[str]:
    """Return the host of each URL that somebody would be asked about."""
    toolbox = LocalToolbox(web_tools(settings()))
    place = a_place(Grant(domains=(GOOD,)))
    plans = [await toolbox.plan(place, asked(url=url)) for url in urls]
    return [plan.preview["host"] for plan in plans if isinstance(plan, PlannedCall)]


def watched(folder: Path, cases: Sequence[Case], *how: str) -> tuple[int, str]:
    """Return how many connections a process makes for these, and who counted them."""
    path, log = folder / "cases.json", folder / "connects"
    path.write_text(json.dumps(cases))
    program = [sys.executable, "-m", "tests.tools.egress_program", str(path), *how]
    strace = shutil.which("strace")
    tracing = [strace, "-f", "-qq", "-e", "trace=connect", "-o", str(log)] if strace else []
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    run = subprocess.run(
        [*tracing, *program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    told = json.loads(run.stdout)
    assert sum(told["codes"].values()) == len(cases)
    if not strace:
        return told["connections"], "an audit hook (no strace)"
    calls = [line for line in log.read_text().splitlines() if "AF_INET" in line]
    return max(len(calls), told["connections"]), "strace"


def agrees(test: dict[str, Any]) -> bool:
    """Tell whether we refuse a URL, or read the same host as the standard does."""
    try:
        host = read_url(test["input"]).host
    except ToolFailure:
        return True
    # The standard keeps a dot at the end, which names the same host.
    return not test.get("failure") and test.get("hostname", "").strip("[]").rstrip(".") == host
