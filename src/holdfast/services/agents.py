"""Agents: made, changed and archived by their owner; sessions keep the one they opened with."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from holdfast.domain.agents import AcpRuntime, Agent, AgentStatus, LlmRuntime, ModelChoice
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import AgentId, Owner, is_slug, is_uuid, slug_of
from holdfast.domain.queries import AgentQuery, Page, require_limit
from holdfast.domain.scrubbing import Scrubber
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

    def __init__(
        self,
        store: Store,
        models: Models,
        clock: Clock,
        mint: Mint,
        scrubber: Callable[[], Scrubber] = Scrubber,
    ) -> None:
        self._store = store
        self._scrubber = scrubber
        self._models = models
        self._clock = clock
        self._mint = mint

    async def create(self, owner: Owner, fields: Mapping[str, Any]) -> Agent:
        """Create an agent from its fields; only `name` is needed.

        Without a `slug` one is made from the name. `models` are ids or `provider:name`, the
        first one is asked first.
        """
        wanted = {"system_prompt": "", "runtime": LlmRuntime(), **fields}
        models = _models_in(wanted)
        await self._models.check(*models or ())

        async def work(tx: Tx) -> Agent:
            now = self._clock.now()
            wanted["slug"] = await _free_slug(tx, owner, wanted)
            stamps = {"id": self._mint.new(), "owner": owner, "created_at": now, "updated_at": now}
            agent = await self._with_models(tx, _agent(wanted, stamps), models)
            agent = self._scrubber().cleaned(agent)
            await tx.agents.add(agent)
            return agent

        return await self._store.write(work)

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return the owner's agent of that id or slug."""
        return await self._store.read(lambda tx: find_agent(tx, owner, ref))

    async def list(self, query: AgentQuery, *, cursor: str | None = None) -> Page[Agent]:
        """Return the owner's agents that match, newest first."""
        require_limit(query.limit)
        filters = ("agents", replace(query, before=None, limit=1))
        asked = replace(query, limit=query.limit + 1)
        if cursor is not None:
            asked = replace(asked, before=decode_cursor(cursor, filters))
        found = await self._store.read(lambda tx: tx.agents.page(asked))
        shown = found[: query.limit]
        more = len(found) > query.limit
        last = (shown[-1].created_at, shown[-1].id) if more else None
        return Page(items=tuple(shown), next_cursor=encode_cursor(last, filters))

    async def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent:
        """Change an agent; sessions that are open keep the one they know."""
        wanted = dict(changes)
        models = _models_in(wanted)
        await self._models.check(*models or ())

        async def work(tx: Tx) -> Agent:
            agent = await find_agent(tx, owner, ref)
            if wanted.get("slug", agent.slug) != agent.slug:
                await _free_slug(tx, owner, wanted)
            changed = self._scrubber().cleaned(_agent(asdict(agent) | wanted, {}))
            if models is not None:
                changed = await self._with_models(tx, changed, models)
            if changed == agent:
                return agent
            changed = replace(changed, updated_at=max(self._clock.now(), agent.updated_at))
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
            return await self.create(owner, BUILT_IN_FIELDS)
        except Conflict:
            # Another process made it between the two lines above.
            return await self.get(owner, BUILT_IN)

    async def _with_models(self, tx: Tx, agent: Agent, refs: tuple[str, ...] | None) -> Agent:
        if refs is None:
            return agent
        if isinstance(agent.runtime, AcpRuntime):
            raise Invalid(
                Code.AGENT_INVALID,
                "An agent with a program of its own chooses its own models.",
                {"fields": ["models"]},
            )
        # A file says how often each is asked; the ids of models are the same everywhere.
        attempts = {each.model_id: each.max_attempts for each in agent.runtime.models}
        ids = [await self._models.resolve(tx, ref) for ref in refs]
        chosen = [ModelChoice(model_id=id_, max_attempts=attempts.get(id_)) for id_ in ids]
        return replace(agent, runtime=replace(agent.runtime, models=tuple(chosen)))


BUILT_IN_FIELDS: Final[Mapping[str, Any]] = {
    "name": "Holdfast",
    "slug": BUILT_IN,
    "system_prompt": "You are Holdfast's own assistant. Answer briefly and truthfully, and say "
    "what you do not know. Use your tools to look before you answer questions about files.",
    "tools": (
        "read_file",
        "list_directory",
        "find_text",
        "git_status",
        "write_file",
        "edit_file",
        "git_commit",
        # Offered only where the configuration lists commands and domains.
        "run_command",
        "http_request",
    ),
    "grant": None,
}


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


async def _free_slug(tx: Tx, owner: Owner, fields: Mapping[str, Any]) -> str:
    """Return the wanted slug if it is free; a made one is numbered until it is."""
    given = fields.get("slug")
    wanted = str(given) if given is not None else slug_of(str(fields.get("name", ""))) or "agent"
    number = 1
    candidate = wanted
    while await tx.agents.by_slug(owner, candidate) is not None:
        if given is not None:
            raise Conflict(
                Code.SLUG_TAKEN, "Another agent has this slug; choose another.", {"slug": wanted}
            )
        number += 1
        # Cut, because the number must not make a slug too long.
        candidate = f"{wanted[:245]}-{number}"
    return candidate


def _models_in(fields: dict[str, Any]) -> tuple[str, ...] | None:
    """Take the models out of the fields, which must all be an agent's."""
    unknown = sorted(set(fields) - CHANGEABLE)
    if unknown:
        raise Invalid(
            Code.AGENT_INVALID,
            f"An agent has no {', '.join(unknown)}; it has {', '.join(sorted(CHANGEABLE))}.",
            {"fields": unknown},
        )
    models = fields.pop("models", None)
    if models is not None and not all(isinstance(ref, str) for ref in models):
        raise Invalid(Code.AGENT_INVALID, "models must be strings.", {"fields": ["models"]})
    return None if models is None else tuple(models)


def _agent(fields: Mapping[str, Any], stamps: Mapping[str, Any]) -> Agent:
    """Return the agent that the fields make, each judged by its type."""
    tools = fields.get("tools", ())
    if isinstance(tools, list | tuple):
        # A bare name is enough: most tools are described by those who bring them.
        named = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
        fields = {**fields, "tools": named}
    try:
        return msgspec.convert({**fields, **stamps}, Agent)
    except msgspec.ValidationError as error:
        raise Invalid(Code.AGENT_INVALID, f"The agent is not valid: {error}.") from None
