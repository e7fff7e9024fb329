"""Agents: made, changed and archived by their owner; sessions keep the one they opened with."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from holdfast.domain.agent_processes import parse_program_options
from holdfast.domain.agents import AcpRuntime, Agent, AgentStatus, LlmRuntime, ModelChoice
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import AgentId, Owner, is_slug, is_uuid, require_uuid, slug_of
from holdfast.domain.queries import AgentQuery, Page, decode_cursor, encode_cursor, require_limit
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import Created, digest_of
from holdfast.domain.text import require_text
from holdfast.domain.tools import tool_fields
from holdfast.ports import Clock, Store, Tx
from holdfast.services.batches import fill_page
from holdfast.services.journal import lease_lost
from holdfast.services.models import Models
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.zones.binding import stamp_of
from holdfast.zones.merge import adopt_zones

BUILT_IN: Final = "holdfast"
TOOLS_LARGEST: Final = 256 << 10
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


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all agents: which secrets stay out, and who is there without being made.

    `seeds` are agents by their slugs, as they are made; Holdfast's own is always one.
    """

    scrubber: Callable[[], Scrubber] = Scrubber
    seeds: Mapping[str, Mapping[str, Any]] = {}
    # Who answers in a repository when nobody is named.
    in_repositories: str = BUILT_IN


