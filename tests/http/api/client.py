"""A client of `/api`: a visitor with a repository, and the words of that surface."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.app import Environment
from holdfast.http.app import AppOptions, create_app
from tests.houses import open_house
from tests.http.asgi import Answer
from tests.http.v1.client import Visitor, a_repository
from tests.stand_ins import GatedRuntime, SeededRandomness, SettableClock, StandInMachine


@dataclass(frozen=True)
class Client(Visitor):
    """Somebody with a token and a repository."""

    repo: dict[str, Any]

    async def opened(self, **fields: Any) -> dict[str, Any]:
        """Open a session and return it."""
        answer = await self.post("/api/sessions", {"repoId": self.repo["id"], **fields})
        assert answer.status == 201, answer.body
        session: dict[str, Any] = answer.document
        return session

    async def prompted(self, session: dict[str, Any], text: str, **fields: Any) -> dict[str, Any]:
        """Prompt a session and return what was answered."""
        answer = await self.prompt(session, text=text, **fields)
        assert answer.status == 202, answer.body
        accepted: dict[str, Any] = answer.document
        return accepted

    async def prompt(self, session: dict[str, Any], **body: Any) -> Answer:
        """Prompt a session."""
        return await self.post(f"/api/sessions/{session['id']}/prompt", body)

    async def whole(self, session: dict[str, Any]) -> dict[str, Any]:
        """Return a session with all that belongs to it."""
        answer = await self.get(f"/api/sessions/{session['id']}")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.document
        return found

    async def rows(self, session: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
        """Return the messages of a session."""
        answer = await self.get(f"/api/sessions/{session['id']}/messages{query}")
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.document
        return found


@asynccontextmanager
async def client_of(house: Holdfast, root: Path) -> AsyncIterator[Client]:
    """Let somebody in who has registered a repository below the root."""

    async def well() -> None:
        """Be a store that can be written."""

    app = create_app(house, well, AppOptions(port=8765))
    async with app.streams:
        _, secret = await house.tokens.ensure_local()
        somebody = Client(house, app, secret, {})
        path = a_repository(root / "tree")
        answer = await somebody.post("/api/repos", {"path": str(path)})
        assert answer.status == 201, answer.body
        yield Client(house, app, secret, answer.document)


@asynccontextmanager
async def playing(folder: Path, *play: Any) -> AsyncIterator[tuple[Client, dict[str, Any]]]:
    """Play a turn in a house of its own, begun by a prompt."""
    outside = Environment(
        clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine()
    )
    root = folder / "work"
    root.mkdir()
    opening = open_house(folder / "home", GatedRuntime(list(play)), outside=outside, root=root)
    async with opening as house, client_of(house, root) as client:
        session = await client.opened()
        await client.prompted(session, "go")
        yield client, session
