"""Two owners may use one id: each reaches a session of their own, and learns nothing of the other.

That is how an owner who names somebody else's id cannot tell it from a random one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.events import Event, Gap, TurnEnded, TurnStarted
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, SessionRequest, Status
from holdfast.execution.coordinator import RunScope
from holdfast.ports.store import Tx
from tests.builders import an_id
from tests.houses import House, head_of, key_of, news_until, open_house, payloads, played, texts
from tests.stand_ins import (
    PATIENCE,
    Gate,
    GatedRuntime,
    a_start,
    an_answer,
    an_intent,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
ID = SessionId(an_id(70))
FOREIGN, BURIED, RANDOM = an_id(71), an_id(72), an_id(73)


@pytest.fixture
async def mine(quiet: Holdfast) -> Holdfast:
    """Have a session and a tombstone of one's own."""
    await quiet.open(request=SessionRequest(title="private"), id=FOREIGN)
    await quiet.send(SessionId(FOREIGN), "private")
    await quiet.open(id=BURIED)
    await quiet.sessions.delete(quiet.owner, SessionId(BURIED))
    return quiet


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home that plays nothing by itself, with a session of this id for each of two."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        for each in (house, _stranger(house)):
            await each.open(id=ID)
            await each.send(ID, f"hello from {each.owner}")
        yield house


def _stranger(house: Any) -> Any:
    """Return the same house, acting for somebody else."""
    return replace(house, owner=STRANGER)


async def _seen(house: Holdfast, session: Session) -> list[str]:
    """Return all that its owner can read about a session, but for ids that are made of its id."""
    query = (house.owner, session.id)
    told: list[Any] = [
        session,
        await house.sessions.get(*query),
        await house.sessions.verify(*query),
        await house.read(session.id),
        payloads(list((await house.events.list(*query)).items)),
    ]
    return [msgspec.json.encode(each).decode().replace(session.id, "ID") for each in told]


async def test_opening_answers_alike_whether_or_not_somebody_else_has_the_id(
    mine: Holdfast,
) -> None:
    theirs = _stranger(mine)

    opened = [await theirs.open(id=each) for each in (FOREIGN, BURIED, RANDOM)]

    assert [session.id for session in opened] == [FOREIGN, BURIED, RANDOM]
    foreign, buried, random = [await _seen(theirs, session) for session in opened]
    assert foreign == buried == random


async def test_forking_answers_alike_whether_or_not_somebody_else_has_the_id(
    mine: Holdfast,
) -> None:
    theirs = _stranger(mine)
    parent = await theirs.open()
    await theirs.send(parent.id, "one")

    ids = (FOREIGN, BURIED, RANDOM)
    forks = [await theirs.sessions.fork(STRANGER, parent.id, id=each) for each in ids]

    assert [session.id for session in forks] == list(ids)
    foreign, buried, random = [await _seen(theirs, session) for session in forks]
    assert foreign == buried == random


@pytest.mark.parametrize("id", [FOREIGN, BURIED, RANDOM])
async def test_repeating_an_opening_answers_alike_too(mine: Holdfast, id: str) -> None:
    theirs = _stranger(mine)
    session = await theirs.open(id=id)

    assert await theirs.open(id=id) == session
    with pytest.raises(Conflict) as caught:
        await theirs.open(request=SessionRequest(title="another"), id=id)
    assert caught.value.code is Code.ID_REUSED


async def test_what_others_do_with_an_id_changes_nothing_for_its_owner(mine: Holdfast) -> None:
    theirs = _stranger(mine)
    before = await _seen(mine, await mine.sessions.get(mine.owner, SessionId(FOREIGN)))
    for id in (FOREIGN, BURIED):
        await theirs.open(id=id)
        await theirs.sessions.delete(STRANGER, SessionId(id))

    assert before == await _seen(mine, await mine.sessions.get(mine.owner, SessionId(FOREIGN)))
    for house in (mine, theirs):
        with pytest.raises(Conflict) as caught:
            await house.open(id=BURIED)
        assert caught.value.code is Code.ID_REUSED


