"""Everything an owner can read from a house, as one value: to be compared with what was true."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast import (
    AgentQuery,
    Holdfast,
    HoldfastError,
    Scope,
    SessionId,
    SessionQuery,
    open_holdfast,
)
from holdfast.domain.queries import SessionOrder
from tests.torture.clients.house import settings

Testimony = dict[str, Any]
LISTINGS = {"agents": "agent", **{f"sessions by {order}": "session" for order in SessionOrder}}


async def witnessed(home: Path, sessions: Sequence[str], agents: Sequence[str] = ()) -> Testimony:
    """Return all that can be read; an answer that was refused stands there as its code.

    Sessions and agents are asked for one by one, because a listing may leave them out.
    """
    try:
        async with open_holdfast(config=settings(home), scope=Scope.NONE) as house:
            return await _told(house, sessions, agents)
    except HoldfastError as error:
        return {"house": refusal(error)}
    except Exception as error:  # noqa: BLE001 — what nobody foresaw is a finding, too
        return {"house": f"raised: {error!r}"}


def refusal(error: HoldfastError) -> str:
    """Return how a refused answer is written down."""
    return f"refused: {error.code}"


def differences(truth: Testimony, told: Testimony) -> list[str]:
    """Return every answer that was given and is not the true one; refusals are not lies.

    A listing may leave out what is refused by itself: one bad record hides no neighbour.
    """
    return [
        f"{what}: {_short(told[what])} is not {_short(truth.get(what))}"
        for what in told
        if not _is_refusal(told[what]) and told[what] != _expected(what, truth, told)
    ]


def _expected(what: str, truth: Testimony, told: Testimony) -> Any:
    kind = LISTINGS.get(what)
    if kind is None:
        return truth.get(what)
    shown = {each.id for each in told[what].items}
    kept = [
        each
        for each in truth[what].items
        if each.id in shown or not _is_refusal(told.get(f"{kind} {each.id}"))
    ]
    return msgspec.structs.replace(truth[what], items=tuple(kept))


def refusals(told: Testimony) -> list[str]:
    """Return what was refused."""
    return [what for what, answer in told.items() if _is_refusal(answer)]


async def _told(house: Holdfast, sessions: Sequence[str], agents: Sequence[str]) -> Testimony:
    told: Testimony = {}
    told["agents"] = await _answer(lambda: house.agents.list(AgentQuery(owner=house.owner)))
    for agent in agents:
        told[f"agent {agent}"] = await _answer(
            lambda agent=agent: house.agents.get(house.owner, agent)
        )
    told["models"] = await _answer(house.models.list)
    told["repos"] = await _answer(lambda: house.repos.list(house.owner))
    for order in SessionOrder:
        query = SessionQuery(owner=house.owner, limit=1_000, order=order)
        told[f"sessions by {order}"] = await _answer(lambda query=query: house.sessions.list(query))
    for session in sessions:
        told |= await _session(house, SessionId(session))
    return told


async def _session(house: Holdfast, session: SessionId) -> Testimony:
    owner = house.owner
    return {
        f"session {session}": await _answer(lambda: house.sessions.get(owner, session)),
        f"messages {session}": await _answer(lambda: house.messages.list(owner, session)),
        f"events {session}": await _answer(lambda: house.events.list(owner, session, limit=10_000)),
    }


async def _answer(ask: Any) -> Any:
    try:
        return await ask()
    except HoldfastError as error:
        return refusal(error)
    except Exception as error:  # noqa: BLE001 — what nobody foresaw is a finding, too
        return f"raised: {error!r}"


def _is_refusal(answer: object) -> bool:
    return isinstance(answer, str) and answer.startswith("refused: ")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"
