"""S25: to another owner a foreign id is like one that never was, in every operation."""

import asyncio
import hashlib
import json
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from holdfast.http.app import Application
from holdfast.http.routing import Route
from tests.http.asgi import Answer
from tests.http.v1.client import Visitor, a_repository
from tests.http.v1.test_approvals import asking
from tests.marks import proves
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Tell
from tests.torture.doors import body_of, path_of, seen_of

pytestmark = pytest.mark.slow

CANARY = "alices-canary"
# What the two owners share by design: models are of the installation, and names are only names.
SHARED = {"checkpoint", "model_id", "name"}
# Ids, instants and numbers of messages.
_MADE = re.compile(
    rb'[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z|"(?:turn|sequence|last_event)":\d+'
    rb"|(?:ent|obs|tle)_[0-9a-f]+"
)

# What a file is told apart by, and when it was archived.
_GENERATION = re.compile(rb'"generation":"[0-9a-f]{16}"')

Places = Mapping[str, str]


@dataclass(frozen=True)
class World:
    """Two owners: what the one has, what the other has, and the way in for the other."""

    alice: Visitor
    bob: Visitor
    alices: Mapping[str, str]
    bobs: Mapping[str, str]

    @property
    def routes(self) -> list[Route]:
        """Return every route that takes an id of something that belongs to somebody."""
        assert isinstance(self.bob.app, Application)
        owned = [each for each in self.bob.app.routes if each.needs is not None]
        return [each for each in owned if placeholders(each) - SHARED]


@proves("S25")
def test_a_foreign_id_is_answered_like_one_that_never_was(
    tmp_path: Path, luck: random.Random, tell: Tell
) -> None:
    tried, different, leaks = asyncio.run(compared(tmp_path, luck))

    tell(f"{tried} pairs of requests with a foreign id and with a random one, all alike")
    assert different == []
    assert leaks == []


@proves("S25")
def test_an_id_of_ones_own_would_be_seen(tmp_path: Path, luck: random.Random) -> None:
    _, different, _ = asyncio.run(compared(tmp_path, luck, is_alice=True))

    # Not all of it, because what is deleted on the way is not there any more.
    assert len(different) > 20


@proves("S25")
def test_a_foreign_id_in_a_body_or_a_query_is_like_one_that_never_was(
    tmp_path: Path, luck: random.Random, tell: Tell
) -> None:
    tried, different, leaks = asyncio.run(named(tmp_path, luck))

    tell(f"{tried} bodies and queries with a foreign id and with a random one, all alike")
    assert different == []
    assert leaks == []


@proves("S25")
def test_nothing_of_another_owner_is_in_any_list(tmp_path: Path) -> None:
    async def listed() -> tuple[list[str], list[str]]:
        async with world(tmp_path) as found:
            answers = {path: await found.bob.get(path) for path in LISTS}
            own = [
                path for path, each in answers.items() if found.bobs["session_id"] in _shown(each)
            ]
            return [path for path, each in answers.items() if is_leak(found, each)], own

    leaks, own = asyncio.run(listed())

    assert leaks == []
    # What is Bob's own is there, so the lists are the right ones.
    assert "/v1/sessions" in own


LISTS = (
    "/v1/agents?status=all",
    "/v1/sessions",
    "/v1/approvals",
    "/v1/calls",
    "/v1/costs?group_by=session",
    "/v1/costs?group_by=agent",
    "/v1/defaults",
    "/v1/workers",
    "/v1/history",
    "/v1/entities?entity_type=agent_session",
    "/v1/timeline?entity_id=FU-1",
    "/api/sessions",
    "/api/repos",
    "/metrics",
)


async def compared(
    folder: Path, luck: random.Random, *, is_alice: bool = False
) -> tuple[int, list[str], list[str]]:
    """Ask for everything twice; return how often, what differed, and what was Alice's."""
    different, leaks, tried = [], [], 0
    async with world(folder, is_alice=is_alice) as found:
        for route in found.routes:
            for foreign in foreign_places(route, found):
                random_ones = strangers(foreign, found, luck)
                one = await sent(found.bob, route, foreign)
                other = await sent(found.bob, route, random_ones)
                tried += 1
                if "definition_id" in foreign and "/zones/" in route.path:
                    # Whoever asks for a desk is told its name; that it is whose it is, is no news.
                    one, other = (
                        unnamed(answer, places["definition_id"])
                        for answer, places in ((one, foreign), (other, random_ones))
                    )
                if seen_of(one) != seen_of(other):
                    different.append(f"{route.method} {path_of(route, foreign)}: {one.status}")
                if is_leak(found, one):
                    leaks.append(route.name)
    return tried, different, leaks


def unnamed(answer: Answer, id_: str) -> Answer:
    """Return an answer without the id that was asked for, and without names of contents."""
    body = _GENERATION.sub(b"", answer.body.replace(id_.encode(), b""))
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in {"etag", "content-length"}
    }
    return replace(answer, body=body, headers=headers)


