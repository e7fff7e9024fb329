"""The doors of the server: every route, asked for with right and with wrong things."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.http.app import Application
from holdfast.http.routing import Route
from tests.http.asgi import Answer, ask
from tests.http.v1.client import HOST, Visitor, visiting
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine

Header = tuple[str, str]

# What a right body is, where the table has no example of one.
BODIES: Mapping[str, Any] = {
    "api.repos.add": {"path": "/nowhere"},
    "api.sessions.open": {"repoId": "0192f0c1-0000-7000-8000-00000000dead"},
    "api.sessions.prompt": {"text": "hello"},
}
# A value for every placeholder, of nothing that is there.
NOWHERE: Mapping[str, str] = {
    "agent_id": "0192f0c1-0000-7000-8000-00000000dead",
    "session_id": "0192f0c1-0000-7000-8000-00000000beef",
    "id": "0192f0c1-0000-7000-8000-00000000cafe",
    "message_id": "0192f0c1-0000-7000-8000-00000000f00d",
    "approval_id": "0192f0c1-0000-7000-8000-00000000fade",
    "call_id": "nowhere",
    "worker_id": "0192f0c1-0000-7000-8000-00000000f0e5",
    "model_id": "0192f0c1-0000-7000-8000-00000000face",
    "hash": "0" * 64,
    "definition_id": "nobody",
    "ms": "1",
    "name": "output",
    "session_key": "nowhere",
    "checkpoint": "nowhere",
    "place": "nowhere",
}


@dataclass(frozen=True)
class Doors:
    """A house, who may enter it, and every route that leads in."""

    visitor: Visitor
    clock: SettableClock

    @property
    def app(self) -> Application:
        """Return the application."""
        assert isinstance(self.visitor.app, Application)
        return self.visitor.app

    @property
    def routes(self) -> tuple[Route, ...]:
        """Return every route that is not open to everybody."""
        return tuple(route for route in self.app.routes if route.needs is not None)

    @property
    def bearer(self) -> Header:
        """Return the right credentials."""
        return ("authorization", f"Bearer {self.visitor.secret}")

    async def knock(
        self,
        route: Route,
        *headers: Header,
        at: Mapping[str, str] = NOWHERE,
        host: Sequence[Header] = (("host", HOST),),
        query: str = "",
    ) -> Answer:
        """Ask for a route with a right body and exactly these headers."""
        body = body_of(route)
        given = [*host, *headers, *((("content-type", "application/json"),) if body else ())]
        return await ask(
            self.app,
            path_of(route, at) + query,
            method=route.method,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in given],
            body=body,
        )


@asynccontextmanager
async def doors(home: Path, outside: Environment | None = None) -> AsyncIterator[Doors]:
    """Open a house in which no turn is played, and stand before its doors."""
    clock = SettableClock()
    given = outside or Environment(
        clock=clock, randomness=SeededRandomness(), machine=StandInMachine()
    )
    async with (
        open_holdfast(home, outside=given, scope=RunScope.NONE) as house,
        visiting(house) as visitor,
    ):
        yield Doors(visitor, clock)


def path_of(route: Route, at: Mapping[str, str] = NOWHERE) -> str:
    """Return the path of a route with its placeholders filled."""
    return route.path.format(**at)


def body_of(route: Route) -> bytes:
    """Return a body that the route takes."""
    from tests.http.v1.client import encoded

    if route.body is None:
        return b""
    return encoded(route.example or BODIES.get(route.name, {}))


def seen_of(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """Return all that tells one answer from another; its number is no part of it."""
    headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    return answer.status, headers, answer.body