async def test_each_works_in_a_folder_of_their_own(quiet: Holdfast) -> None:
    owners = [quiet.owner, STRANGER, Owner("Stranger"), Owner(".."), Owner(".")]

    opened = [await replace(quiet, owner=owner).open(id=ID) for owner in owners]

    desks = {session.context.working_dir.lower() for session in opened}
    home = quiet.config.home / "workspaces"
    assert {Path(desk).parent.parent for desk in desks} == {Path(str(home).lower())}
    assert len(desks) == len(owners)


async def _forked(house: Holdfast) -> object:
    return await house.sessions.fork(house.owner, ID, id=an_id(74))


VERBS: Mapping[str, Callable[[Holdfast], Awaitable[object]]] = {
    "send": lambda house: house.send(ID, "more"),
    "update": lambda house: house.sessions.update(house.owner, ID, {"title": "new"}),
    "close": lambda house: house.sessions.close(house.owner, ID),
    "delete": lambda house: house.sessions.delete(house.owner, ID),
    "fork": _forked,
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
async def test_a_verb_reaches_only_the_session_of_its_owner(
    house: House, verb: Callable[[Holdfast], Awaitable[object]]
) -> None:
    theirs = _stranger(house)
    listed = SessionQuery(owner=STRANGER)
    before = await _seen(house, await house.sessions.get(house.owner, ID))
    other = await theirs.sessions.list(listed)

    await verb(theirs)

    assert await _seen(house, await house.sessions.get(house.owner, ID)) == before
    assert await theirs.sessions.list(listed) != other


async def test_each_reads_and_verifies_their_own(house: House) -> None:
    for each in (house, _stranger(house)):
        (message,) = await each.read(ID)
        assert message.text == f"hello from {each.owner}"
        assert await each.messages.get(each.owner, ID, message.id) == message
        verified = await each.sessions.verify(each.owner, ID)
        assert (verified.messages, verified.head, verified.faults) == (1, message.hash, ())
        assert (await each.sessions.get(each.owner, ID)).owner == each.owner


async def test_a_message_of_the_other_is_not_found(house: House) -> None:
    (message,) = await house.read(ID)

    with pytest.raises(NotFound) as foreign:
        await house.messages.get(STRANGER, ID, message.id)
    with pytest.raises(NotFound) as unknown:
        await house.messages.get(STRANGER, ID, an_id(1))

    assert foreign.value.body() == unknown.value.body()


async def test_closing_and_resuming_is_ones_own_affair(house: House) -> None:
    theirs = _stranger(house)

    await theirs.sessions.close(STRANGER, ID)
    statuses = [(await each.sessions.get(each.owner, ID)).status for each in (house, theirs)]
    await house.sessions.resume(house.owner, ID)

    assert statuses == [Status.PENDING, Status.COMPLETED]
    assert (await theirs.sessions.get(STRANGER, ID)).status is Status.COMPLETED
    assert (await theirs.sessions.resume(STRANGER, ID)).session.status is Status.IDLE


async def test_deleting_a_family_leaves_the_other_family_whole(house: House) -> None:
    theirs = _stranger(house)
    fork = SessionId(an_id(75))
    for each in (house, theirs):
        await each.sessions.fork(each.owner, ID, id=fork)
    with pytest.raises(Conflict) as caught:
        await theirs.sessions.delete(STRANGER, ID)
    assert caught.value.details == {"forks": [fork]}

    gone = await theirs.sessions.delete(STRANGER, ID, policy="cascade")

    assert gone == (fork, ID)
    assert texts(await house.read(fork)) == [("user", "hello from local")]


async def _follow(house: Holdfast, count: int, *, after: int = 0) -> list[Event | Gap]:
    found: list[Event | Gap] = []
    async with aclosing(house.follow(ID, after=after)) as news:
        async for item in news:
            found.append(item)
            if len(found) == count:
                break
    return found


async def test_tails_do_not_mix(house: House) -> None:
    theirs = _stranger(house)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        # Both at the end of their logs, so that both read from a tail.
        reading = [group.create_task(_follow(each, 4, after=2)) for each in (house, theirs)]
        for number in range(4):
            await house.send(ID, f"mine {number}")
        await theirs.send(ID, "theirs 0")
        await theirs.sessions.close(STRANGER, ID)
        await theirs.sessions.resume(STRANGER, ID)

    for each, task in zip((house, theirs), reading, strict=True):
        assert task.result() == list((await each.events.list(each.owner, ID, after=2)).items)
    assert [type(payload).__name__ for payload in payloads(reading[1].result())] == [
        "MessageAppended",
        "MessageAppended",
        "SessionClosed",
        "SessionResumed",
    ]


async def test_a_reader_of_a_deleted_session_never_sees_the_next_one(house: House) -> None:
    theirs = _stranger(house)
    reading = asyncio.create_task(_follow(theirs, 99))
    async with theirs.events.reader(STRANGER, ID) as reader:
        await reader.read()

        # The newest of all: its key is the one that would be given again.
        await theirs.sessions.delete(STRANGER, ID)
        fresh = await house.open()
        for number in range(3):
            await house.send(fresh.id, f"not for you {number}")

        async with asyncio.timeout(PATIENCE):
            for waiting in (reading, reader.read()):
                with pytest.raises(NotFound):
                    await waiting


async def test_wakes_and_interrupts_do_not_mix(home: Path, outside: Environment) -> None:
    first, second = Gate(), Gate()
    runtime = GatedRuntime(
        [(asked(), streamed("mi")), first, an_answer("mine")],
        [(asked(), streamed("th")), second],
        [an_answer("again")],
    )
    async with open_house(home, runtime, outside=outside) as house:
        theirs = _stranger(house)
        mine = await house.open(id=ID)
        other = await theirs.open(id=ID)
        await house.send(ID, "hello")
        await first.reached()
        await theirs.send(ID, "good day")
        await second.reached()
        keys = {await key_of(house, mine), await key_of(theirs, other)}
        assert (len(keys), house.coordinator.active()) == (2, keys)

        await theirs.sessions.interrupt(STRANGER, ID)
        assert house.coordinator.active() == {await key_of(house, mine)}
        await news_until(theirs, ID, TurnEnded)
        await theirs.send(ID, "and again", on_busy="interrupt")
        assert texts(await played(theirs, ID))[-1] == ("assistant", "again")
        await theirs.sessions.delete(STRANGER, ID)

        assert house.coordinator.active() == {await key_of(house, mine)}
        first.open()
        assert texts(await played(house, ID)) == [("user", "hello"), ("assistant", "mine")]

    spoken = [[row.text for row in turn.history if row.text] for turn in runtime.turns]
    assert (spoken[0], spoken[1]) == (["hello"], ["good day"])
    assert spoken[2] == ["good day", "th", "and again"]


async def test_waiting_turns_of_both_are_taken_up_after_a_restart(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        for each in (house, _stranger(house)):
            await each.open(id=ID)
            await each.send(ID, f"hello from {each.owner}")
        assert (await house.maintenance.recover()).sessions == (ID, ID)

    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        for each in (house, _stranger(house)):
            assert texts(await played(each, ID)) == [
                ("user", f"hello from {each.owner}"),
                ("assistant", "done"),
            ]
            started = payloads(await news_until(each, ID, TurnEnded))
            assert sum(isinstance(payload, TurnStarted) for payload in started) == 1
    assert len(runtime.turns) == 2


async def test_equal_calls_of_both_are_told_apart_outside(home: Path, outside: Environment) -> None:
    gates = Gate(), Gate()
    play = [(an_intent(),), (a_start(),)]
    runtime = GatedRuntime([*play, gates[0]], [*play, gates[1]])
    async with open_house(home, runtime, outside=outside) as house:
        for each, gate in zip((house, _stranger(house)), gates, strict=True):
            await each.open(id=ID)
            await each.send(ID, "hello")
            await gate.reached()
        calls = [await _call(each) for each in (house, _stranger(house))]

    one, other = calls
    assert one.idempotency_key != other.idempotency_key
    assert msgspec.structs.replace(one, idempotency_key=other.idempotency_key) == other


async def _call(house: Holdfast) -> Call:
    head = await head_of(house, await house.sessions.get(house.owner, ID))

    async def read(tx: Tx) -> list[Call]:
        return await tx.calls.of_turn(head, 1)

    (call,) = await house.store.read(read)
    return call