class Agents:
    """Who answers, for its owner."""

    def __init__(
        self,
        store: Store,
        models: Models,
        clock: Clock,
        id_factory: IdFactory,
        rules: AgentRules | None = None,
    ) -> None:
        known = rules or AgentRules()
        self._store = store
        self._scrubber = known.scrubber
        self._seeds = {BUILT_IN: BUILT_IN_FIELDS, **known.seeds}
        self._in_repositories = known.in_repositories
        self._models = models
        self._clock = clock
        self._mint = id_factory

    async def create(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Agent:
        """Create an agent from its fields; only `name` is needed.

        Without a `slug` one is made from the name. `models` are ids or `provider:name`, the
        first one is asked first.
        """
        return (await self.make(owner, fields, id=id)).thing

    async def make(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Created[Agent]:
        """Create an agent, and tell whether an equal request with this id did so before."""
        agent_id = AgentId(self._mint.new() if id is None else require_uuid(id, what="agent id"))
        wanted = {"system_prompt": "", "runtime": LlmRuntime(), **fields}
        digest = digest_of(owner, "agent", fields)
        models = _models_in(wanted)
        await self._models.check(*models or ())

        async def work(tx: Tx) -> Created[Agent]:
            known = await _created_before(tx, owner, agent_id, digest)
            if known is not None:
                return Created(thing=known, is_new=False)
            now = self._clock.now()
            slug = await _free_slug(tx, owner, wanted)
            stamps = {"id": agent_id, "owner": owner, "created_at": now, "updated_at": now}
            agent = await self._with_models(tx, _agent({**wanted, "slug": slug}, stamps), models)
            agent = self._scrubber().cleaned(agent)
            await tx.agents.add(agent, digest)
            await adopt_zones(
                tx, agent, stamp_of(Stamping(clock=self._clock, id_factory=self._mint))
            )
            return Created(thing=agent, is_new=True)

        return await self._store.write(work)

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return the owner's agent of that id or slug."""
        await self.seed(owner, ref)
        return await self._stored(owner, ref)

    async def list(self, query: AgentQuery, *, cursor: str | None = None) -> Page[Agent]:
        """Return the owner's agents that match, newest first."""
        require_limit(query.limit)
        if query.text is not None:
            require_text(query.text, field="text", longest=1_000)
        filters = ("agents", replace(query, before=None, limit=1))
        place = query.before if cursor is None else decode_cursor(cursor, filters)

        async def read(tx: Tx) -> tuple[tuple[Agent, ...], bool]:
            async def behind(last: Agent | None, most: int) -> "list[Agent]":
                before = place if last is None else (last.created_at, str(last.id))
                return await tx.agents.page(replace(query, before=before, limit=most))

            return await fill_page(behind, query.limit)

        shown, more = await self._store.read(read)
        last = (shown[-1].created_at, shown[-1].id) if more else None
        return Page(items=shown, next_cursor=encode_cursor(last, filters))

    async def update(
        self,
        owner: Owner,
        ref: str,
        changes: Mapping[str, Any],
        *,
        expected: Callable[[Agent], bool] | None = None,
    ) -> Agent:
        """Change an agent; sessions that are open keep the one they know.

        `expected` judges the agent inside the transaction; what it refuses is not changed.
        """
        wanted = dict(changes)
        models = _models_in(wanted)
        await self._models.check(*models or ())
        await self.seed(owner, ref)

        async def work(tx: Tx) -> Agent:
            agent = await find_agent(tx, owner, ref)
            if expected is not None and not expected(agent):
                raise lease_lost()
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

    async def purge(self, owner: Owner, ref: str) -> None:
        """Remove an archived agent that no session was opened with; nothing stays of it."""

        async def work(tx: Tx) -> None:
            agent = await find_agent(tx, owner, ref)
            if agent.status is not AgentStatus.ARCHIVED:
                raise Conflict(
                    Code.AGENT_IN_USE, "The agent is active; archive it before it is purged."
                )
            if await tx.agents.is_used(owner, agent.id):
                raise Conflict(
                    Code.AGENT_IN_USE, "The agent has sessions; delete them before it is purged."
                )
            await tx.agents.remove(owner, agent.id)

        await self._store.write(work, urgent=True)
        # Out of the log file too: what was removed must not be found by reading the disk.
        await self._store.scrub()

    async def built_in(self, owner: Owner) -> Agent:
        """Return the agent that answers when none is named, made at its first use."""
        return await self.get(owner, BUILT_IN)

    async def in_repositories(self, owner: Owner) -> Agent:
        """Return the agent that answers in a repository when none is named."""
        return await self.get(owner, self._in_repositories)

    async def seed(self, owner: Owner, ref: str) -> None:
        """Make an agent that is there without being made, at its first use; others are left.

        Whoever asks for it by its slug should not have to make it.
        """
        if ref not in self._seeds:
            return
        try:
            await self._stored(owner, ref)
        except NotFound:
            # Where another process makes it between the two lines, it is there, too.
            with suppress(Conflict):
                await self.create(owner, self._seeds[ref])

    async def _stored(self, owner: Owner, ref: str) -> Agent:
        return await self._store.read(lambda tx: find_agent(tx, owner, ref))

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


async def _created_before(tx: Tx, owner: Owner, agent_id: AgentId, digest: bytes) -> Agent | None:
    """Return the agent of a repeated request; an id with another request is refused."""
    stored = await tx.agents.digest(owner, agent_id)
    if stored is None:
        return None
    if stored != digest:
        raise Conflict(Code.ID_REUSED, "This id is taken; leave it out, or choose another.")
    return await tx.agents.by_id(owner, agent_id)


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
        fields = {**fields, "tools": [_tool(each) for each in tools]}
    try:
        agent = msgspec.convert({**fields, **stamps}, Agent)
    except msgspec.ValidationError as error:
        raise Invalid(Code.AGENT_INVALID, f"The agent is not valid: {error}.") from None
    _require_light(agent)
    return agent


def _tool(given: Any) -> Any:
    if not isinstance(given, str | dict):
        return given
    fields = tool_fields(given)
    # In a program an object that holds a name only is that name.
    return fields if fields.get("extra") else {**fields, "extra": None}


def _require_light(agent: Agent) -> None:
    if isinstance(agent.runtime, AcpRuntime):
        # Here and not in the value: one that was stored when less was known can still be read.
        parse_program_options(agent.runtime)
    # Here and not in the value: whoever reads an agent has no use for its weight.
    if len(msgspec.json.encode(agent.tools)) > TOOLS_LARGEST:
        raise Invalid(
            Code.AGENT_INVALID,
            "tools must have 256 KiB at most, all together.",
            {"fields": ["tools"]},
        )
