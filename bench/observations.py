"""Observed history: claims written, long histories resolved, a page of a long timeline."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.figures import Figure, at_most, below, measures, middle
from bench.yardsticks import raw_appends, raw_store
from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.config import load
from holdfast.observations.model import EntityType, Subject
from holdfast.observations.snapshots import Resolver
from holdfast.ports.store import Tx

ROUNDS = 7
CLAIMS = 200
WARM_UP = 100
LONG = 1_000
SESSIONS = 1_000
CHECKPOINTS = 98
PAGES = 15
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)


@measures("submit_ms")
def submits(folder: Path) -> dict[str, Figure]:
    """Submit claims one by one; each is on disk when it is answered."""
    return asyncio.run(_submits(folder))


async def _submits(folder: Path) -> dict[str, Figure]:
    raw = raw_store(folder / "raw.db")
    bare, taken = [], []
    async with _house(folder) as house:
        raw_appends(raw, 0, WARM_UP)
        await _submit(house, "warm", WARM_UP)
        for number in range(1, ROUNDS + 1):
            bare.append(1000 / raw_appends(raw, WARM_UP * number * 10, CLAIMS))
            taken.append(middle(await _submit(house, f"round-{number}", CLAIMS)))
    return {"submit_ms": at_most(middle(taken), "ms", middle(bare), 3)}


async def _submit(house: Holdfast, name: str, count: int) -> list[float]:
    """Return the milliseconds of each; a session starts, goes on, and ends."""
    taken = []
    for number in range(count):
        claim = _claim(f"{name}-{number // 4}", number % 4)
        started = time.perf_counter()
        await house.observations.submit(house.owner, claim)
        taken.append(1000 * (time.perf_counter() - started))
    return taken


@measures("resolve_1k_cold", "resolve_1k_next")
def resolving(folder: Path) -> dict[str, Figure]:
    """Resolve a session of a thousand claims from nothing, and with one more."""
    return asyncio.run(_resolving(folder))


async def _resolving(folder: Path) -> dict[str, Figure]:
    cold, following = [], []
    async with _house(folder) as house:
        for number in range(LONG):
            await house.observations.submit(house.owner, _claim("long-one", number))
        for number in range(ROUNDS):
            resolver = Resolver()
            cold.append(await _resolved(house, resolver))
            await house.observations.submit(house.owner, _claim("long-one", LONG + number))
            following.append(await _resolved(house, resolver))
    return {
        "resolve_1k_cold": below(middle(cold), "ms", 50),
        "resolve_1k_next": below(middle(following), "ms", 2),
    }


async def _resolved(house: Holdfast, resolver: Resolver) -> float:
    subject = Subject(house.owner, EntityType.AGENT_SESSION, "long-one")

    async def look(tx: Tx) -> float:
        started = time.perf_counter()
        known = await tx.observations.entity(subject)
        assert known is not None
        merged = await resolver.fold_of(tx, known)
        assert merged.fold.entity().observation_count >= LONG
        taken = 1000 * (time.perf_counter() - started)
        resolver.folds.put(subject.entity_id, merged)
        return taken

    return await house.store.read(look)


@measures("timeline_100k")
def timelines(folder: Path) -> dict[str, Figure]:
    """Read pages of the timeline of what a thousand sessions name, from its start to its middle."""
    return asyncio.run(_timelines(folder))


async def _timelines(folder: Path) -> dict[str, Figure]:
    async with _house(folder) as house:
        for first in range(0, SESSIONS, 50):
            numbers = range(first, min(first + 50, SESSIONS))
            await asyncio.gather(*(_told(house, number) for number in numbers))
        taken, cursor = [], None
        for _ in range(PAGES):
            started = time.perf_counter()
            page = await house.observations.timeline(house.owner, "FU-1", cursor=cursor)
            taken.append(1000 * (time.perf_counter() - started))
            assert page.total == SESSIONS * (CHECKPOINTS + 2)
            cursor = page.next_cursor
    return {"timeline_100k": below(middle(taken), "ms", 20)}


async def _told(house: Holdfast, number: int) -> None:
    began = BEGIN + timedelta(minutes=number)
    reached = [
        {"name": f"step-{each}", "timestamp": _at(began + timedelta(seconds=each))}
        for each in range(CHECKPOINTS)
    ]
    claim = {
        "session_id": f"session-{number}",
        "actions": [{"type": "work", "result": "success"}],
        "checkpoints": reached,
        "outcomes": [{"type": "feature_unit", "id": "FU-1"}],
        "started_at": _at(began),
        "ended_at": _at(began + timedelta(hours=1)),
    }
    await house.observations.submit(house.owner, claim)


def _claim(session: str, number: int) -> dict[str, Any]:
    at = _at(BEGIN + timedelta(seconds=number))
    action = {"type": "edit", "result": "success", "timestamp": at, "details": {"file": "a.py"}}
    claim: dict[str, Any] = {"session_id": session, "actions": [action], "started_at": _at(BEGIN)}
    if number % 10 == 0:
        claim["checkpoints"] = [{"name": f"step-{number}", "timestamp": at, "state": {"n": number}}]
        claim["outcomes"] = [{"type": "feature_unit", "id": "FU-1"}]
    return claim


def _at(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


def _house(folder: Path) -> Any:
    config = load({"home": folder / "home", "observations_per_minute": 0})
    return open_holdfast(config=config, scope=RunScope.NONE)
