"""Every table gives back what was put into it, and nothing that belongs to somebody else."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from holdfast.domain.agents import Agent, AgentStatus, LlmRuntime, ModelChoice, Recovery
from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.commits import VersionConflictError
from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.ids import AgentId, CallId, ModelId, Owner, RepoId
from holdfast.domain.models import Model, model_of
from holdfast.domain.queries import AgentQuery
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import SessionState
from holdfast.domain.tools import Effect, FsTier, Grant
from holdfast.ports.store import Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    AT,
    MODEL_ID,
    REPO_ID,
    a_call,
    a_cost,
    a_head,
    a_model,
    a_repo,
    a_session,
    a_tool,
    an_agent,
    an_id,
    some_prices,
)
from tests.commits import append_rows
from tests.marks import demands

pytestmark = pytest.mark.anyio

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]
STRANGER = Owner("stranger")
FULL_AGENT = an_agent(
    description="helps",
    runtime=LlmRuntime(models=(ModelChoice(model_id=MODEL_ID),), temperature=0.1),
    tools=(a_tool(parameters={"type": "object"}),),
    mcp_servers=({"command": "x"},),
    grant=Grant(fs=FsTier.FULL, commands=("git",), domains=("example.org",)),
    recovery=Recovery.CONTINUE,
    extra={"x": [1, 2]},
    tags=("a", "ß"),
)


@demands("S2-120c")
async def test_agents_are_found_by_id_and_slug_of_their_owner(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[Agent | None]:
        await tx.agents.add(FULL_AGENT)
        return [
            await tx.agents.by_id(FULL_AGENT.owner, FULL_AGENT.id),
            await tx.agents.by_slug(FULL_AGENT.owner, FULL_AGENT.slug),
            await tx.agents.by_id(STRANGER, FULL_AGENT.id),
            await tx.agents.by_slug(STRANGER, FULL_AGENT.slug),
            await tx.agents.by_id(FULL_AGENT.owner, AgentId(an_id(99))),
            await tx.agents.by_slug(FULL_AGENT.owner, FULL_AGENT.slug.upper()),
        ]

    assert await store.write(work) == [FULL_AGENT, FULL_AGENT, None, None, None, None]


@demands("S2-120k")
async def test_a_saved_agent_replaces_the_one_before(store: SqliteStore) -> None:
    changed = replace(an_agent(), slug="new", name="New", status=AgentStatus.ARCHIVED)

    async def work(tx: Tx) -> list[Any]:
        await tx.agents.add(an_agent())
        await tx.agents.save(changed)
        return [
            await tx.agents.by_slug(changed.owner, "new"),
            await tx.agents.by_slug(changed.owner, "helper"),
            await tx.agents.page(AgentQuery(owner=changed.owner)),
            await tx.agents.page(AgentQuery(owner=changed.owner, status=None)),
        ]

    assert await store.write(work) == [changed, None, [], [changed]]


async def test_a_model_that_is_known_stays_as_it_is(store: SqliteStore) -> None:
    priced = a_model("b:one", prices=some_prices(), context_window=9)

    async def work(tx: Tx) -> tuple[Model | None, Model | None, list[Model]]:
        await tx.models.add(priced)
        await tx.models.add(model_of("b:one"))
        await tx.models.add(model_of("a:two"))
        missing = await tx.models.by_id(ModelId(an_id(9)))
        return await tx.models.by_id(priced.id), missing, await tx.models.all()

    assert await store.write(work) == (priced, None, [model_of("a:two"), priced])


async def test_repositories_are_found_by_id_and_path_of_their_owner(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[Repo | list[Repo] | None]:
        await tx.repos.add(a_repo())
        return [
            await tx.repos.by_id(a_repo().owner, REPO_ID),
            await tx.repos.by_path(a_repo().owner, a_repo().path),
            await tx.repos.by_id(STRANGER, REPO_ID),
            await tx.repos.by_path(STRANGER, a_repo().path),
            await tx.repos.all(a_repo().owner),
            await tx.repos.all(STRANGER),
            await tx.repos.by_id(a_repo().owner, RepoId(an_id(99))),
        ]

    found = [a_repo(), a_repo(), None, None, [a_repo()], [], None]
    assert await store.write(work) == found


async def test_a_repository_is_used_while_a_session_is_bound_to_it(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[bool]:
        await tx.agents.add(an_agent())
        await tx.repos.add(a_repo())
        before = await tx.repos.is_used(REPO_ID)
        bound = await tx.sessions.add(a_session(repo_id=REPO_ID), a_head(), b"")
        during = await tx.repos.is_used(REPO_ID)
        await tx.sessions.remove(bound, AT)
        await tx.repos.remove(REPO_ID)
        return [before, during, await tx.repos.by_id(a_repo().owner, REPO_ID) is None]

    assert await store.write(work) == [False, True, True]


async def test_calls_come_in_the_order_they_were_intended(
    store: SqliteStore, head: SessionState
) -> None:
    ids = ["b", "a", "c"]
    calls = [
        a_call(id=CallId(each), arguments={"n": [each]}, sequence=sequence)
        for sequence, each in enumerate(ids, start=2)
    ]
    later = a_call(id=CallId("d"), turn=2)
    done = replace(
        calls[0], state=CallState.SETTLED, settlement=Settlement.MARKED_DONE, effect=Effect.UNSAFE
    )

    async def work(tx: Tx) -> tuple[list[Call], list[Call], Call | None, Call | None]:
        for call in (*calls, later, done):
            await append_rows(tx, head, calls=(call,))
        first, second = await tx.calls.of_turn(head, 1), await tx.calls.of_turn(head, 2)
        missing = await tx.calls.by_id(head, CallId("e"))
        return first, second, await tx.calls.by_id(head, CallId("b")), missing

    assert await store.write(work) == ([done, *calls[1:]], [later], done, None)


async def test_a_request_is_in_the_ledger_once(store: SqliteStore, head: SessionState) -> None:
    one = a_cost(usage=Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5))
    other = a_cost(request_id=an_id(6), turn=2, priced=False, at=AT + timedelta(seconds=1))

    async def enter(tx: Tx) -> list[list[CostEntry]]:
        await append_rows(tx, head, costs=(one, other))
        turns = [await tx.costs.of_turn(head, turn) for turn in (1, 2, 3)]
        return [*turns, await tx.costs.of_session(head)]

    assert await store.write(enter) == [[one], [other], [], [one, other]]
    with pytest.raises(VersionConflictError):
        await store.write(lambda tx: append_rows(tx, head, costs=(replace(one, microcents=1),)))
    assert await store.read(lambda tx: tx.costs.of_session(head)) == [one, other]
