"""Sessions in the store: the opening, the head that changes all the time, and the tombstone."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.commits import SessionCommit
from holdfast.domain.costs import Usage
from holdfast.domain.ids import LOCAL_OWNER, AgentId, CallId, Owner, SessionId, SessionKey
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import (
    Budget,
    ForkPoint,
    Session,
    SessionState,
    Status,
    StopReason,
)
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import Grant
from holdfast.ports.store import Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    AT,
    MODEL_ID,
    REPO_ID,
    SESSION_ID,
    a_call,
    a_context,
    a_cost,
    a_head,
    a_repo,
    a_session,
    a_tool,
    an_agent,
    an_id,
)
from tests.commits import append_rows
from tests.marks import demands

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
FULL_SESSION = a_session(
    agent=an_agent(tags=("a", "ß")),
    repo_id=REPO_ID,
    title="Title",
    tags=("x", "y"),
    model_id=MODEL_ID,
    context=a_context(active_file="a.py", git_ref="main", variables={"a": "b"}),
    grant=Grant(commands=("git",)),
    tools=(a_tool(),),
    approval=ApprovalMode.EDITS,
    turn_cap=7,
    budget=Budget(microcents=5),
    metadata={"a": {"b": None}},
    created_at=AT,
)
FULL_HEAD = a_head(
    title="Title",
    status=Status.IDLE,
    last_stop=StopReason.LENGTH,
    reason="because",
    turn=4,
    settled=3,
    messages=0,
    events=8,
    began=7,
    chain=bytes(range(32)),
    holder="boot/1/2/x",
    until=123_456,
    epoch=3,
    tokens_in=10,
    tokens_out=20,
    microcents=30,
    requests=2,
    updated_at=microseconds(AT) + 3_000_000,
    started_at=microseconds(AT) + 1_000_000,
    finished_at=microseconds(AT) + 2_000_000,
)


def _seen(session: Session, head: SessionState) -> Session:
    """Return the session with what its head says."""
    return replace(
        session,
        title=head.title,
        status=head.status,
        last_stop=head.last_stop,
        reason=head.reason,
        turn=head.turn,
        settled=head.settled,
        usage=Usage(input=head.tokens_in, output=head.tokens_out),
        microcents=head.microcents,
        message_count=head.messages,
        last_event=head.events,
        updated_at=instant(head.updated_at),
        started_at=instant(head.started_at) if head.started_at else None,
        finished_at=instant(head.finished_at) if head.finished_at else None,
    )


@demands("S0-012b", "S1-014", "S2-120k")
async def test_a_session_is_its_opening_and_its_head(store: SqliteStore) -> None:
    async def work(tx: Tx) -> tuple[Any, ...]:
        await tx.agents.add(FULL_SESSION.agent)
        await tx.repos.add(a_repo())
        head = await tx.sessions.add(FULL_SESSION, a_head(), b"digest")
        blank = await tx.sessions.get(LOCAL_OWNER, SESSION_ID)
        full = replace(FULL_HEAD, key=head.key)
        await tx.append(SessionCommit(before=head, state=full))
        wholes = (
            await tx.sessions.get(LOCAL_OWNER, SESSION_ID),
            await tx.sessions.get_by_key(head.key),
        )
        heads = (
            await tx.sessions.state(LOCAL_OWNER, SESSION_ID),
            await tx.sessions.state_by_key(head.key),
        )
        return head, blank, wholes, heads

    head, blank, wholes, heads = await store.write(work)
    assert head == replace(a_head(), key=head.key)
    assert blank == (_seen(FULL_SESSION, a_head()), head)
    full = replace(FULL_HEAD, key=head.key)
    assert wholes == ((_seen(FULL_SESSION, FULL_HEAD), full),) * 2
    assert heads == (full, full)


async def test_a_session_is_found_by_its_owner_and_its_id_together(
    store: SqliteStore, head: SessionState
) -> None:
    async def work(tx: Tx) -> list[Any]:
        strangers = [(STRANGER, SESSION_ID), (LOCAL_OWNER, SessionId(an_id(99)))]
        unknown = SessionKey(head.key + 1)
        return [
            *[await tx.sessions.state(*each) for each in strangers],
            *[await tx.sessions.get(*each) for each in strangers],
            *[await tx.sessions.digest(*each) for each in strangers],
            await tx.sessions.state_by_key(unknown),
            await tx.sessions.get_by_key(unknown),
        ]

    assert await store.read(work) == [None] * 8


async def test_two_owners_may_each_have_a_session_of_one_id(
    store: SqliteStore, head: SessionState
) -> None:
    agent = an_agent(id=AgentId(an_id(8)), owner=STRANGER)
    theirs = a_session(agent=agent)
    fork = a_session(
        agent=agent,
        id=SessionId(an_id(9)),
        forked_from=ForkPoint(session_id=SESSION_ID, sequence=0),
    )

    async def work(tx: Tx) -> tuple[Any, ...]:
        await tx.agents.add(agent)
        added = await tx.sessions.add(theirs, a_head(owner=STRANGER, agent_id=agent.id), b"theirs")
        blank = a_head(owner=STRANGER, agent_id=agent.id, session_id=fork.id)
        forked = await tx.sessions.add(fork, blank, b"")
        query = SessionQuery(owner=STRANGER, forked_from=SESSION_ID)
        return (
            (await tx.sessions.get(STRANGER, SESSION_ID), (theirs, added)),
            (await tx.sessions.get(LOCAL_OWNER, SESSION_ID), (a_session(), head)),
            (await tx.sessions.digest(STRANGER, SESSION_ID), b"theirs"),
            (await tx.sessions.forks(added.key), [forked]),
            (await tx.sessions.forks(head.key), []),
            (await tx.sessions.page(query), [(fork, forked)]),
            (await tx.sessions.count(query), 1),
            (await tx.sessions.count(replace(query, owner=LOCAL_OWNER)), 0),
        )

    for found, wanted in await store.write(work):
        assert found == wanted


async def test_a_key_is_never_given_again(store: SqliteStore, head: SessionState) -> None:
    other = a_session(id=SessionId(an_id(7)))

    async def work(tx: Tx) -> SessionState:
        await tx.sessions.remove(head, AT)
        return await tx.sessions.add(other, a_head(session_id=other.id), b"")

    assert (await store.write(work)).key == head.key + 1


async def test_the_digest_of_the_opening_is_kept(store: SqliteStore, head: SessionState) -> None:
    async def work(tx: Tx) -> list[bytes | None]:
        ids = [head.session_id, SessionId(an_id(99))]
        return [await tx.sessions.digest(head.owner, each) for each in ids]

    assert await store.read(work) == [b"digest", None]


async def test_what_an_owner_may_change_is_patched(store: SqliteStore, head: SessionState) -> None:
    patched = a_session(tags=("t",), metadata={"a": 1}, approval=ApprovalMode.AUTO)

    async def work(tx: Tx) -> tuple[Session, SessionState] | None:
        await tx.sessions.patch(head.key, patched)
        return await tx.sessions.get_by_key(head.key)

    assert await store.write(work) == (patched, head)


async def test_a_fork_knows_its_parent_and_a_parent_its_forks(
    store: SqliteStore, head: SessionState
) -> None:
    child = a_session(
        id=SessionId(an_id(7)), forked_from=ForkPoint(session_id=SESSION_ID, sequence=0)
    )

    async def work(tx: Tx) -> tuple[Any, ...]:
        added = await tx.sessions.add(child, a_head(session_id=child.id, inherited=0), b"")
        found = await tx.sessions.get_by_key(added.key)
        return added, found, await tx.sessions.forks(head.key), await tx.sessions.forks(added.key)

    added, found, forks, none = await store.write(work)
    assert found == (child, added)
    assert (forks, none) == ([added], [])


async def test_leases_of_a_holder_are_extended_together(
    store: SqliteStore, head: SessionState
) -> None:
    mine = replace(head, holder="me", until=1, epoch=5)
    other = a_session(id=SessionId(an_id(7)))

    async def work(tx: Tx) -> tuple[set[SessionKey], set[SessionKey], SessionState | None]:
        await tx.sessions.add(other, a_head(session_id=other.id, holder="you", until=1), b"")
        await tx.append(SessionCommit(before=head, state=mine))
        extended = await tx.sessions.extend("me", 99), await tx.sessions.extend("nobody", 99)
        return *extended, await tx.sessions.state_by_key(head.key)

    assert await store.write(work) == ({head.key}, set(), replace(mine, until=99))


@pytest.mark.parametrize(
    ("status", "turn", "is_found"),
    [
        (Status.PENDING, 1, True),
        (Status.RUNNING, 1, True),
        (Status.IDLE, 1, True),
        (Status.IDLE, 0, False),
        (Status.COMPLETED, 1, False),
        (Status.CANCELLED, 1, False),
        (Status.FAILED, 1, False),
    ],
)
async def test_only_open_sessions_with_a_turn_left_are_unsettled(
    store: SqliteStore, head: SessionState, status: Status, turn: int, is_found: bool
) -> None:
    moved = replace(head, status=status, turn=turn)

    async def work(tx: Tx) -> list[SessionState]:
        await tx.append(SessionCommit(before=head, state=moved))
        return await tx.sessions.unsettled()

    assert await store.write(work) == ([moved] if is_found else [])


async def test_a_removed_session_leaves_a_tombstone(store: SqliteStore, head: SessionState) -> None:
    async def work(tx: Tx) -> list[Any]:
        before = await tx.sessions.is_buried(LOCAL_OWNER, SESSION_ID)
        await append_rows(tx, head, calls=(a_call(),), costs=(a_cost(),))
        await tx.sessions.remove(head, AT)
        return [
            before,
            await tx.sessions.is_buried(LOCAL_OWNER, SESSION_ID),
            await tx.sessions.is_buried(STRANGER, SESSION_ID),
            await tx.sessions.get(LOCAL_OWNER, SESSION_ID),
            await tx.calls.by_id(head, CallId("call-1")),
            await tx.costs.of_session(head),
        ]

    assert await store.write(work) == [False, True, False, None, None, []]
