"""S03: what a foreign page makes a browser send changes nothing and opens no stream."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.auth import COOKIE
from holdfast.http.routing import Route
from tests.http.v1.client import HOST
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.doors import Doors, Header, doors

pytestmark = pytest.mark.slow

OWN = f"http://{HOST}"
HOSTS = (
    "evil.example", "127.0.0.1.evil.example", "127.0.0.1:8765.evil.example", "evil127.0.0.1:8765",
    "localhost.evil.example:8765", "localhost:8766", "localhost", "127.0.0.1", "127.0.0.1:80",
    "127.0.0.2:8765", "[::1]", "[::1]:8766", "0.0.0.0:8765", "localhost.:8765", "LOCALHOST:8765",
    "localhost:8765/", "localhost:8765/x", "localhost:8765?", "x@localhost:8765", "localhost:08765",
)  # fmt: skip
SCHEMES = ("http://", "https://", "HTTP://", "ws://", "http:", "//", "")
ODD = (
    "null", "", " ", "*", "file://", "about:blank", "chrome-extension://abc", "moz-extension://abc",
    "data:", "javascript:", f"{OWN} ", f" {OWN}", f"{OWN}, {OWN}", f"{OWN} {OWN}", f"{OWN}\x00",
    f"{OWN}.", f"{OWN}\t", "https://127.0.0.1:8765", "true", "none", "same-origin",
)  # fmt: skip
SITES = ("cross-site", "same-site", "", "None", "same-origin, none", "null", "x")
FIVE = {"agents.create", "sessions.delete", "messages.create", "events", "approvals.answer"}


@proves("S03")
@pytest.mark.parametrize("kind", ["token", "cookie"])
def test_no_foreign_page_changes_anything_or_listens(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell, kind: str
) -> None:
    ours = {OWN, "http://localhost:8765"}
    made = [f"{scheme}{host}" for scheme in SCHEMES for host in HOSTS]
    foreign = [each for each in (*ODD, *luck.sample(made, 100 - len(ODD))) if each not in ours]
    count = sized(test=5, torture=1_000)

    heard, cors, routes = asyncio.run(sent(tmp_path, kind, foreign, count))

    tell(f"{len(foreign)} origins × {routes} routes with a {kind}, all refused")
    assert set(heard) == {(403, "foreign_origin")}
    assert cors == set()


@proves("S03")
def test_our_own_page_is_heard(tmp_path: Path) -> None:
    for kind in ("token", "cookie"):
        heard, cors, _ = asyncio.run(sent(tmp_path / kind, kind, [OWN], 1_000, sites=()))

        assert not [each for each in heard if each[1] == "foreign_origin"]
        assert cors == set()


@proves("S03")
def test_a_cookie_without_an_origin_reads_and_does_no_more(tmp_path: Path) -> None:
    reads, others = asyncio.run(without_origin(tmp_path))

    assert 403 not in reads
    assert others == {403}


Heard = Counter[tuple[int, str]]


async def sent(
    folder: Path, kind: str, origins: list[str], count: int, sites: tuple[str, ...] = SITES
) -> tuple[Heard, set[str], int]:
    """Send every origin to the routes that change something or go on; return the answers."""
    heard: Heard = Counter()
    cors: set[str] = set()
    async with doors(folder / "home") as house:
        delicate = [route for route in house.routes if route.changes or route.is_stream]
        chosen = delicate if count > len(FIVE) else _first(delicate)
        who = house.bearer if kind == "token" else await cookie_of(house)
        marks: list[list[Header]] = [[("origin", each)] for each in origins]
        marks += [[("sec-fetch-site", each), ("origin", OWN)] for each in sites]
        for route in chosen:
            for mark in marks:
                answer = await house.knock(route, who, *mark)
                refused = answer.document["error"] if answer.status >= 400 else ""
                heard[answer.status, refused] += 1
                cors |= {name for name in answer.headers if name.startswith("access-control")}
        return heard, cors, len(chosen)


def _first(routes: list[Route]) -> list[Route]:
    found = [route for route in routes if route.name in FIVE]
    assert len(found) == len(FIVE), {route.name for route in routes}
    return found


async def without_origin(folder: Path) -> tuple[set[int], set[int]]:
    """Ask for every route with the cookie alone; return the statuses of reads and of the rest."""
    reads: set[int] = set()
    others: set[int] = set()
    async with doors(folder / "home") as house:
        who = await cookie_of(house)
        for route in house.routes:
            answer = await house.knock(route, who)
            (others if route.changes or route.is_stream else reads).add(answer.status)
    return reads, others


async def cookie_of(house: Doors) -> Header:
    """Sign in, and return the cookie as a browser sends it."""
    inside = house.visitor.house
    code = await inside.tokens.sign_in_code(inside.owner, Scope.ADMIN)
    _, secret = await inside.tokens.exchange(code)
    return ("cookie", f"{COOKIE}={secret}")
