"""S25 over MCP: to another owner a foreign id is like one that never was, in every tool."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.tokens import Scope
from holdfast.mcp.server import TOOLS
from tests.http.v1.test_approvals import asking
from tests.marks import proves
from tests.mcp.clients import Frame, Poster
from tests.mcp.payloads import COMPLETE, UNIT
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Tell
from tests.torture.test_s25_owners import an_id

pytestmark = pytest.mark.slow

CANARY = "alices-canary"
# What is new in every answer: ids, hashes and instants.
_MADE = re.compile(
    r"(?:ent|obs|tle)_[0-9a-f]+|[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z"
)


@dataclass(frozen=True)
class World:
    """What Alice has, and the way in for Bob."""

    alice: Poster
    bob: Poster
    alices: dict[str, str]


@proves("S25")
def test_over_mcp_a_foreign_id_is_answered_like_one_that_never_was(
    tmp_path: Path, luck: random.Random, tell: Tell
) -> None:
    tried, different, leaks = asyncio.run(compared(tmp_path, luck))

    tell(f"over MCP {tried} pairs of requests with a foreign id and with a random one, all alike")
    assert different == []
    assert leaks == []


@proves("S25")
def test_over_mcp_an_id_of_ones_own_would_be_seen(tmp_path: Path, luck: random.Random) -> None:
    _, different, leaks = asyncio.run(compared(tmp_path, luck, is_alice=True))

    assert len(different) > 5
    assert leaks != []


def test_every_tool_is_tried() -> None:
    tried = {name for name, *_ in requests("x")}

    assert tried == set(TOOLS)


async def compared(
    folder: Path, luck: random.Random, *, is_alice: bool = False
) -> tuple[int, list[str], list[str]]:
    """Call everything twice; return how often, what differed, and where something was Alice's."""
    different, leaks, tried = [], [], 0
    async with world(folder) as found:
        asks = found.alice if is_alice else found.bob
        for kind, foreign in found.alices.items():
            never = stranger(foreign, luck)
            for method, params in every(kind):
                one = await said(asks, method, params, foreign)
                other = await said(asks, method, params, never)
                tried += 1
                if plain(one, foreign) != plain(other, never):
                    different.append(f"{method} {params} {kind}: {one} {other}"[:400])
                if any(each in json.dumps(one) for each in owned(found) if each not in foreign):
                    leaks.append(f"{method} {params} {kind}: {one}"[:300])
        for method, params in lists():
            answer = await said(asks, method, params, "")
            leaks += [method] if any(each in json.dumps(answer) for each in owned(found)) else []
        # Behind all others, because whoever claims something of a name has it then.
        for kind, foreign in found.alices.items():
            never = stranger(foreign, luck)
            for params in claims():
                one = await said(asks, "tools/call", params, foreign)
                other = await said(asks, "tools/call", params, never)
                tried += 1
                if plain(one, foreign) != plain(other, never):
                    different.append(f"{params} {kind}: {one} {other}"[:400])
    return tried, different, leaks