def foreign_places(route: Route, found: World) -> Iterator[dict[str, str]]:
    """Yield places of which some are Alice's: all, her agent by its name, and each one alone."""
    names = placeholders(route)
    alices, bobs = found.alices, found.bobs
    # An id of `/api` is that of a session or of a repository.
    kind = "repo" if "/repos" in route.path else "session_id"
    alices, bobs = ({**each, "id": each[kind]} for each in (alices, bobs))
    yield {**bobs, **{name: alices[name] for name in names}}
    if "agent_id" in names:
        yield {**bobs, **{name: alices[name] for name in names}, "agent_id": alices["slug"]}
    for name in sorted(names):
        # A time or a model may be the same for both, and then nothing here would be foreign.
        if alices[name] != bobs[name]:
            yield {**bobs, name: alices[name]}


def strangers(foreign: Mapping[str, str], found: World, luck: random.Random) -> dict[str, str]:
    """Return the same places with something that never was for everything of Alice's."""
    return {
        name: value if value == found.bobs.get(name) else stranger(name, value, luck)
        for name, value in foreign.items()
    }


def stranger(name: str, value: str, luck: random.Random) -> str:
    """Return what looks like a value and never was."""
    if name == "definition_id":
        # Always the same: a desk is made by whoever writes to it, whatever it is called.
        return an_id(random.Random(value))
    if name == "ms":
        return str(luck.randrange(1 << 40))
    if name == "hash":
        return f"{luck.getrandbits(256):064x}"
    if name == "call_id" or "-" not in value or len(value) != 36:
        return f"never{luck.randrange(1000)}"
    return an_id(luck)


def an_id(luck: random.Random) -> str:
    bits = f"{luck.getrandbits(128):032x}"
    return f"{bits[:8]}-{bits[8:12]}-7{bits[13:16]}-8{bits[17:20]}-{bits[20:]}"


async def named(folder: Path, luck: random.Random) -> tuple[int, list[str], list[str]]:
    """Name Alice's ids and random ones in bodies and queries; compare what is not the id itself."""
    different, leaks, tried = [], [], 0
    async with world(folder) as found:
        for number in range(len(list(mentions(found)))):
            # Each time somebody else: whoever has taken a foreign id for their own has it then.
            other = await neighbour(found.alice, found.alices, folder, f"bob-{number}")
            method, path, body, kind = list(mentions(other))[number]
            pair = []
            for value in (found.alices[kind], stranger(kind, found.alices[kind], luck)):
                whole = json.dumps(body).replace("@", value).encode() if body else b""
                answer = await other.bob.ask(method, path.replace("@", value), whole)
                leaks += [path] if is_leak(other, answer, but=value) else []
                pair.append((answer.status, plain(answer.body, value)))
            tried += 1
            if pair[0] != pair[1]:
                different.append(f"{method} {path} {body}: {pair[0][0]} {pair[1][0]}")
    return tried, different, leaks


def mentions(found: World) -> Iterator[tuple[str, str, Any, str]]:
    """Yield requests that name an id beside their path, and of what it is."""
    agent, session = found.bobs["agent_id"], found.bobs["session_id"]
    new = {"name": "A", "system_prompt": ""}
    text = {"role": "user", "content": {"text": "x"}}
    yield "POST", "/v1/agents", {**new, "id": "@", "slug": "a-@"}, "agent_id"
    yield "POST", "/v1/agents", {**new, "slug": "@"}, "slug"
    yield "POST", f"/v1/agents/{agent}/sessions", {"id": "@"}, "session_id"
    yield "POST", f"/v1/agents/{agent}/sessions", {"repo_id": "@"}, "repo"
    yield "POST", f"/v1/sessions/{session}/messages", {**text, "id": "@"}, "message_id"
    yield "POST", f"/v1/sessions/{session}/fork", {"id": "@"}, "session_id"
    yield "POST", f"/v1/sessions/{session}/fork", {"agent_id": "@"}, "agent_id"
    yield "GET", "/v1/sessions?forked_from=@", None, "session_id"
    yield "GET", "/v1/costs?session_id=@", None, "session_id"
    yield "GET", "/v1/costs?agent_id=@", None, "agent_id"
    yield "GET", f"/v1/sessions/{session}/events?format=stream&since=@", None, "event"
    yield "GET", "/v1/sessions?cursor=@", None, "cursor"
    yield "GET", "/v1/agents?cursor=@", None, "cursor"
    yield "GET", "/api/sessions?repoId=@", None, "repo"
    yield "GET", "/api/sessions?before=@", None, "session_id"
    yield "POST", "/api/sessions", {"repoId": "@", "agentId": "holdfast"}, "repo"
    told = {
        "session_id": "@",
        "actions": [{"type": "a", "result": "b"}],
        "started_at": "2025-12-31T11:00:00Z",
    }
    yield "POST", "/v1/history", told, "session_key"
    yield "POST", "/v1/history", {**told, "session_id": "of-@", "idempotency_key": "@"}, "key"
    yield "GET", "/v1/timeline?entity_id=@", None, "session_key"
    yield "GET", "/v1/timeline?entity_id=@", None, "entity"
    body = {"repoId": found.bobs["repo"], "agentId": "holdfast"}
    yield "POST", "/api/sessions", {**body, "id": "@"}, "session_id"
    yield "POST", "/api/sessions", {**body, "agentId": "@"}, "agent_id"


