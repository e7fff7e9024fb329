"""Somebody else's things look exactly like things that never were, whatever is asked of them."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.api import Holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import HoldfastError, Invalid
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import Role, Text
from holdfast.domain.queries import AgentQuery, MessageQuery, SessionQuery
from holdfast.domain.sessions import ForkRequest, SessionRequest
from holdfast.observations.model import EntityType
from holdfast.observations.queries import Correction, EntityQuery
from holdfast.observations.service import Observations
from holdfast.services.event_stream import Events
from holdfast.services.messages import Messages
from holdfast.services.sessions import Sessions
from tests.builders import a_message, an_id
from tests.marks import demands, each_case
from tests.observations.claims import FEATURE_UNIT, a_payload

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
NEVER = an_id(30)
NOTE = MessageDraft(role=Role.SYSTEM, parts=(Text(text="x"),))


async def _first(house: Holdfast, session_id: str) -> object:
    async with aclosing(house.events.follow(STRANGER, SessionId(session_id))) as news:
        return await anext(news)


async def _standing(house: Holdfast, session_id: str) -> object:
    async with house.events.reader(STRANGER, SessionId(session_id)) as reader:
        return reader


SESSION_VERBS: Mapping[str, Callable[[Holdfast, str], Awaitable[object]]] = {
    "get": lambda house, id: house.sessions.get(STRANGER, id),
    "fork": lambda house, id: house.sessions.fork(STRANGER, id),
    "update": lambda house, id: house.sessions.update(STRANGER, id, {"title": "x"}),
    "add_functions": lambda house, id: house.sessions.add_functions(STRANGER, id, ("f",)),
    "interrupt": lambda house, id: house.sessions.interrupt(STRANGER, id),
    "resume": lambda house, id: house.sessions.resume(STRANGER, id),
    "close": lambda house, id: house.sessions.close(STRANGER, id),
    "delete": lambda house, id: house.sessions.delete(STRANGER, id),
    "verify": lambda house, id: house.sessions.verify(STRANGER, id),
    "send": lambda house, id: house.messages.send(STRANGER, id, "x"),
    "message get": lambda house, id: house.messages.get(STRANGER, id, NEVER),
    "messages list": lambda house, id: house.messages.list(STRANGER, id),
    "send_idempotent": lambda house, id: house.messages.send_idempotent(STRANGER, id, "x"),
    "make_fork": lambda house, id: house.sessions.make_fork(STRANGER, id, ForkRequest()),
    "record_idempotent": lambda house, id: house.messages.record_idempotent(STRANGER, id, NOTE),
    "record": lambda house, id: house.messages.record(STRANGER, id, NOTE),
    "record_turns": lambda house, id: house.messages.record_turns(STRANGER, id, (NOTE,)),
    "page": lambda house, id: house.messages.page(STRANGER, id, MessageQuery()),
    "unfinished": lambda house, id: house.messages.unfinished(STRANGER, id),
    "excerpts": lambda house, id: house.messages.excerpts(STRANGER, id),
    "send_resuming": lambda house, id: house.messages.send_resuming(STRANGER, id, "x"),
    "require": lambda house, id: house.events.require(STRANGER, id, after=0),
    "reader": _standing,
    "scan": lambda house, id: house.messages.scan(STRANGER, id, MessageQuery()),
    "is_interrupted": lambda house, id: house.messages.is_interrupted(STRANGER, id, a_message()),
    "events list": lambda house, id: house.events.list(STRANGER, id),
    "sequence_of": lambda house, id: house.events.sequence_of(STRANGER, id, NEVER),
    "events list ahead": lambda house, id: house.events.list(STRANGER, id, after=999),
    "follow": _first,
}
AGENT_VERBS: Mapping[str, Callable[[Holdfast, str], Awaitable[object]]] = {
    "get": lambda house, id: house.agents.get(STRANGER, id),
    "update": lambda house, id: house.agents.update(STRANGER, id, {"name": "x"}),
    "archive": lambda house, id: house.agents.archive(STRANGER, id),
    "purge": lambda house, id: house.agents.purge(STRANGER, id),
    "open": lambda house, id: house.sessions.open(STRANGER, id),
}
REPO_VERBS: Mapping[str, Callable[[Holdfast, str], Awaitable[object]]] = {
    "get": lambda house, id: house.repos.get(STRANGER, id),
    "remove": lambda house, id: house.repos.remove(STRANGER, id),
    "open": lambda house, id: house.sessions.open(STRANGER, "holdfast", SessionRequest(repo_id=id)),
}
HISTORY_VERBS: Mapping[str, Callable[[Holdfast, str], Awaitable[object]]] = {
    "show": lambda house, id: house.observations.show(STRANGER, id),
    "show at": lambda house, id: house.observations.show(STRANGER, id, at="2030-01-01"),
    "list_observations": lambda house, id: house.observations.list_observations(STRANGER, id),
    "checkpoint": lambda house, id: house.observations.checkpoint(STRANGER, id, "saved"),
    "correct": lambda house, id: house.observations.correct(
        STRANGER, Correction(session_id=id, field="duration", value=1)
    ),
    "delete": lambda house, id: house.observations.delete(STRANGER, id),
    "restore": lambda house, id: house.observations.restore(STRANGER, id),
}

Verb = Callable[[Holdfast, str], Awaitable[object]]


async def _told(verb: Verb, house: Holdfast, id: str) -> tuple[type, dict[str, object]]:
    with pytest.raises(HoldfastError) as caught:
        await verb(house, id)
    return type(caught.value), caught.value.body()


def test_every_verb_that_names_a_session_is_in_the_table() -> None:
    named = {
        name
        for service in (Sessions, Messages, Events)
        for name, verb in inspect.getmembers(service, inspect.isfunction)
        if not name.startswith("_") and "session_id" in inspect.signature(verb).parameters
    }

    assert named == {word for name in SESSION_VERBS for word in name.split()} & named
    assert len(named) > 10


@each_case("verb", SESSION_VERBS.values(), ids=list(SESSION_VERBS))
async def test_a_foreign_session_looks_like_none(quiet: Holdfast, verb: Verb) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "private")
    before = await quiet.sessions.get(quiet.owner, session.id)

    assert await _told(verb, quiet, session.id) == await _told(verb, quiet, NEVER)
    assert await quiet.sessions.get(quiet.owner, session.id) == before


@pytest.mark.parametrize("verb", AGENT_VERBS.values(), ids=list(AGENT_VERBS))
async def test_a_foreign_agent_looks_like_none(quiet: Holdfast, verb: Verb) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    for ref in (agent.id, agent.slug):
        assert await _told(verb, quiet, ref) == await _told(verb, quiet, NEVER)
    assert await quiet.agents.get(quiet.owner, "helper") == agent


@pytest.mark.parametrize("verb", REPO_VERBS.values(), ids=list(REPO_VERBS))
async def test_a_foreign_repository_looks_like_none(
    quiet: Holdfast, verb: Verb, tmp_path: Path
) -> None:
    await quiet.agents.get(STRANGER, "holdfast")
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)

    assert await _told(verb, quiet, repo.id) == await _told(verb, quiet, NEVER)
    assert await quiet.repos.list(quiet.owner) == [repo]


def test_every_verb_that_names_observed_history_is_in_the_table() -> None:
    named = {
        name
        for name, verb in inspect.getmembers(Observations, inspect.isfunction)
        if not name.startswith("_") and "session_id" in inspect.signature(verb).parameters
    }

    assert named | {"correct"} == {name.split()[0] for name in HISTORY_VERBS}


@demands("S3-150")
@each_case("verb", HISTORY_VERBS.values(), ids=list(HISTORY_VERBS))
async def test_foreign_history_looks_like_none(quiet: Holdfast, verb: Verb) -> None:
    session = await quiet.open()
    saved = {"name": "saved", "timestamp": "2026-01-01T00:00:00Z"}
    for name in ("observed", session.id):
        claim = a_payload(session_id=name, checkpoints=[saved])
        await quiet.observations.submit(quiet.owner, claim)
    before = await quiet.observations.query(quiet.owner)

    for name in ("observed", session.id):
        assert await _told(verb, quiet, name) == await _told(verb, quiet, "never-seen")
    assert await quiet.observations.query(quiet.owner) == before


@demands("S3-150")
async def test_one_session_id_is_two_sessions_to_two_owners(quiet: Holdfast) -> None:
    session = await quiet.open()
    unit = {"type": "unit", "id": "FU-061"}
    for owner, duration in ((quiet.owner, 1), (STRANGER, 2)):
        for name in ("shared-id", session.id):
            claim = a_payload(session_id=name, duration=duration, outcomes=[unit])
            await quiet.observations.submit(owner, claim, idempotency_key=name)
        await quiet.observations.submit_entity(owner, "feature_unit", FEATURE_UNIT)

    theirs = await quiet.observations.query(STRANGER)
    told = await quiet.observations.timeline(STRANGER, "FU-061")
    units = await quiet.observations.entities(
        STRANGER, EntityQuery(entity_type=EntityType.FEATURE_UNIT)
    )

    assert [each.snapshot["duration"] for each in theirs.items] == [2, 2]
    assert [each.hosted for each in theirs.items] == [False, False]
    own = {each.entity_id for each in (*theirs.items, *units.items)}
    assert {each.entity_id for each in told.events} == own
    assert len(own) == 3
    for entity in (await quiet.observations.query(quiet.owner)).items:
        assert (await quiet.observations.timeline(STRANGER, entity.entity_id)).total == 0


async def test_listings_hold_what_is_ones_own(quiet: Holdfast, tmp_path: Path) -> None:
    await quiet.open()
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)

    assert (await quiet.sessions.list(SessionQuery(owner=STRANGER))).items == ()
    assert await quiet.sessions.count(SessionQuery(owner=STRANGER)) == 0
    assert (await quiet.agents.list(AgentQuery(owner=STRANGER))).items == ()
    assert await quiet.repos.list(STRANGER) == []


async def test_a_filter_by_a_foreign_agent_finds_nothing(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    await quiet.open("helper")

    assert await quiet.sessions.count(SessionQuery(owner=STRANGER, agent_id=agent.id)) == 0


@each_case("owner", ["", "a b", "a/b", "x" * 129, "ä"])
async def test_an_owner_that_cannot_be_is_refused(home: Path, owner: str) -> None:
    with pytest.raises(Invalid):
        async with open_holdfast(home, owner=owner):
            pass


async def test_a_house_acts_for_the_owner_it_was_opened_for(home: Path) -> None:
    async with open_holdfast(home, owner="ada@example.org") as ada:
        session = await ada.open()
        assert (session.owner, session.agent.owner) == ("ada@example.org", "ada@example.org")

    async with open_holdfast(home) as other:
        assert (await other.sessions.list(SessionQuery(owner=other.owner))).items == ()
