"""S02: whoever asks for another host than ours is refused before any path is looked at."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.http.asgi import ask
from tests.http.sockets import Line, serving
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.doors import Doors, Header, doors, seen_of

pytestmark = pytest.mark.slow

OURS = ("127.0.0.1:8765", "localhost:8765", "[::1]:8765")
EVIL = (
    "evil.example", "127.0.0.1.evil.example", "127.evil.example", "localhost.evil.example",
    "evil.localhost", "xlocalhost", "localhost.", "127.0.0.1.", "127.0.0.2", "127.1", "127.0.1",
    "0.0.0.0", "0", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "127.0.0.1%00", "::1",
    "[::]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::1%25lo]", "ｌocalhost", "127。0。0。1",
    "localhost%2eevil", "lo\tcalhost", "169.254.169.254", "metadata.google.internal", "*", "null",
)  # fmt: skip
TAILS = ("", ":8765", ":80", ":443", ":08765", ":8765:8765", ":", ":-1", ":99999", ":8765 ")
TRICKS = (
    "localhost:8765@evil.example", "evil.example@localhost:8765", "localhost:8765/evil",
    "localhost:8765?evil", "localhost:8765#evil", "localhost:8765\\evil", "http://localhost:8765",
    "localhost:8765,evil.example", "localhost:8765, localhost:8765", "localhost:8765;evil",
    "localhost:8765 evil.example", " localhost:8765", "localhost :8765", "localhost\x0b:8765",
    "localhost:8765\x00", "localhost:8765%20", "localhost:８765", "", " ", "/", "@", "?",
)  # fmt: skip
PATHS = (("GET", "/healthz"), ("GET", "/v1/agents"), ("POST", "/v1/agents"), ("GET", "/nothing"))


@proves("S02")
def test_no_other_name_is_answered_to(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    names = [*TRICKS, *(f"{name}{tail}" for name in EVIL for tail in TAILS)]
    chosen = [*TRICKS, *luck.sample(names[len(TRICKS) :], sized(quick=50, test=200, torture=200))]

    told, metrics = asyncio.run(asked_for(tmp_path, [[("host", each)] for each in chosen]))

    tell(f"{len(chosen)} hosts × {len(PATHS)} paths")
    ((status, _, body),) = told
    assert status == 400
    assert b'"invalid_host"' in body
    # Nothing but the last request, for the count itself, came as far as the table.
    assert 'route="none",status="400"' in metrics
    assert [line for line in metrics.splitlines() if "requests_total{" in line] == [
        f'holdfast_requests_total{{route="none",status="400"}} {len(chosen) * len(PATHS)}'
    ]


@proves("S02")
def test_several_names_or_none_are_not_answered_to(tmp_path: Path) -> None:
    ours, evil = ("host", OURS[0]), ("host", "evil.example")
    several = [[ours, ours], [ours, evil], [evil, ours], [], [("x-forwarded-host", OURS[0])]]

    told, _ = asyncio.run(asked_for(tmp_path, several))

    assert {status for status, _, _ in told} == {400}


@proves("S02")
def test_our_own_names_are(tmp_path: Path) -> None:
    told, _ = asyncio.run(
        asked_for(tmp_path, [[("host", each)] for each in (*OURS, "LocalHost:8765")])
    )

    # Health, a list, a body that is missing, and a path at which nothing is.
    assert {status for status, _, _ in told} == {200, 400, 404}
    assert not any(b"invalid_host" in body for _, _, body in told)


@proves("S02")
def test_the_path_that_is_judged_is_the_path_that_is_routed(tmp_path: Path, tell: Tell) -> None:
    targets = (
        "http://evil.example/healthz", "http://127.0.0.1:{port}/healthz", "https:/healthz",
        "//evil.example/healthz", "///healthz", "/healthz@evil.example", "/healthz#/x",
        "/#/healthz", "\\healthz", "/\\healthz", "healthz", "*", "/healthz%2f..", "/x/../healthz",
        "/./healthz", "/%2e/healthz", "/healthz/", "/healthz;x", "/healthz%20", "/healthz%3fx",
        "/%68ealthz", "/HEALTHZ", "/healthz\x0b", "127.0.0.1:{port}", "file:///healthz",
    )  # fmt: skip

    heard = asyncio.run(spoken(tmp_path, targets))

    tell(f"{len(targets)} targets on a socket")
    assert {
        target: status for target, status in heard.items() if status not in ([400], [401])
    } == {}


@proves("S02")
def test_a_plain_path_would_be_seen(tmp_path: Path) -> None:
    assert asyncio.run(spoken(tmp_path, ("/healthz", "/healthz?"))) == {
        "/healthz": [200],
        "/healthz?": [200],
    }


Told = tuple[int, tuple[tuple[str, str], ...], bytes]


async def asked_for(folder: Path, hosts: list[list[Header]]) -> tuple[set[Told], str]:
    """Ask with right credentials under each host; return the answers, and what was counted."""
    told: set[Told] = set()
    async with doors(folder / "home") as house:
        for host in hosts:
            for method, path in PATHS:
                status, headers, body = seen_of(await _asked(house, method, path, host))
                told.add((status, tuple(sorted(headers.items())), body))
        return told, house.app.metrics.text()


async def _asked(house: Doors, method: str, path: str, host: list[Header]):  # type: ignore[no-untyped-def]
    headers = [*host, house.bearer]
    sent = [(name.encode(), value.encode("utf-8")) for name, value in headers]
    return await ask(house.app, path, method=method, headers=sent)


async def spoken(folder: Path, targets: tuple[str, ...]) -> dict[str, list[int]]:
    """Ask for targets on a real socket, each on a connection of its own."""
    async with doors(folder / "home") as house, serving(house.visitor.house) as line:
        return {target: await _status(line, target) for target in targets}


async def _status(line: Line, target: str) -> list[int]:
    return (await line.say(line.request(target.format(port=line.port)), answers=1)).statuses