def plain(body: bytes, value: str) -> bytes:
    """Return a body without the value that was sent, and without what is new in every one."""
    return _MADE.sub(b"", body.replace(value.encode(), b""))


async def sent(bob: Visitor, route: Route, places: Places) -> Answer:
    """Ask for a route with a right body; a stream as a page, because it would not end."""
    query = "?format=json" if route.is_stream else ""
    return await bob.ask(route.method, path_of(route, places) + query, body_of(route))


def is_leak(found: World, answer: Answer, *, but: str = "") -> bool:
    """Tell whether something of Alice's stands in an answer, beside what was asked for."""
    own = {CANARY, *found.alices.values()} - {but, *found.bobs.values()}
    return any(each in _shown(answer) for each in own if len(each) > 8)


def _shown(answer: Answer) -> str:
    return answer.body.decode("utf-8", "replace") + str(answer.headers)


def placeholders(route: Route) -> set[str]:
    """Return the names of a route's placeholders."""
    return set(re.findall(r"\{(\w+)\}", route.path))


@asynccontextmanager
async def world(folder: Path, *, is_alice: bool = False) -> AsyncIterator[World]:
    """Let Alice have one of everything, with a turn that waits for an answer, and Bob a little."""
    outside = Environment(
        clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine()
    )
    async with asking(folder / "home", outside) as (alice, session, question, _):
        alices = await things(alice, session, folder / CANARY)
        alices |= {"approval_id": question["id"], "call_id": question["tool_call_id"]}
        await alice.patch(f"/v1/sessions/{session['id']}", {"title": CANARY, "tags": [CANARY]})
        await alice.agent(name=CANARY, slug=CANARY)
        yield await neighbour(
            alice, {**alices, "slug": CANARY}, folder, "local" if is_alice else "bob"
        )


async def neighbour(alice: Visitor, alices: Mapping[str, str], folder: Path, name: str) -> World:
    """Return the world of somebody who may do everything, and has a little."""
    bob = await alice.as_(name, Scope.ADMIN)
    # Another model than Alice's, or there would be calls of the same names.
    helper = await bob.agent(name="Bob", default_model_id="offline:holdfast")
    own = await bob.session(helper["id"], title="mine")
    bobs = await things(bob, own, folder / f"of-{name}")
    bobs |= {"approval_id": an_id(random.Random(1)), "call_id": "c0", "slug": "bob"}
    return World(alice, bob, alices, bobs)


async def things(visitor: Visitor, session: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the ids of a session and of what belongs to it, by the placeholder each fills."""
    house = visitor.house
    owner = (await house.tokens.resolve(visitor.secret)).owner
    message = await visitor.say(session, f"{folder.name} says this")
    repo = await house.repos.add(owner, str(a_repository(folder)), at_terminal=True)
    content = folder.name.encode()
    handle = await house.media.keep(owner, SessionId(session["id"]), content, mime_type="image/png")
    page = (await visitor.get(f"/v1/sessions/{session['id']}/events?format=json")).document
    await visitor.session(session["agent_id"], title=folder.name)
    cursor = (await visitor.get("/v1/sessions?limit=1")).document["next_cursor"]
    await visitor.post(f"/v1/zones/{session['agent_id']}/output", {"line": folder.name})
    archived = await visitor.post(f"/v1/zones/{session['agent_id']}/archive")
    await visitor.post(f"/v1/zones/{session['agent_id']}/output", {"line": folder.name})
    # Named otherwise than what is in it: whoever asks by a name may find the name in the answer.
    nick = hashlib.sha256(content).hexdigest()[:12]
    worker = await visitor.post("/v1/workers", {"name": nick, "tools": ["refund"]})
    told = {
        "session_id": f"told-{nick}",
        "actions": [{"type": "a", "result": folder.name}],
        "checkpoints": [{"name": "reached", "timestamp": "2025-12-31T11:00:00Z"}],
        "outcomes": [{"type": "feature_unit", "id": "FU-1"}],
        "started_at": "2025-12-31T11:00:00Z",
        "idempotency_key": f"key-{nick}",
    }
    history = (await visitor.post("/v1/history", told)).document
    return {
        "worker_id": worker.document["id"],
        "session_key": told["session_id"],
        "checkpoint": "reached",
        "key": told["idempotency_key"],
        "entity": history["entity_id"],
        "definition_id": session["agent_id"],
        "ms": str(archived.document["archived_at_ms"]),
        "name": "output",
        "agent_id": session["agent_id"],
        "session_id": session["id"],
        "message_id": message["id"],
        "hash": handle.removeprefix("media://sha256-"),
        "model_id": "offline:holdfast",
        "repo": repo.id,
        "event": page["data"][0]["id"],
        "cursor": cursor,
    }
