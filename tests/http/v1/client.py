"""A visitor of `/v1`: asks the real application of a real house, without a network."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.types import ASGIApp

from holdfast import Holdfast
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.app import AppOptions, create_app
from holdfast.mcp.http_transport import McpEndpoint
from tests.houses import played
from tests.http.asgi import Answer, ask

HOST: Final = "127.0.0.1:8765"
A_STRANGER: Final = "0192f0c1-0000-7000-8000-00000000dead"


@dataclass(frozen=True)
class Visitor:
    """Somebody with a token."""

    house: Holdfast
    app: ASGIApp
    secret: str

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.ask("POST", path, body, headers=headers)

    async def patch(self, path: str, body: Any, **headers: str) -> Answer:
        return await self.ask("PATCH", path, body, headers=headers)

    async def delete(self, path: str) -> Answer:
        return await self.ask("DELETE", path)

    async def ask(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request; names of headers are written with `_` for `-`."""
        content = body if isinstance(body, bytes) else b"" if body is None else encoded(body)
        named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        sent = {"host": HOST, "authorization": f"Bearer {self.secret}", **named}
        if content:
            sent.setdefault("content-type", "application/json")
        path, mark, query = path.partition("?")
        return await ask(
            self.app,
            f"{quote(path)}{mark}{query}",
            method=method,
            headers=[(name.encode(), value.encode()) for name, value in sent.items()],
            body=content,
        )

    async def asked(self, method: str, target: str) -> Answer:
        """Send a request whose path is already spelled as it goes over the wire."""
        headers = {"host": HOST, "authorization": f"Bearer {self.secret}"}
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        return await ask(self.app, target, method=method, headers=sent)

    async def agent(self, **fields: Any) -> dict[str, Any]:
        """Make an agent and return it."""
        body = {"name": "Helper", "system_prompt": "You are terse.", **fields}
        return _made(await self.post("/v1/agents", body))

    async def session(self, agent: str | None = None, **fields: Any) -> dict[str, Any]:
        """Open a session and return it."""
        of = agent or (await self.agent())["id"]
        return _made(await self.post(f"/v1/agents/{of}/sessions", fields))

    async def say(self, session: Mapping[str, Any], text: str, **fields: Any) -> dict[str, Any]:
        """Send a message and return it."""
        body = {"role": "user", "content": {"text": text}, **fields}
        return _made(await self.post(f"/v1/sessions/{session['id']}/messages", body))

    async def messages(self, session: Mapping[str, Any], query: str = "") -> list[dict[str, Any]]:
        """Return the messages of a session."""
        answer = await self.get(f"/v1/sessions/{session['id']}/messages{query}")
        assert answer.status == 200, answer.body
        data: list[dict[str, Any]] = answer.document["data"]
        return data

    async def told(self, session: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
        """Send a message, wait until its turn has ended, and return all messages."""
        await self.say(session, text)
        await self.settled(session)
        return await self.messages(session)

    async def settled(self, session: Mapping[str, Any]) -> None:
        """Wait until no turn of a session runs or waits."""
        await played(self.house, SessionId(session["id"]))

    async def as_(self, owner: str, scope: Scope = Scope.WRITE) -> "Visitor":
        """Return somebody else, or the same with another scope."""
        _, secret = await self.house.tokens.create(Owner(owner), name="test", scope=scope)
        return replace(self, secret=secret)

    async def bound(self, agents: tuple[str, ...], tools: tuple[str, ...]) -> "Visitor":
        """Return the same with a token that runs the calls of some agents and tools only."""
        house = self.house
        ids = tuple([(await house.agents.get(house.owner, each)).id for each in agents])
        _, secret = await house.tokens.create(
            house.owner, "test", Scope.TOOLS, agents=ids, tools=tools
        )
        return replace(self, secret=secret)


@asynccontextmanager
async def visiting(house: Holdfast) -> AsyncIterator[Visitor]:
    """Let somebody with the local token in."""

    async def well() -> None:
        """Be a store that can be written."""

    async with McpEndpoint(house, "0") as mcp_handler:
        app = create_app(house, well, AppOptions(port=8765, mcp_handler=mcp_handler))
        async with app.streams:
            _, secret = await house.tokens.ensure_local()
            yield Visitor(house, app, secret)


def encoded(body: Any) -> bytes:
    """Return a body as JSON."""
    return json.dumps(body).encode()


def refusal(answer: Answer) -> tuple[int, str]:
    """Return how a request was refused; a refusal always says why to people, too."""
    document = answer.document
    assert set(document) == {"error", "message", "details"}
    assert document["message"]
    return answer.status, document["error"]


def a_repository(folder: Path) -> Path:
    """Make what counts as a Git work tree."""
    (folder / ".git").mkdir(parents=True)
    return folder


def _made(answer: Answer) -> dict[str, Any]:
    assert answer.status == 201, answer.body
    document: dict[str, Any] = answer.document
    return document
