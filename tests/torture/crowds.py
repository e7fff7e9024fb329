"""Clients over HTTP that do everything at once, and do not mind when the server is gone."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from tests.torture.callers import Caller
from tests.torture.clients.house import new_id

MOST_SESSIONS = 6
VERBS = {
    "send": 14,
    "open": 2,
    "fork": 2,
    "interrupt": 3,
    "close": 1,
    "resume": 2,
    "delete": 1,
    "export": 2,
    "repeat": 3,
    "tell": 3,
}
KINDS = ("slow", "long", "broken", "short", "short", "handy")
BUSY = ("queue", "queue", "queue", "interrupt", "reject")


class Member:
    """One client: its own sessions, and what it was told."""

    def __init__(self, caller: Caller, shared: Sequence[str], luck: random.Random) -> None:
        self._caller = caller
        self._shared = shared
        self._luck = luck
        self._own: list[str] = []
        self._said: list[tuple[str, str]] = []
        self.deeds = 0
        # What was claimed under which key, as it was acknowledged.
        self.told: dict[str, str] = {}
        self.subject = f"told-{new_id(luck)}"

    async def work(self, done: asyncio.Event) -> None:
        """Do one thing after the other until it is enough."""
        while not done.is_set():
            verb = self._luck.choices(list(VERBS), list(VERBS.values()))[0]
            await self._do("open" if not self._own else verb)
            self.deeds += 1
            await asyncio.sleep(self._luck.uniform(0, 0.01))

    async def _do(self, verb: str) -> None:
        own = self._luck.choice(self._own) if self._own else ""
        anyones = self._luck.choice([own, *self._shared])
        match verb:
            case "open" | "fork":
                await self._begin(verb, anyones)
            case "send":
                key = new_id(self._luck, self._luck.choice(KINDS))
                busy = self._luck.choice(BUSY)
                if await self._caller.send(anyones, key, on_busy=busy):
                    self._said.append((anyones, key))
            case "repeat":
                # At any time later, with the same id: the answer is the first one.
                if self._said:
                    await self._caller.send(*self._luck.choice(self._said))
            case "tell":
                await self._tell()
            case "export":
                await self._caller.ask("GET", f"/v1/sessions/{anyones}/export?format=jsonl")
            case "close" | "delete":
                await self._caller.act(verb, own)
                if verb == "delete":
                    self._own.remove(own)
                    self._said = [each for each in self._said if each[0] != own]
            case _:
                await self._caller.act(verb, anyones)

    async def _tell(self) -> None:
        """Claim something of a session elsewhere, under a key of its own."""
        key = new_id(self._luck)
        claim = {
            "session_id": self.subject,
            "actions": [{"type": key, "result": "success"}],
            "started_at": "2025-12-31T11:00:00Z",
            "idempotency_key": key,
        }
        answer = await self._caller.ask("POST", "/v1/history", claim)
        if answer.is_success:
            self.told[key] = answer.json()["observation_id"]

    async def lost(self) -> set[str]:
        """Return the keys of claims that are not there, or twice, or not as it was said."""
        found: list[tuple[str, str]] = []
        cursor: str | None = "" if self.told else None
        while cursor is not None:
            path = f"/v1/history/{self.subject}/observations?limit=500"
            answer = await self._caller.ask("GET", f"{path}&cursor={cursor}" if cursor else path)
            # Of a subject whose every claim is lost nothing is there at all.
            if answer.status_code == 404:
                break
            page = answer.json()
            found += [(each["idempotency_key"], each["id"]) for each in page["data"]]
            cursor = page["next_cursor"]
        kept = [key for key, _ in found]
        wrong = {key for key in kept if kept.count(key) > 1}
        return wrong | {key for key, _ in self.told.items() - set(found)}

    async def _begin(self, verb: str, session: str) -> None:
        if len(self._own) >= MOST_SESSIONS:
            return
        key = new_id(self._luck)
        fork = verb == "fork"
        made = await (self._caller.fork(session, key) if fork else self._caller.open(key))
        if made is not None:
            self._own.append(key)


async def clerk(caller: Caller, luck: random.Random, done: asyncio.Event) -> int:
    """Answer every question and settle every call whose outcome nobody knows; return how many."""
    count = 0
    while not done.is_set():
        count += await tidy(caller, luck)
        await asyncio.sleep(0.05)
    return count


async def tidy(caller: Caller, luck: random.Random) -> int:
    """Answer and settle what there is now."""
    questions = (await caller.get("/v1/approvals?state=waiting&limit=1000"))["data"]
    for each in questions:
        decision = luck.choice(["allow", "allow", "deny"])
        path = f"/v1/sessions/{each['session_id']}/approvals/{each['id']}"
        await caller.ask("POST", path, {"decision": decision})
    calls = [each for each in (await unknown(caller)) if each["settled"] is None]
    for each in calls:
        path = f"/v1/sessions/{each['session_id']}/calls/{each['id']}/settle"
        await caller.ask("POST", path, {"how": luck.choice(["skip", "retry"])})
    return len(questions) + len(calls)


async def unknown(caller: Caller) -> list[dict[str, Any]]:
    """Return the calls of which nobody knows what came of them."""
    found: list[dict[str, Any]] = (await caller.get("/v1/calls?state=unknown&limit=1000"))["data"]
    return found
