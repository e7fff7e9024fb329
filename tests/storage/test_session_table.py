"""Sessions in the store: the opening, the head that changes all the time, and the tombstone."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.costs import Usage
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.sessions import Budget, ForkPoint, Head, Session, Status, StopReason
from holdfast.domain.tools import Grant
from holdfast.ports import Tx
from holdfast.storage.store import SqliteStore
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
from tests.marks import demands

pytestmark = pytest.mark.anyio

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
    updated_at=AT + timedelta(seconds=3),
    started_at=AT + timedelta(seconds=1),
    finished_at=AT + timedelta(seconds=2),
)


def _seen(session: Session, head: Head) -> Session:
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
        updated_at=head.updated_at,
        started_at=head.started_at,
        finished_at=head.finished_at,
    )


@demands("S0-006b", "S0-006d", "S0-012b", "S1-014", "S2-120k")
async def test_a_session_is_its_opening_and_its_head(store: SqliteStore) -> None:
    async def work(tx: Tx) -> tuple[Any, ...]:
        await tx.agents.add(FULL_SESSION.agent)
        await tx.repos.add(a_repo())
        head = await tx.sessions.add(FULL_SESSION, a_head(), b"digest")
        blank = await tx.sessions.get(SESSION_ID)
        await tx.sessions.save(replace(FULL_HEAD, key=head.key))
        return head, blank, await tx.sessions.get(SESSION_ID), await tx.sessions.head(SESSION_ID)

    head, blank, whole, again = await store.write(work)
    assert head == replace(a_head(), key=head.key)
    assert blank == (_seen(FULL_SESSION, a_head()), head)
    full = replace(FULL_HEAD, key=head.key)
    assert whole == (_seen(FULL_SESSION, FULL_HEAD), full)
    assert again == full


async def test_the_digest_of_the_opening_is_kept(store: SqliteStore, head: Head) -> None:
    async def work(tx: Tx) -> list[bytes | None]:
        ids = [head.session_id, SessionId(an_id(99))]
        return [await tx.sessions.digest(each) for each in ids]

    assert await store.read(work) == [b"digest", None]


async def test_what_an_owner_may_change_is_patched(store: SqliteStore, head: Head) -> None:
    patched = a_session(tags=("t",), metadata={"a": 1}, approval=ApprovalMode.AUTO)

    async def work(tx: Tx) -> tuple[Session, Head] | None:
        await tx.sessions.patch(patched)
        return await tx.sessions.get(head.session_id)

    assert await store.write(work) == (patched, head)


async def test_a_fork_knows_its_parent_and_a_parent_its_forks(
    store: SqliteStore, head: Head
) -> None:
    child = a_session(
        id=SessionId(an_id(7)), forked_from=ForkPoint(session_id=SESSION_ID, sequence=0)
    )

    async def work(tx: Tx) -> tuple[Any, ...]:
        added = await tx.sessions.add(child, a_head(session_id=child.id, inherited=0), b"")
        found = await tx.sessions.get(child.id)
        return added, found, await tx.sessions.forks(SESSION_ID), await tx.sessions.forks(child.id)

    added, found, forks, none = await store.write(work)
    assert found == (child, added)
    assert (forks, none) == ([child.id], [])


async def test_leases_of_a_holder_are_extended_together(store: SqliteStore, head: Head) -> None:
    mine = replace(head, holder="me", until=1, epoch=5)
    other = a_session(id=SessionId(an_id(7)))

    async def work(tx: Tx) -> tuple[set[SessionId], set[SessionId], Head | None]:
        await tx.sessions.add(other, a_head(session_id=other.id, holder="you", until=1), b"")
        await tx.sessions.save(mine)
        extended = await tx.sessions.extend("me", 99), await tx.sessions.extend("nobody", 99)
        return *extended, await tx.sessions.head(SESSION_ID)

    assert await store.write(work) == ({SESSION_ID}, set(), replace(mine, until=99))


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
    store: SqliteStore, head: Head, status: Status, turn: int, is_found: bool
) -> None:
    moved = replace(head, status=status, turn=turn)

    async def work(tx: Tx) -> list[Head]:
        await tx.sessions.save(moved)
        return await tx.sessions.unsettled()

    assert await store.write(work) == ([moved] if is_found else [])


async def test_a_removed_session_leaves_a_tombstone(store: SqliteStore, head: Head) -> None:
    async def work(tx: Tx) -> list[Any]:
        before = await tx.sessions.is_buried(SESSION_ID)
        await tx.calls.save(head.key, a_call())
        await tx.costs.add(head.key, a_cost())
        await tx.sessions.remove(head, AT)
        return [
            before,
            await tx.sessions.is_buried(SESSION_ID),
            await tx.sessions.get(SESSION_ID),
            await tx.calls.by_id(head, CallId("call-1")),
            await tx.costs.of_session(head),
        ]

    assert await store.write(work) == [False, True, None, None, []]
