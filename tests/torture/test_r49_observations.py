"""R49: told in any order, twice, late or against each other, claims come to the same bytes."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.time import moment
from holdfast.observations.claims import Claim, accept_payload
from holdfast.observations.merge import resolve
from holdfast.observations.model import EntityType, Observation, ObservationKind, Subject
from holdfast.wire.observations import entity_form
from tests.marks import proves
from tests.mcp.clients import Line, line_to
from tests.stand_ins import SeededRandomness, SettableClock, StandInMachine
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

SESSION = "abc123"
# Orders that each set of claims is resolved in.
ORDERS = 25


@proves("R49")
def test_claims_come_to_the_same_bytes_in_any_order(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=150, test=500, torture=5_000, release=100_000)
    sets, faults = asyncio.run(tried(tmp_path, luck, -(-count // ORDERS)))

    tell(f"{sets * ORDERS} orders of {sets} sets of claims, submitted over MCP")
    assert faults == []


async def tried(folder: Path, luck: random.Random, sets: int) -> tuple[int, list[str]]:
    """Submit sets of claims, each about a session of its own; return what did not agree."""
    clock = SettableClock()
    outside = Environment(clock=clock, randomness=SeededRandomness(), machine=StandInMachine())
    faults: list[str] = []
    async with open_holdfast(folder / "home", outside=outside, scope=RunScope.NONE) as house:
        async with line_to(house) as line:
            for number in range(sets):
                name = f"{SESSION}-{number}"
                await claimed(house, line, luck, (name, clock))
                faults += await judged(house, line, luck, name)
        faults += list((await house.observations.rebuild()).differences)
    return sets, faults


async def claimed(
    house: Holdfast, line: Line, luck: random.Random, at: tuple[str, SettableClock]
) -> None:
    """Tell of a session: by parts, twice, with and without a key, corrected, deleted, late."""
    name, clock = at
    for number in range(luck.randrange(2, 12)):
        payload = a_payload(name, luck)
        key = {"idempotency_key": f"{name}-{luck.randrange(6)}"} if luck.random() < 0.3 else {}
        kind = luck.random() if number else 0.0
        if kind < 0.7:
            # At once and twice: which of them is first is nobody's to say.
            asked = {"name": "submit_agent_session", "arguments": payload | key}
            numbers = [line.begin("tools/call", **asked) for _ in range(luck.randrange(1, 3))]
            for each in numbers:
                await line.answer(each)
        elif kind < 0.85:
            await line.tool("correct", session_id=name, **a_correction(luck))
        elif kind < 0.9:
            verb = luck.choice(("delete_agent_session", "restore_agent_session"))
            await line.tool(verb, session_id=name)
        else:
            await late(house, payload, f"late-{name}-{number}", luck)
        clock.advance(seconds=luck.choice((0, 0, 1, 60)))


async def late(house: Holdfast, payload: dict[str, Any], key: str, luck: random.Random) -> None:
    """Bring in a claim that was true before others that are known already."""
    then = moment(luck.randrange(1_700_000_000_000, 1_800_000_000_000))
    claim = Claim(
        payload=accept_payload(EntityType.AGENT_SESSION, payload),
        kind=ObservationKind.IMPORT,
        source="a file",
        idempotency_key=key,
        observed_at=then,
    )
    await house.observations.import_(house.owner, claim)


async def judged(house: Holdfast, line: Line, luck: random.Random, name: str) -> list[str]:
    """Resolve a session's claims in many orders, and hold each against what is shown."""
    shown = await line.tool("query_agent_history", session_id=name)
    if shown.is_error:
        # Deleted last, so its claims are not shown; brought back, that is one claim more.
        await line.tool("restore_agent_session", session_id=name)
        shown = await line.tool("query_agent_history", session_id=name)
    found = await house.observations.list_observations(house.owner, name, limit=500)
    subject = Subject(house.owner, EntityType.AGENT_SESSION, name)
    claims: list[Observation] = list(found.items)
    first = told(subject, claims)
    faults = []
    for _ in range(ORDERS):
        luck.shuffle(claims)
        if told(subject, claims) != first:
            faults.append(f"{name}: {[each.ordinal for each in claims]}")
    entity = resolve(subject, claims)
    wanted = msgspec.json.decode(msgspec.json.encode(entity_form(entity)))
    is_shown = {key: shown.form[key] for key in wanted} == wanted
    return faults if is_shown else [*faults, f"{name}: what is shown is something else"]


def told(subject: Subject, claims: list[Observation]) -> bytes:
    """Return what claims come to, to the byte."""
    return msgspec.json.encode(resolve(subject, claims))


def a_payload(name: str, luck: random.Random) -> dict[str, Any]:
    """Return a part of a session, or another telling of a part."""
    minutes = [f"2025-12-31T11:{luck.randrange(60):02}:00Z" for _ in range(4)]
    actions = [
        {"type": luck.choice("abc"), "result": luck.choice(("success", "failure"))}
        | ({"timestamp": luck.choice(minutes)} if luck.random() < 0.5 else {})
        | ({"details": {"n": luck.randrange(3)}} if luck.random() < 0.4 else {})
        for _ in range(luck.randrange(1, 5))
    ]
    checkpoints = [
        {"name": luck.choice("xyz"), "timestamp": luck.choice(minutes)}
        | ({"state": luck.choice(({"s": luck.randrange(3)}, None))} if luck.random() < 0.6 else {})
        for _ in range(luck.randrange(0, 3))
    ]
    outcomes = [{"type": "feature_unit", "id": f"FU-{luck.randrange(3)}"}]
    payload = {
        "session_id": name,
        "actions": actions,
        "started_at": luck.choice(minutes),
        "checkpoints": checkpoints,
        "outcomes": outcomes if luck.random() < 0.5 else None,
        "duration": luck.choice((1, 60, None)),
        "ended_at": luck.choice(("2025-12-31T12:00:00Z", None)),
    }
    optional = [key for key in payload if key not in {"session_id", "actions", "started_at"}]
    dropped = {key for key in optional if luck.random() < 0.4}
    return {key: value for key, value in payload.items() if key not in dropped}


def a_correction(luck: random.Random) -> dict[str, Any]:
    """Return one field and what it should have been."""
    actions = [{"type": luck.choice("abcd"), "result": "success"}]
    return luck.choice(
        (
            {"field": "duration", "value": luck.choice((5, None))},
            {"field": "actions", "value": actions},
            {"field": "started_at", "value": "2025-12-31T10:00:00Z"},
            {"field": "outcomes", "value": []},
        )
    )


@proves("R49")
def test_an_order_that_matters_would_be_seen(
    tmp_path: Path, luck: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(subject: Subject, claims: list[Observation]) -> bytes:
        # As somebody would who takes what comes last for the truth.
        return msgspec.json.encode([subject, claims[-1].fields])

    monkeypatch.setattr("tests.torture.test_r49_observations.told", hasty)
    _, faults = asyncio.run(tried(tmp_path, luck, 3))

    assert faults != []
