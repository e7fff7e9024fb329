"""S01: no route answers without credentials, and none tells by its refusal that it is there."""

import asyncio
import base64
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.tokens import Scope as TokenScope
from holdfast.http.auth import COOKIE
from holdfast.ports.store import Store
from tests.http.asgi import ask
from tests.http.v1.client import HOST, Visitor
from tests.marks import proves
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Tell
from tests.torture.doors import NOWHERE, Doors, Header, doors, seen_of

pytestmark = pytest.mark.slow

# A document and files without data; what they show comes from routes that are not open.
PAGE = {f"page.{name}" for name in ("agent", "agents", "asset", "session", "sessions", "timeline")}
OPEN = {"front", "health", "sign_in", *PAGE}


class CountingStore:
    """A store that counts how often it is read and written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, *given: Any, **named: Any) -> Any:
        self.asked += 1
        return await self._store.read(*given, **named)

    async def write(self, *given: Any, **named: Any) -> Any:
        self.asked += 1
        return await self._store.write(*given, **named)


@proves("S01")
def test_every_route_refuses_every_wrong_credential_alike(tmp_path: Path, tell: Tell) -> None:
    routes, told, work = asyncio.run(knocked(tmp_path))

    tell(f"{routes} routes × {len(work)} wrong credentials, one answer")
    assert len(work) >= 10
    ((status, headers, body),) = told
    assert status == 401
    assert dict(headers)["www-authenticate"] == "Bearer"
    assert b"unauthenticated" in body
    # As much work for a route that is there as for one that is not, whatever it would do.
    assert {name: counts for name, counts in work.items() if len(counts) > 1} == {}


@proves("S01")
def test_the_right_credentials_would_be_seen(tmp_path: Path) -> None:
    async def heard() -> tuple[set[int], set[str]]:
        async with doors(tmp_path / "home") as house:
            found = {(await house.knock(route, house.bearer)).status for route in house.routes}
            named = {route.name for route in house.app.routes if route.needs is None}
            return found, named

    statuses, is_open = asyncio.run(heard())

    assert 401 not in statuses
    assert is_open == OPEN


Told = tuple[int, tuple[tuple[str, str], ...], bytes]


async def knocked(folder: Path) -> tuple[int, set[Told], dict[str, set[int]]]:
    """Try every wrong credential at every route; return the answers, and the work they took."""
    stores: list[CountingStore] = []

    def counted(store: Store) -> Any:
        stores.append(CountingStore(store))
        return stores[0]

    clock = SettableClock()
    outside = Environment(
        clock=clock, randomness=SeededRandomness(), machine=StandInMachine(), wrap=counted
    )
    told: set[Told] = set()
    work: dict[str, set[int]] = {}
    async with doors(folder / "home", outside) as house:
        places = await there(house.visitor)
        for name, headers in (await wrong(house, clock)).items():
            query = f"?token={house.visitor.secret}" if name == "in the query" else ""
            work[name] = set()
            for answer in attempts(house, headers, places, query):
                # What was asked lately is remembered, and would be less work.
                clock.advance(seconds=2)
                before = stores[0].asked
                status, shown, body = seen_of(await answer)
                told.add((status, tuple(sorted(shown.items())), body))
                work[name].add(stores[0].asked - before)
        return len(house.routes), told, work


def attempts(house: Doors, headers: list[Header], places: Mapping[str, str], query: str) -> Any:
    """Yield requests: every route with what is there and what is not, and no route at all."""
    for route in house.routes:
        yield house.knock(route, *headers, at=places, query=query)
        yield house.knock(route, *headers, at=NOWHERE, query=query)
    given = [(name.encode(), value.encode()) for name, value in [("host", HOST), *headers]]
    for method, path in (("GET", "/nothing"), ("PUT", "/v1/agents"), ("OPTIONS", "/v1/agents")):
        yield ask(house.app, path + query, method=method, headers=given)


async def there(visitor: Visitor) -> dict[str, str]:
    """Make something for every placeholder that can be made here."""
    session = await visitor.session()
    message = await visitor.say(session, "hello")
    return {
        **NOWHERE,
        "agent_id": session["agent_id"],
        "session_id": session["id"],
        "message_id": message["id"],
        "model_id": "offline:holdfast",
    }


async def wrong(house: Doors, clock: SettableClock) -> dict[str, list[Header]]:
    """Return wrong credentials by what is wrong with them."""
    tokens, owner = house.visitor.house.tokens, house.visitor.house.owner
    good = house.visitor.secret
    _, expired = await tokens.create(owner, "old", TokenScope.ADMIN, timedelta(seconds=1))
    ended, revoked = await tokens.create(owner, "gone", TokenScope.ADMIN)
    await tokens.revoke(owner, ended.id)
    clock.advance(seconds=5)
    basic = base64.b64encode(f"holdfast:{good}".encode()).decode()
    texts = {
        "wrong": f"Bearer hf_{'A' * 43}",
        "expired": f"Bearer {expired}",
        "revoked": f"Bearer {revoked}",
        "empty": "Bearer ",
        "no scheme": good,
        "another scheme": f"Basic {basic}",
        "a scheme of its own": f"Token {good}",
        "too long": f"Bearer {good}x",
        "too short": f"Bearer {good[:-1]}",
        "two words": f"Bearer {good} {good}",
        "nothing": "",
    }
    found = {name: [("authorization", text)] for name, text in texts.items()}
    right = ("authorization", f"Bearer {good}")
    # That it was used is noted once an hour, which is work, too: so now, and it comes first.
    await tokens.resolve(good)
    return (
        {"a token as a cookie": [("cookie", f"{COOKIE}={good}")]}
        | found
        | {
            "none": [],
            "in the query": [],
            "two headers": [right, right],
            "another header": [("x-api-key", good)],
        }
    )
