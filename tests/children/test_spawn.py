"""A program gives a task to an agent below a session, here and over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Budget, Grant, Holdfast, LocalHoldfast, connect, sync
from holdfast.domain.errors import Code, Conflict, Denied, Invalid, LimitReached, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import SessionRequest, StopReason
from tests.builders import an_id
from tests.children.test_invoke import a_house, an_agent
from tests.client.servers import serving
from tests.http.v1.client import visiting
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def reached(local: LocalHoldfast, *, is_remote: bool) -> AsyncIterator[Holdfast]:
    """Yield a Holdfast as a program has it, in its process or over HTTP."""
    if not is_remote:
        yield local
        return
    async with serving(local) as at, connect(at.url, at.secret) as client:
        yield client


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_program_spawns_a_child_and_gets_its_answer(home: Path, is_remote: bool) -> None:
    async with a_house(a_config(home)) as local, reached(local, is_remote=is_remote) as house:
        await an_agent(local, "lead", says("done"))
        await an_agent(local, "helper", says("It is 17."))
        session = await house.open("lead", SessionRequest(budget=Budget(microcents=900)))
        child = await house.spawn(
            session.id, "helper", "Look", title="T", budget=Budget(microcents=100), id=an_id(7)
        )
        again = await house.spawn(
            session.id, "helper", "Look", title="T", budget=Budget(microcents=100), id=an_id(7)
        )
        answer = await child.answer()
        twice = await again.answer()
        tree = await house.children.tree(house.owner, session.id)
        listed = await house.sessions.list(SessionQuery(owner=house.owner, parent=session.id))
        opened = await house.sessions.get(house.owner, child.session_id)

    assert (answer.text, answer.stop_reason) == ("It is 17.", StopReason.STOP)
    assert twice.messages == answer.messages
    assert child.session_id == again.session_id == an_id(7)
    assert [each.id for each in tree] == [session.id, child.session_id]
    assert [each.id for each in listed.items] == [child.session_id]
    assert opened.budget is not None
    assert opened.budget.microcents == 100
    assert opened.parent is not None
    assert (opened.parent.session_id, opened.parent.call_id) == (session.id, None)


@pytest.mark.parametrize("is_remote", [False, True])
async def test_bad_requests_open_nothing(home: Path, is_remote: bool) -> None:
    config = a_config(home, children_per_session=1)
    async with a_house(config) as local, reached(local, is_remote=is_remote) as house:
        await an_agent(local, "lead", says("done"))
        await an_agent(local, "helper", says("ok"))
        session = await house.open("lead")
        with pytest.raises(Denied) as wider:
            await house.spawn(session.id, "helper", "x", grant=Grant(domains=("a.example",)))
        with pytest.raises(NotFound) as unknown:
            await house.spawn(session.id, "nobody", "x")
        with pytest.raises(NotFound) as no_parent:
            await house.spawn(SessionId(an_id(9)), "helper", "x")
        with pytest.raises(Invalid):
            await house.spawn(session.id, "helper", "")
        with pytest.raises(Invalid) as odd:
            await house.spawn(session.id, "helper", "x", id="7")
        before = await house.children.tree(house.owner, session.id)
        await house.spawn(session.id, "helper", "x", id=an_id(7))
        with pytest.raises(LimitReached) as full:
            await house.spawn(session.id, "helper", "x")
        with pytest.raises(Conflict) as reused:
            await house.spawn(session.id, "helper", "another task", id=an_id(7))
        await house.sessions.close(house.owner, session.id)
        with pytest.raises(Conflict) as closed:
            await house.spawn(session.id, "helper", "x")

    assert [each.id for each in before] == [session.id]
    assert [each.value.code for each in (wider, unknown, no_parent, odd, full, reused, closed)] == [
        Code.GRANT_EXCEEDED,
        Code.AGENT_NOT_FOUND,
        Code.SESSION_NOT_FOUND,
        Code.INVALID_BODY if is_remote else Code.INVALID_ID,
        Code.CHILD_LIMIT,
        Code.ID_REUSED,
        Code.SESSION_CLOSED,
    ]


def test_a_child_blocks_in_a_program_without_an_event_loop(home: Path) -> None:
    with sync.open_holdfast(config=a_config(home, says("It is 17."))) as hf:
        session = hf.open()
        child = hf.spawn(session.id, "holdfast", "Look")
        assert child.answer().text == "It is 17."
        assert len(hf.children.tree(hf.owner, session.id)) == 2


async def test_children_and_tree_over_http(home: Path) -> None:
    async with a_house(a_config(home, says("4", repeat=9))) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/agents/{session['agent_id']}/sessions/{session['id']}"
        body = {"agent": session["agent"]["slug"], "task": "Add", "id": an_id(7)}
        made = await visitor.post(f"{path}/children", body)
        again = await visitor.post(f"{path}/children", body)
        below = await visitor.post(
            f"/v1/sessions/{an_id(7)}/children", body | {"id": an_id(8), "title": "Deeper"}
        )
        listed = await visitor.get(f"{path}/children")
        filtered = await visitor.get(f"/v1/sessions?parent={session['id']}")
        tree = await visitor.get(f"{path}/tree")
        kept = await visitor.delete(path)
        unknown = await visitor.post(f"{path}/children", body | {"depth": 3})
        missing = await visitor.get(f"/v1/sessions/{an_id(9)}/tree")

    assert (made.status, again.status, below.status) == (201, 200, 201)
    assert made.document["parent"] == {"session_id": session["id"], "call_id": None}
    assert (session["parent"], session["children"]) == (None, 0)
    assert [each["id"] for each in listed.document["data"]] == [an_id(7)]
    assert [each["id"] for each in filtered.document["data"]] == [an_id(7)]
    assert [(each["id"], each["children"]) for each in tree.document["data"]] == [
        (session["id"], 1),
        (an_id(7), 1),
        (an_id(8), 0),
    ]
    assert (kept.status, kept.document["error"]) == (409, "session_has_children")
    assert (unknown.status, missing.status) == (400, 404)
