"""A client over HTTP: asks with its own ids, and asks again until somebody answers."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from types import TracebackType
from typing import Any, Self

import httpx

from tests.torture.attempts import Record
from tests.torture.clients.house import words_for
from tests.torture.crew import PATIENCE
from tests.torture.served import Server

Json = dict[str, Any]
PAUSE = 0.02


class Caller:
    """One client; what it asks is on its record before, and what it was told after."""

    def __init__(
        self,
        server: Server,
        record: Record | None = None,
        *,
        token: str | None = None,
        others: Sequence[Server] = (),
    ) -> None:
        """The token is the server's own unless another one is given.

        Who is cut off asks the next of the `others`, if there are any.
        """
        self._record = record
        self._server = server
        self._servers = cycle([*others, server])
        self._client = httpx.AsyncClient(
            base_url=server.url,
            headers={"authorization": f"Bearer {token or server.token}"},
            timeout=PATIENCE,
            trust_env=False,
        )
        self.repeats = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        """Ask until there is an answer; who is cut off does not know, and asks the same again."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    answer = await self._client.request(method, path, json=body)
                    self._require_explained(answer)
                    if answer.status_code != 503:
                        return answer
                except httpx.TransportError:
                    self.repeats += 1
                    self._server = next(self._servers)
                    self._client.base_url = httpx.URL(self._server.url)
                await asyncio.sleep(PAUSE)

    def _require_explained(self, answer: httpx.Response) -> None:
        """Fail at a fault of the server's, with its log: nothing else tells what it was."""
        if answer.status_code == 500 and answer.json()["error"] == "internal":
            raise AssertionError(f"{answer.text}\n{self._server.log[-8_000:]}")

    async def get(self, path: str) -> Json:
        """Return the document at a path."""
        answer = await self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        document: Json = answer.json()
        return document

    async def sure(self, method: str, path: str, body: Json) -> Json:
        """Have something done that cannot be refused, and return what came of it."""
        answer = await self.ask(method, path, body)
        assert answer.is_success, answer.text
        document: Json = answer.json()
        return document

    async def open(self, key: str, **fields: Any) -> Json | None:
        """Open a session of that id."""
        body = {"id": key, **fields}
        return await self._noted("open", key, key, "/v1/agents/holdfast/sessions", body)

    async def send(
        self, session: str, key: str, text: str | None = None, *, on_busy: str = "queue"
    ) -> Json | None:
        """Send a message of that id."""
        words = text if text is not None else words_for(key)
        body = {"id": key, "role": "user", "content": {"text": words}, "on_busy": on_busy}
        return await self._noted("send", session, key, f"/v1/sessions/{session}/messages", body)

    async def fork(self, session: str, key: str) -> Json | None:
        """Fork a session where it ends now; the fork has that id."""
        return await self._noted("fork", session, key, f"/v1/sessions/{session}/fork", {"id": key})

    async def act(self, verb: str, session: str) -> Json | None:
        """Interrupt, close, resume or delete a session."""
        path = f"/v1/sessions/{session}"
        if verb != "delete":
            return await self._noted(verb, session, "", f"{path}/{verb}", {})
        number = self._noted_attempt("delete", session, "", "")
        answer = await self.ask("DELETE", path)
        # Asked again after it was done, it is gone already.
        self._noted_answer(number, answer, lambda _: {})
        return None

    async def _noted(self, verb: str, session: str, key: str, path: str, body: Json) -> Json | None:
        text = body["content"]["text"] if verb == "send" else ""
        number = self._noted_attempt(verb, session, key, text)
        answer = await self.ask("POST", path, body)
        self._noted_answer(number, answer, ANSWERS.get(verb, lambda _: {}))
        if not answer.is_success:
            return None
        document: Json = answer.json()
        return document

    def _noted_attempt(self, verb: str, session: str, key: str, text: str) -> int:
        return self._record.attempt(verb, session, key, text) if self._record else 0

    def _noted_answer(
        self, number: int, answer: httpx.Response, shown: Callable[[Json], Json]
    ) -> None:
        if self._record is None:
            return
        if not answer.is_success:
            self._record.answer(number, str(answer.json()["error"]))
            return
        self._record.answer(number, "ok", **shown(answer.json() if answer.content else {}))


def _opened(session: Json) -> Json:
    return {"created_at": session["created_at"], "at": session["forked_from"]}


def _sent(message: Json) -> Json:
    return {name: message[name] for name in ("sequence", "turn", "created_at")}


ANSWERS: dict[str, Callable[[Json], Json]] = {"open": _opened, "fork": _opened, "send": _sent}
