"""Deleting a session removes all that belongs to it and leaves a tombstone."""

from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.drafts import CostDraft
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.services.session_lifecycle import DeletePolicy
from tests.builders import MODEL_ID, an_id
from tests.houses import current, open_house, played, raw
from tests.stand_ins import Gate, GatedRuntime, an_answer, an_intent, asked, streamed

pytestmark = pytest.mark.anyio

ID = an_id(60)
OWN_TABLES = ("sessions", "openings", "messages", "events", "deltas", "calls", "costs")


async def _family(house: Holdfast) -> tuple[SessionId, SessionId, SessionId]:
    """Write a session, a fork of it, and a fork of that one."""
    root = await house.open()
    await house.send(root.id, "one")
    await house.send(root.id, "two")
    child = await house.sessions.fork(house.owner, root.id, at=1)
    await house.send(child.id, "child")
    grandchild = await house.sessions.fork(house.owner, child.id)
    await house.send(grandchild.id, "grandchild")
    return root.id, child.id, grandchild.id


async def _gone(house: Holdfast, session_id: SessionId) -> bool:
    try:
        await house.sessions.get(house.owner, session_id)
    except NotFound as error:
        return error.code is Code.SESSION_NOT_FOUND
    return False


async def test_nothing_of_a_deleted_session_stays_but_its_tombstone(
    home: Path, outside: Environment
) -> None:
    cost = CostDraft(request_id=an_id(62), model_id=MODEL_ID)
    play = [(asked(),), (streamed("42"),), (an_intent(), cost), an_answer("42")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await played(house, session.id)
        assert _counts(home) == dict.fromkeys(OWN_TABLES, 1) | {"messages": 3, "events": 5}

        assert await house.sessions.delete(house.owner, session.id) == (session.id,)

        assert await _gone(house, session.id)
        assert (await house.sessions.list(SessionQuery(owner=house.owner))).items == ()
    assert _counts(home) == dict.fromkeys(OWN_TABLES, 0)
    with raw(home) as connection:
        found = connection.execute("SELECT id, owner FROM tombstones").fetchall()
        assert found == [(session.id, house.owner)]


def _counts(home: Path) -> dict[str, int]:
    with raw(home) as connection:
        count = "SELECT count(*) FROM {}"
        return {name: connection.execute(count.format(name)).get for name in OWN_TABLES}


async def test_other_sessions_are_untouched(quiet: Holdfast) -> None:
    gone, kept = await quiet.open(), await quiet.open()
    await quiet.send(gone.id, "one")
    message = await quiet.send(kept.id, "two")

    await quiet.sessions.delete(quiet.owner, gone.id)

    assert await quiet.read(kept.id) == (message,)


async def test_a_deleted_session_is_like_one_that_never_was(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.sessions.delete(quiet.owner, session.id)

    with pytest.raises(NotFound) as deleted:
        await quiet.sessions.delete(quiet.owner, session.id)
    with pytest.raises(NotFound) as unknown:
        await quiet.sessions.delete(quiet.owner, SessionId(an_id(61)))

    assert deleted.value.body() == unknown.value.body()


async def test_the_id_of_a_deleted_session_is_never_used_again_by_its_owner(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as first:
        await first.open(id=ID)
        await first.sessions.delete(first.owner, SessionId(ID))

    async with open_holdfast(home, scope=RunScope.NONE) as second:
        kept = await second.open()
        for verb in (second.open(id=ID), second.sessions.fork(second.owner, kept.id, id=ID)):
            with pytest.raises(Conflict) as caught:
                await verb
            assert caught.value.code is Code.ID_REUSED


async def test_forks_are_in_the_way_and_are_named(quiet: Holdfast) -> None:
    root, child, _ = await _family(quiet)

    with pytest.raises(Conflict) as caught:
        await quiet.sessions.delete(quiet.owner, root)

    assert caught.value.code is Code.SESSION_HAS_FORKS
    assert caught.value.details == {"forks": [child]}
    assert len(await quiet.read(root)) == 2


async def test_a_cascade_takes_all_descendants_along(quiet: Holdfast) -> None:
    root, child, grandchild = await _family(quiet)
    cousin = await quiet.sessions.fork(quiet.owner, root)

    gone = await quiet.sessions.delete(quiet.owner, root, policy=DeletePolicy.CASCADE)

    assert set(gone) == {root, child, grandchild, cousin.id}
    assert [await _gone(quiet, each) for each in gone] == [True] * 4


async def test_a_detached_fork_stands_alone_with_everything_it_showed(quiet: Holdfast) -> None:
    root, child, grandchild = await _family(quiet)
    shown = [(await quiet.read(each)) for each in (child, grandchild)]
    words = [[(row.id, row.sequence, row.text, row.hash) for row in rows] for rows in shown]

    assert await quiet.sessions.delete(quiet.owner, root, policy=DeletePolicy.DETACH) == (root,)

    after = [await quiet.read(each) for each in (child, grandchild)]
    assert [[(r.id, r.sequence, r.text, r.hash) for r in rows] for rows in after] == words
    assert (await quiet.sessions.get(quiet.owner, child)).forked_from is None
    for each in (child, grandchild):
        assert (await quiet.sessions.verify(quiet.owner, each)).faults == ()
        assert (await quiet.send(each, "on")).text == "on"
        assert (await quiet.sessions.verify(quiet.owner, each)).faults == ()


async def test_a_fork_of_a_fork_that_shows_nothing_of_its_parent_survives_a_detach(
    quiet: Holdfast,
) -> None:
    root, child, _ = await _family(quiet)
    low = await quiet.sessions.fork(quiet.owner, child, at=1)
    own = await quiet.send(low.id, "low")

    await quiet.sessions.delete(quiet.owner, root, policy=DeletePolicy.DETACH)
    await quiet.sessions.delete(quiet.owner, child, policy=DeletePolicy.DETACH)

    assert [row.text for row in await quiet.read(low.id)] == ["one", "low"]
    verified = await quiet.sessions.verify(quiet.owner, low.id)
    assert (verified.messages, verified.head, verified.faults) == (2, own.hash, ())


async def test_detaching_where_there_is_no_fork_deletes(quiet: Holdfast) -> None:
    session = await quiet.open()

    assert await quiet.sessions.delete(quiet.owner, session.id, policy=DeletePolicy.DETACH)
    assert await _gone(quiet, session.id)


async def test_a_running_turn_is_stopped_by_the_delete(home: Path, outside: Environment) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("too late")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        await house.sessions.delete(house.owner, session.id)

        assert house.coordinator.active() == frozenset()
    assert runtime.closed == 1


async def test_a_turn_that_does_not_notice_the_delete_writes_nothing_more(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("too late")])
    async with (
        open_house(home, runtime, outside=outside) as house,
        open_holdfast(home, scope=RunScope.NONE) as other,
    ):
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        await other.sessions.delete(other.owner, session.id)
        gate.open()

        assert await _gone(house, session.id)
    assert runtime.closed == 1
    assert _counts(home) == dict.fromkeys(OWN_TABLES, 0)


async def test_the_words_of_a_deleted_session_are_in_no_file(
    home: Path, outside: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, "a word like xyzzyplugh")
        assert _mentions(home, b"xyzzyplugh")

        await house.sessions.delete(house.owner, session.id)

        assert not _mentions(home, b"xyzzyplugh")
        await current(house, await house.open())


def _mentions(home: Path, word: bytes) -> bool:
    return any(word in file.read_bytes() for file in home.rglob("*") if file.is_file())
