"""Agents: made, found, listed, changed and archived by their owner."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.api import Holdfast
from holdfast.domain.agents import (
    AcpRuntime,
    Agent,
    AgentStatus,
    LlmRuntime,
    ModelChoice,
    Recovery,
    Retry,
)
from holdfast.domain.errors import Code, Conflict, HoldfastError, NotFound
from holdfast.domain.ids import Owner
from holdfast.domain.models import model_of
from holdfast.domain.queries import AgentQuery
from holdfast.domain.tools import FsTier, Grant
from tests.builders import a_tool, an_id
from tests.marks import demands
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")
ID = an_id(50)


async def _made(house: Holdfast, **fields: Any) -> Agent:
    return await house.agents.create(house.owner, {"name": "Helper", **fields})


async def _listed(house: Holdfast, **query: Any) -> list[str]:
    page = await house.agents.list(AgentQuery(owner=house.owner, **query))
    return [agent.slug for agent in page.items]


@demands("S2-121")
async def test_an_agent_needs_only_a_name(quiet: Holdfast, clock: SettableClock) -> None:
    agent = await _made(quiet)

    assert agent == Agent(
        id=agent.id,
        owner=quiet.owner,
        slug="helper",
        name="Helper",
        system_prompt="",
        runtime=LlmRuntime(),
        created_at=clock.now(),
        updated_at=clock.now(),
    )
    assert await quiet.agents.get(quiet.owner, "helper") == agent
    assert await quiet.agents.get(quiet.owner, agent.id) == agent


@demands(
    "S2-020",
    "S2-020c",
    "S2-020d",
    "S2-020e",
    "S2-020j",
    "S2-020k",
    "S2-120d",
)
async def test_all_fields_are_kept(quiet: Holdfast) -> None:
    fields: dict[str, Any] = {
        "slug": "Code_Helper-1",
        "name": "Ein Helfer",
        "description": "helps",
        "system_prompt": "You are terse.",
        "runtime": LlmRuntime(temperature=0.2, max_tokens=100),
        "tools": (a_tool("read_file", description="reads"),),
        "mcp_servers": ({"command": "x"},),
        "grant": Grant(fs=FsTier.PROJECT, commands=("git",)),
        "recovery": Recovery.CONTINUE,
        "extra": {"colour": "red"},
        "tags": ("b", "a"),
    }

    agent = await quiet.agents.create(quiet.owner, fields)

    assert {name: getattr(agent, name) for name in fields} == fields
    assert await quiet.agents.get(quiet.owner, agent.slug) == agent


async def test_an_agent_may_be_written_as_plain_json(quiet: Holdfast) -> None:
    agent = await _made(
        quiet,
        runtime={"type": "llm", "temperature": 1},
        tools=[{"name": "read_file"}],
        grant={"fs": "project"},
        recovery="continue",
        tags=["a"],
        status="archived",
    )

    assert (agent.runtime, agent.tools) == (LlmRuntime(temperature=1), (a_tool("read_file"),))
    assert (agent.grant, agent.recovery) == (Grant(fs=FsTier.PROJECT), Recovery.CONTINUE)
    assert (agent.tags, agent.status) == (("a",), AgentStatus.ARCHIVED)


async def test_models_are_a_chain_in_the_order_given(quiet: Holdfast) -> None:
    agent = await _made(quiet, models=["offline:holdfast", "openai:one"])

    chain = [ModelChoice(model_id=model_of(r).id) for r in ("offline:holdfast", "openai:one")]
    assert agent.runtime == LlmRuntime(models=tuple(chain))
    assert [model.ref for model in await quiet.models.list()] == [
        "offline:holdfast",
        "openai:one",
    ]


@demands("S2-020c")
async def test_a_made_slug_is_numbered_until_it_is_free(quiet: Holdfast) -> None:
    made = [
        (await _made(quiet, name=name)).slug for name in ("My  Helper!", "my-helper", "My+Helper")
    ]

    assert made == ["my-helper", "my-helper-2", "my-helper-3"]


async def test_an_agent_of_a_taken_name_is_made_with_a_warning(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    await _made(quiet, name="Clerk")
    assert caplog.messages == []
    await _made(quiet, name="Clerk")

    assert caplog.messages == [
        "an agent clerk exists, so this one is clerk-2; agents.ensure returns the one that exists"
    ]


class TestEnsure:
    """`ensure`: what a script does at each start."""

    async def test_it_creates_an_agent_once_and_changes_what_differs(self, quiet: Holdfast) -> None:
        fields = {"name": "Clerk", "system_prompt": "Be terse.", "models": ["offline:holdfast"]}
        made = await quiet.agents.ensure(quiet.owner, fields)
        again = await quiet.agents.ensure(quiet.owner, fields)
        changed = await quiet.agents.ensure(quiet.owner, {"name": "Clerk", "tags": ["docs"]})

        assert again == made
        assert changed == replace(made, tags=("docs",), updated_at=changed.updated_at)
        assert (await quiet.agents.list(AgentQuery(owner=quiet.owner))).items == (changed,)

    async def test_a_slug_names_the_agent_whatever_it_is_called(self, quiet: Holdfast) -> None:
        made = await quiet.agents.ensure(quiet.owner, {"name": "Clerk", "slug": "desk"})
        renamed = await quiet.agents.ensure(quiet.owner, {"name": "Porter", "slug": "desk"})

        assert (renamed.id, renamed.name) == (made.id, "Porter")

    async def test_at_once_it_makes_one(self, quiet: Holdfast) -> None:
        ensured = [quiet.agents.ensure(quiet.owner, {"name": "Clerk"}) for _ in range(8)]

        assert {agent.slug for agent in await asyncio.gather(*ensured)} == {"clerk"}


async def test_long_and_unspellable_names_get_slugs_too(quiet: Holdfast) -> None:
    made = [(await _made(quiet, name=name)).slug for name in ("x" * 255, "x" * 255, "日本", "日本")]

    assert made == ["x" * 255, "x" * 245 + "-2", "agent", "agent-2"]


@demands("S2-023")
async def test_a_given_slug_is_taken_once_and_counts_case(quiet: Holdfast) -> None:
    await _made(quiet, slug="one")
    await _made(quiet, slug="One")

    with pytest.raises(Conflict) as caught:
        await _made(quiet, slug="one")

    assert (caught.value.code, caught.value.details) == (Code.SLUG_TAKEN, {"slug": "one"})


@demands("S2-023")
async def test_owners_do_not_know_each_others_slugs(quiet: Holdfast) -> None:
    mine = await _made(quiet)
    theirs = await quiet.agents.create(STRANGER, {"name": "Helper"})

    assert mine.slug == theirs.slug == "helper"
    assert await quiet.agents.get(STRANGER, "helper") == theirs


@demands("S2-120c")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": ""}, Code.INVALID_TEXT),
        ({"name": "x" * 256}, Code.INVALID_TEXT),
        ({"name": 5}, Code.AGENT_INVALID),
        ({"name": None}, Code.AGENT_INVALID),
        ({"slug": "no blanks"}, Code.AGENT_INVALID),
        ({"slug": ""}, Code.AGENT_INVALID),
        ({"slug": "x" * 256}, Code.AGENT_INVALID),
        ({"system_prompt": "{{secrets.key}}"}, Code.SECRET_INTERPOLATION),
        ({"tools": (a_tool("a"), a_tool("a"))}, Code.AGENT_INVALID),
        ({"tools": "read_file"}, Code.AGENT_INVALID),
        ({"tools": [f"tool_{number}" for number in range(129)]}, Code.AGENT_INVALID),
        ({"tools": [{"name": "a", "description": "x" * (256 << 10)}]}, Code.AGENT_INVALID),
        ({"runtime": "llm"}, Code.AGENT_INVALID),
        ({"runtime": {"type": "llm", "temperature": 3}}, Code.AGENT_INVALID),
        (
            {"runtime": LlmRuntime(retry=Retry(max=1, retry_on=("rate_limit", "timeout")))},
            Code.AGENT_INVALID,
        ),
        ({"grant": {"fs": "everything"}}, Code.AGENT_INVALID),
        ({"tags": ("a", "a")}, Code.AGENT_INVALID),
        ({"models": [5]}, Code.AGENT_INVALID),
        ({"models": ["nonsense"]}, Code.MODEL_NOT_FOUND),
        ({"models": ["offline:other"]}, Code.MODEL_NOT_FOUND),
        ({"models": [an_id(51)]}, Code.MODEL_NOT_FOUND),
        ({"models": ["openai:b"], "runtime": AcpRuntime(command="x")}, Code.AGENT_INVALID),
        ({"owner": "stranger"}, Code.AGENT_INVALID),
        ({"nonsense": 1}, Code.AGENT_INVALID),
    ],
)
async def test_an_agent_that_is_not_valid_is_neither_made_nor_changed(
    quiet: Holdfast, fields: dict[str, Any], code: Code
) -> None:
    known = await _made(quiet, slug="known")

    with pytest.raises(HoldfastError) as made:
        await _made(quiet, **fields)
    with pytest.raises(HoldfastError) as changed:
        await quiet.agents.update(quiet.owner, "known", fields)

    assert (made.value.code, changed.value.code) == (code, code)
    assert await _listed(quiet, status=None) == ["known"]
    assert await quiet.agents.get(quiet.owner, "known") == known


@demands("S2-020m")
async def test_a_change_keeps_what_it_does_not_name(quiet: Holdfast, clock: SettableClock) -> None:
    agent = await _made(quiet, description="helps", models=["openai:b"], tags=("x",))
    clock.advance(minutes=1)

    changed = await quiet.agents.update(
        quiet.owner, "helper", {"name": "New", "description": None, "slug": "new"}
    )

    assert (changed.name, changed.description, changed.slug) == ("New", None, "new")
    assert (changed.runtime, changed.tags, changed.id) == (agent.runtime, ("x",), agent.id)
    assert (changed.created_at, changed.updated_at) == (agent.created_at, clock.now())
    assert await quiet.agents.get(quiet.owner, "new") == changed
    with pytest.raises(NotFound):
        await quiet.agents.get(quiet.owner, "helper")


async def test_a_change_of_nothing_changes_not_even_the_time(
    quiet: Holdfast, clock: SettableClock
) -> None:
    agent = await _made(quiet, models=["openai:b"])
    clock.advance(minutes=1)

    for change in ({}, {"name": "Helper"}, {"slug": "helper"}, {"models": ["openai:b"]}):
        assert await quiet.agents.update(quiet.owner, agent.id, change) == agent


async def test_a_slug_of_another_agent_cannot_be_taken_over(quiet: Holdfast) -> None:
    await _made(quiet)
    await _made(quiet, slug="other")

    with pytest.raises(Conflict) as caught:
        await quiet.agents.update(quiet.owner, "other", {"slug": "helper"})

    assert caught.value.code is Code.SLUG_TAKEN


@demands("S2-020l")
async def test_an_archived_agent_keeps_its_slug_and_can_come_back(quiet: Holdfast) -> None:
    agent = await _made(quiet)

    archived = await quiet.agents.archive(quiet.owner, "helper")
    assert archived.status is AgentStatus.ARCHIVED
    assert await quiet.agents.archive(quiet.owner, "helper") == archived
    assert await quiet.agents.get(quiet.owner, "helper") == archived
    with pytest.raises(Conflict):
        await _made(quiet, slug="helper")

    back = await quiet.agents.update(quiet.owner, "helper", {"status": "active"})
    assert back == agent


async def test_the_tools_of_an_agent_may_be_many_and_large(quiet: Holdfast) -> None:
    tools = [{"name": f"tool_{number}", "description": "x" * 1_900} for number in range(128)]

    agent = await _made(quiet, tools=tools)

    assert len(agent.tools) == 128


async def test_a_page_of_large_agents_ends_early_and_its_cursor_leads_on(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.batches.LIST_BYTES", 3_000)
    monkeypatch.setattr("holdfast.services.batches.READ_AT_ONCE", 2)
    for number in range(7):
        fields = {"name": f"A{number}", "system_prompt": "x" * 1_000, "tags": ("large",)}
        await quiet.agents.create(quiet.owner, fields)
    query = AgentQuery(owner=quiet.owner, tags=("large",), limit=6)
    pages = [await quiet.agents.list(query)]

    while pages[-1].next_cursor is not None:
        pages.append(await quiet.agents.list(query, cursor=pages[-1].next_cursor))

    assert len(pages) > 2
    names = [agent.name for page in pages for agent in page.items]
    assert sorted(names) == [f"A{number}" for number in range(7)]
