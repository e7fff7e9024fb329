"""Everything an owner can read from a house, as one value: to be compared with what was true."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast import (
    AgentQuery,
    Holdfast,
    HoldfastError,
    RunScope,
    SessionId,
    SessionQuery,
    Status,
    open_holdfast,
)
from holdfast.domain.queries import SessionOrder
from tests.torture.clients.house import settings

Testimony = dict[str, Any]


async def witnessed(
    home: Path, sessions: Sequence[str], truth: Testimony | None = None
) -> Testimony:
    """Return all that can be read; an answer that was refused stands there as its code.

    What the truth knows by id is asked for one by one, because a listing may leave it out.
    """
    try:
        async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
            return await _told(house, sessions, truth)
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
    if what == "waiting" and not isinstance(told[what], str):
        shown = set(told[what].sessions)
        waiting = [
            each
            for each in truth[what].sessions
            if each in shown or not _is_refusal(told.get(f"session {each}"))
        ]
        return msgspec.structs.replace(truth[what], sessions=tuple(waiting))
    kind = what.partition("s ")[0]
    if kind not in {"agent", "session"} or not hasattr(told[what], "items"):
        return truth.get(what)
    shown = {each.id for each in told[what].items}
    kept = [
        each
        for each in truth[what].items
        if each.id in shown or not _is_refusal(told.get(f"{kind} {each.id}"))
    ]
    return msgspec.structs.replace(truth[what], items=tuple(kept))


def refusals(truth: Testimony, told: Testimony) -> list[str]:
    """Return what was refused, and would not be in truth."""
    return [
        what
        for what, answer in told.items()
        if _is_refusal(answer) and not _is_refusal(truth.get(what))
    ]


async def _told(house: Holdfast, sessions: Sequence[str], truth: Testimony | None) -> Testimony:
    told = {what: await _answer(ask) for what, ask in _listings(house).items()}
    for session in sessions:
        told |= await _session(house, SessionId(session))
    by_id = _by_id(house, truth or told)
    return told | {what: await _answer(ask) for what, ask in by_id.items()}


Ask = Callable[[], Awaitable[Any]]


def _listings(house: Holdfast) -> dict[str, Ask]:
    """Return everything that is listed, searched and counted."""
    owner = house.owner
    queries = {f"by {order}": SessionQuery(owner=owner, order=order) for order in SessionOrder}
    queries |= {
        f"that are {status}": SessionQuery(owner=owner, statuses=(status,)) for status in Status
    }
    queries["with a tag"] = SessionQuery(owner=owner, tags=("a tag",))
    queries["with a text"] = SessionQuery(owner=owner, text="title")
    asked: dict[str, Ask] = {
        f"sessions {name}": partial(house.sessions.list, query) for name, query in queries.items()
    }
    asked["agents of all"] = lambda: house.agents.list(AgentQuery(owner=owner, status=None))
    asked["agents in use"] = lambda: house.agents.list(AgentQuery(owner=owner))
    asked["models"] = house.models.list
    asked["repos"] = lambda: house.repos.list(owner)
    asked["count"] = lambda: house.sessions.count(SessionQuery(owner=owner))
    asked["waiting"] = house.maintenance.recover
    return asked


def _by_id(house: Holdfast, truth: Testimony) -> dict[str, Ask]:
    """Return what is asked for by its id or number, as far as the truth could be told."""
    owner = house.owner
    asked: dict[str, Ask] = {}
    for what, answer in truth.items():
        kind, _, key = what.partition(" ")
        items = getattr(answer, "items", ())
        if kind == "messages":
            for each in items:
                asked[f"message {key} {each.id}"] = partial(
                    house.messages.get, owner, SessionId(key), each.id
                )
        if kind == "events" and items:
            middle = items[len(items) // 2].sequence
            asked[f"news {key} after {middle}"] = partial(_news, house, SessionId(key), middle)
    for each in getattr(truth.get("agents of all"), "items", ()):
        asked[f"agent {each.id}"] = partial(house.agents.get, owner, each.id)
        asked[f"agent {each.slug}"] = partial(house.agents.get, owner, each.slug)
    repos = truth.get("repos")
    for each in repos if isinstance(repos, list) else ():
        asked[f"repo {each.id}"] = partial(house.repos.get, owner, each.id)
    return asked


async def _session(house: Holdfast, session: SessionId) -> Testimony:
    owner = house.owner
    forked = SessionQuery(owner=owner, forked_from=session)
    asked: dict[str, Ask] = {
        f"session {session}": lambda: house.sessions.get(owner, session),
        f"messages {session}": lambda: house.messages.list(owner, session),
        f"events {session}": lambda: _news(house, session),
        f"sessions forked from {session}": lambda: house.sessions.list(forked),
        f"verified {session}": lambda: _verified(house, session),
    }
    return {what: await _answer(ask) for what, ask in asked.items()}


async def _news(house: Holdfast, session: SessionId, after: int = 0) -> Any:
    """Return all events after a number, page by page: a reader goes on until the end."""
    read: list[Any] = []
    while True:
        page = await house.events.list(house.owner, session, after=after)
        read += page.items
        if page.next_cursor is None:
            return msgspec.structs.replace(page, items=tuple(read))
        after = int(page.next_cursor)


async def _verified(house: Holdfast, session: SessionId) -> Any:
    """Return what a session was verified to be; faults that are named are no lie."""
    found = await house.sessions.verify(house.owner, session)
    return found if not found.faults else "refused: named as damaged"


async def _answer(ask: Ask) -> Any:
    try:
        return await ask()
    except HoldfastError as error:
        return refusal(error)
    except Exception as error:  # noqa: BLE001 — what nobody foresaw is a finding, too
        return f"raised: {error!r}"


def _is_refusal(answer: object) -> bool:
    """Tell whether an answer says nothing; that there is no such thing says something."""
    is_told = isinstance(answer, str) and answer.startswith("refused: ")
    return is_told and not str(answer).endswith("_not_found")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}…"