def requests(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every tool with an id in each of its places."""
    yield "get_session", {"session_id": name}
    yield "list_unknown_calls", {"session_id": name}
    yield "settle_call", {"call_id": name, "how": "skip"}
    yield "settle_call", {"call_id": "c1", "how": "skip", "session_id": name}
    yield "query_agent_history", {"session_id": name}
    yield "query_agent_history", {"cursor": name}
    yield "query_entity_timeline", {"entity_id": name}
    yield "query_entity_timeline", {"entity_id": "x", "cursor": name}
    yield "restore_checkpoint", {"session_id": name, "name": "spec_complete"}
    yield "list_observations", {"session_id": name}
    yield "correct", {"session_id": name, "field": "duration", "value": 1}
    yield "delete_agent_session", {"session_id": name}
    yield "restore_agent_session", {"session_id": name}
    yield "search_sessions", {"query": CANARY}
    yield "search_sessions", {"query": "x", "agent": name}
    yield "search_sessions", {"query": "x", "repo_id": name}
    yield "search_sessions", {"query": "x", "cursor": name}
    yield "query_entities", {"entity_type": "feature_unit", "filters": {"id": name}}
    yield "submit_agent_session", {**COMPLETE, "session_id": name, "idempotency_key": f"k-{name}"}
    yield (
        "submit_entity",
        {
            "entity_type": "agent_decision",
            "fields": {
                "decision": name,
                "rationale": "because it is so",
                "timestamp": "2026-01-01T00:00:00Z",
                "context": {"session_id": name},
            },
        },
    )


def every(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every request that can name something; `@` stands for its id."""
    for name, arguments in requests("@"):
        is_misplaced = kind == "cursor" and "cursor" not in arguments
        if not is_misplaced and not name.startswith("submit"):
            yield "tools/call", {"name": name, "arguments": arguments}
    yield "resources/read", {"uri": "holdfast://sessions/@"}
    yield "resources/read", {"uri": "holdfast://sessions/@/transcript"}
    yield "resources/read", {"uri": "holdfast://history/@"}
    yield "prompts/get", {"name": "continue_session", "arguments": {"session_id": "@"}}
    argument = {"name": "session_id", "value": "@"}
    ref = {"type": "ref/prompt", "name": "continue_session"}
    yield "completion/complete", {"ref": ref, "argument": argument}


def claims() -> Iterator[dict[str, Any]]:
    """Yield calls that say something of a name, whosever it is."""
    for name, arguments in requests("@"):
        if name.startswith("submit"):
            yield {"name": name, "arguments": arguments}


def lists() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield everything that lists."""
    for name, arguments in (
        ("query_agent_history", {}),
        ("list_unknown_calls", {}),
        ("search_sessions", {"query": CANARY}),
        ("query_entities", {"entity_type": "feature_unit"}),
    ):
        yield "tools/call", {"name": name, "arguments": arguments}
    yield "resources/list", {}
    yield "prompts/get", {"name": "continue_session"}


async def said(asks: Poster, method: str, params: dict[str, Any], name: str) -> Frame:
    """Send a request with an id in its place."""
    given = json.loads(json.dumps(params).replace("@", name))
    return await asks.call(method, **given)


def plain(frame: Frame, name: str) -> str:
    """Return an answer without the id that was sent, and without what is new in every one."""
    return _MADE.sub("", json.dumps(frame).replace(name, "@"))


def stranger(value: str, luck: random.Random) -> str:
    """Return what looks like a value and never was."""
    if re.fullmatch(r"[0-9a-f-]{36}", value):
        return an_id(luck)
    if len(value) < 5:
        return f"z{luck.randrange(10)}"
    if value.startswith("ent_"):
        return f"ent_{luck.getrandbits(96):024x}"
    return f"never-{luck.getrandbits(64):016x}"


def owned(found: World) -> set[str]:
    """Return what only Alice can know."""
    return {CANARY, *(each for each in found.alices.values() if len(each) > 8)}


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Let Alice have one of everything, and Bob nothing."""
    outside = Environment(
        clock=SettableClock(), randomness=SeededRandomness(), machine=StandInMachine()
    )
    async with asking(folder / "home", outside) as (visitor, session, _, _):
        alice = Poster(visitor)
        await visitor.say(session, f"{CANARY} says this")
        observed = f"{CANARY}-session"
        note = [{"type": "note", "result": "success", "details": {"text": CANARY}}]
        payload = {**COMPLETE, "session_id": observed, "actions": note}
        told = await alice.tool("submit_agent_session", **payload, idempotency_key="k")
        await alice.tool("submit_agent_session", **(payload | {"session_id": f"{observed}-2"}))
        await alice.tool("submit_entity", entity_type="feature_unit", fields=UNIT)
        page = await alice.tool("query_agent_history", limit=1)
        alices = {
            "hosted": session["id"],
            "agent": session["agent_id"],
            "observed": observed,
            "entity": told.form["entity_id"],
            "observation": told.form["observation_id"],
            "call": "c1",
            "cursor": page.form["next_cursor"],
        }
        bob = Poster(await visitor.as_("bob", Scope.ADMIN))
        yield World(alice, bob, alices)
