"""Agents: made, changed and archived by their owner; sessions keep the one they opened with."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.agents import (
    AcpRuntime,
    Agent,
    AgentStatus,
    LlmRuntime,
    ModelChoice,
    Recovery,
    Runtime,
)
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import AgentId, Owner, is_slug, is_uuid, slug_of
from holdfast.domain.queries import AgentQuery, Page, require_limit
from holdfast.domain.tools import Grant, ToolSpec
from holdfast.ports import Clock, Store, Tx
from holdfast.services.cursors import decode_cursor, encode_cursor
from holdfast.services.mint import Mint
from holdfast.services.models import Models

BUILT_IN: Final = "holdfast"
CHANGEABLE: Final = frozenset(
    {
        "slug",
        "name",
        "description",
        "system_prompt",
        "models",
        "runtime",
        "tools",
        "mcp_servers",
        "grant",
        "recovery",
        "extra",
        "tags",
        "status",
    }
)


class Agents:
    """Who answers, for its owner."""

    def __init__(self, store: Store, models: Models, clock: Clock, mint: Mint) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._mint = mint

    async def create(
        self,
        owner: Owner,
        *,
        name: str,
        system_prompt: str = "",
        slug: str | None = None,
        models: tuple[str, ...] = (),
        **rest: Any,
    ) -> Agent:
        """Create an agent; without a slug one is made from its name.

        `models` are ids or `provider:name`, the first one is asked first. `rest` takes the
        other fields of `Agent`: description, runtime, tools, grant, recovery, tags.
        """
        _require_known(rest)

        async def work(tx: Tx) -> Agent:
            now = self._clock.now()
            agent = Agent(
                id=AgentId(self._mint.new()),
                owner=owner,
                slug=await self._free_slug(tx, owner, slug, name),
                name=name,
                system_prompt=system_prompt,
                created_at=now,
                updated_at=now,
                **{"runtime": LlmRuntime(), **rest},
            )
            agent = await self._with_models(tx, agent, models) if models else agent
            await tx.agents.add(agent)
            return agent

        return await self._store.write(work)

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return the owner's agent of that id or slug."""
        return await self._store.read(lambda tx: find_agent(tx, owner, ref))

    async def list(
        self,
        owner: Owner,
        *,
        status: AgentStatus | None = AgentStatus.ACTIVE,
        tags: tuple[str, ...] = (),
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Agent]:
        """Return the owner's agents, newest first; `status=None` means all."""
        require_limit(limit)
        filters = ("agents", owner, status, tags, text)
        query = AgentQuery(
            owner=owner,
            status=status,
            tags=tags,
            text=text,
            before=decode_cursor(cursor, filters),
            limit=limit + 1,
        )
        found = await self._store.read(lambda tx: tx.agents.page(query))
        shown = found[:limit]
        more = len(found) > limit
        last = (shown[-1].created_at, shown[-1].id) if more else None
        return Page(items=tuple(shown), next_cursor=encode_cursor(last, filters))

    async def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent:
        """Change an agent; sessions that are open keep the one they know."""
        _require_known(changes)

        async def work(tx: Tx) -> Agent:
            agent = await find_agent(tx, owner, ref)
            wanted = dict(changes)
            models = wanted.pop("models", None)
            if "slug" in wanted and wanted["slug"] != agent.slug:
                await self._free_slug(tx, owner, wanted["slug"], agent.name)
            changed = replace(agent, **wanted)
            if models is not None:
                changed = await self._with_models(tx, changed, tuple(models))
            if changed == agent:
                return agent
            changed = replace(changed, updated_at=self._clock.now())
            await tx.agents.save(changed)
            return changed

        return await self._store.write(work)

    async def archive(self, owner: Owner, ref: str) -> Agent:
        """Archive an agent: nothing is lost, and no new session opens with it."""
        return await self.update(owner, ref, {"status": AgentStatus.ARCHIVED})

    async def built_in(self, owner: Owner) -> Agent:
        """Return the agent that answers when none is named, made at its first use."""
        try:
            return await self.get(owner, BUILT_IN)
        except NotFound:
            pass
        try:
            return await self.create(
                owner, name="Holdfast", slug=BUILT_IN, system_prompt=BUILT_IN_PROMPT
            )
        except Conflict:
            # Another process made it between the two lines above.
            return await self.get(owner, BUILT_IN)

    async def _with_models(self, tx: Tx, agent: Agent, refs: tuple[str, ...]) -> Agent:
        runtime: Runtime = agent.runtime
        if isinstance(runtime, AcpRuntime):
            raise Invalid(
                Code.AGENT_INVALID,
                "An agent with a program of its own chooses its own models.",
                {"fields": ["models"]},
            )
        chosen = [ModelChoice(model_id=await self._models.resolve(tx, ref)) for ref in refs]
        return replace(agent, runtime=replace(runtime, models=tuple(chosen)))

    async def _free_slug(self, tx: Tx, owner: Owner, slug: str | None, name: str) -> str:
        """Return the wanted slug if it is free; a made one is numbered until it is."""
        wanted = slug if slug is not None else slug_of(name) or "agent"
        number = 1
        candidate = wanted
        while await tx.agents.by_slug(owner, candidate) is not None:
            if slug is not None:
                raise Conflict(
                    Code.SLUG_TAKEN, "Another agent has this slug; choose another.", {"slug": slug}
                )
            number += 1
            # Cut, because the number must not make a slug too long.
            candidate = f"{wanted[:245]}-{number}"
        return candidate


BUILT_IN_PROMPT: Final = (
    "You are Holdfast's own assistant. Answer briefly and truthfully, and say what you do not know."
)


async def find_agent(tx: Tx, owner: Owner, ref: str) -> Agent:
    """Return the owner's agent of that id or slug, or say that there is none."""
    agent = None
    if is_uuid(ref):
        agent = await tx.agents.by_id(owner, AgentId(ref))
    if agent is None and is_slug(ref):
        agent = await tx.agents.by_slug(owner, ref)
    if agent is None:
        raise NotFound(
            Code.AGENT_NOT_FOUND, "There is no such agent; `holdfast agents list` shows yours."
        )
    return agent


_KINDS: Final[Mapping[str, Any]] = {
    "runtime": (LlmRuntime, AcpRuntime),
    "grant": Grant,
    "recovery": Recovery,
    "status": AgentStatus,
}


def _require_known(fields: Mapping[str, Any]) -> None:
    """Refuse fields that an agent does not have, and values of the wrong kind."""
    unknown = sorted(set(fields) - CHANGEABLE)
    if unknown:
        raise Invalid(
            Code.AGENT_INVALID,
            f"An agent has no {', '.join(unknown)}; it has {', '.join(sorted(CHANGEABLE))}.",
            {"fields": unknown},
        )
    tools = fields.get("tools", ())
    wrong = [
        name
        for name, kind in _KINDS.items()
        if name in fields and not isinstance(fields[name], kind)
    ]
    if not all(isinstance(tool, ToolSpec) for tool in tools):
        wrong.append("tools")
    if wrong:
        raise Invalid(
            Code.AGENT_INVALID, f"Wrong kind of value for {', '.join(wrong)}.", {"fields": wrong}
        )
