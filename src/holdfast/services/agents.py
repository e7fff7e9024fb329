"""Agents: create, change and archive them. Sessions keep the version they opened with."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import asdict, replace

from holdfast.domain.agent_processes import parse_program_options
from holdfast.domain.agents import (
    SCHEMA_KEYS,
    AcpRuntime,
    Agent,
    AgentOverrides,
    AgentStatus,
    LlmRuntime,
    ModelChoice,
    functions_of,
    override_agent,
    require_retry,
)
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import AgentId, Owner, is_slug, is_uuid, require_uuid, slug_of
from holdfast.domain.queries import (
    AgentQuery,
    Page,
    SessionQuery,
    decode_cursor,
    encode_cursor,
    require_limit,
)
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import Created, digest_request
from holdfast.domain.text import require_text
from holdfast.domain.tools import (
    CLIENT_TIMEOUT,
    CLIENT_TIMEOUT_LONGEST,
    INVOKE_AGENT,
    TOOL_NAME,
    Effect,
    ToolSpec,
    is_list_of_texts,
    is_reserved,
    tool_fields,
)
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.batches import fill_page
from holdfast.services.journal import stale_etag
from holdfast.services.models import Models
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.zones.binding import stamp_of
from holdfast.zones.merge import adopt_zones

log = logging.getLogger(__name__)
BUILT_IN: Final = "holdfast"
TOOLS_LARGEST: Final = 256 << 10
# Sessions of an agent whose functions are known to exist.
_NEWEST_SESSIONS: Final = 32
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
        *SCHEMA_KEYS,
        "tags",
        "status",
    }
)


class AgentRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for all agents: secret redaction, and agents that exist without being created.

    `seeds` maps slugs to the fields of such agents; the built-in one is always included.
    """

    scrubber: Callable[[], Scrubber] = Scrubber
    seeds: Mapping[str, Mapping[str, Any]] = {}
    # The default agent in a repository.
    in_repositories: str = BUILT_IN


class EnsureVerb(Protocol):
    """`ensure`, made of two other verbs: the same here and over HTTP."""

    async def create(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Agent: ...
    async def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent: ...
    async def ensure(self, owner: Owner, fields: Mapping[str, Any]) -> Agent:
        """Create the agent of this slug, by default of its name, or change these fields of it."""
        slug = str(fields.get("slug") or _slug_of_name(fields))
        with suppress(NotFound):
            return await self.update(owner, slug, fields)
        with suppress(Conflict):
            return await self.create(owner, {**fields, "slug": slug})
        # Another process has created it in between (race).
        return await self.update(owner, slug, fields)


class Agents(EnsureVerb):
    """Agents of an owner."""

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
        self._id_factory = id_factory

    async def create(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Agent:
        """Create an agent from its fields; only `name` is required.

        Without a `slug` one is derived from the name. `models` are ids or `provider:name`, in order
        of preference.
        """
        return (await self.make(owner, fields, id=id)).value

    async def make(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Created[Agent]:
        """Create an agent; `is_new` is false if an equal request with this id did so before."""
        agent_id = AgentId(
            self._id_factory.new() if id is None else require_uuid(id, what="agent id")
        )
        wanted = {"system_prompt": "", "runtime": LlmRuntime(), **fields}
        digest = digest_request(owner, "agent", fields)
        models = _models_in(wanted)
        await self._models.check(*models or ())

        async def work(tx: Tx) -> Created[Agent]:
            known = await _created_before(tx, owner, agent_id, digest)
            if known is not None:
                return Created(value=known, is_new=False)
            now = self._clock.now()
            slug = await _free_slug(tx, owner, wanted)
            stamps = {"id": agent_id, "owner": owner, "created_at": now, "updated_at": now}
            agent = await self._with_models(tx, _agent({**wanted, "slug": slug}, stamps), models)
            require_definitions(agent.tools)
            agent = self._scrubber().redact_value(agent)
            await tx.agents.add(agent, digest)
            await adopt_zones(
                tx, agent, stamp_of(Stamping(clock=self._clock, id_factory=self._id_factory))
            )
            return Created(value=agent, is_new=True)

        return await self._store.write(work)

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return the owner's agent by id or slug."""
        await self.seed(owner, ref)
        return await self._read_agent(owner, ref)

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
        """Change an agent; open sessions keep their version.

        `expected` checks the agent inside the transaction; if it returns false, nothing changes.
        """
        wanted = dict(changes)
        models = _models_in(wanted)
        await self._models.check(*models or ())
        await self.seed(owner, ref)

        async def work(tx: Tx) -> Agent:
            agent = await find_agent(tx, owner, ref)
            if expected is not None and not expected(agent):
                raise stale_etag()
            if wanted.get("slug", agent.slug) != agent.slug:
                await _free_slug(tx, owner, wanted)
            changed = self._scrubber().redact_value(_agent(asdict(agent) | wanted, {}))
            if changed.tools != agent.tools:
                require_definitions(changed.tools)
            if models is not None:
                changed = await self._with_models(tx, changed, models)
            if changed == agent:
                return agent
            changed = replace(changed, updated_at=max(self._clock.now(), agent.updated_at))
            await tx.agents.save(changed)
            return changed

        return await self._store.write(work)

    async def archive(self, owner: Owner, ref: str) -> Agent:
        """Archive an agent: it stays stored, but no new session opens with it."""
        return await self.update(owner, ref, {"status": AgentStatus.ARCHIVED})

    async def purge(self, owner: Owner, ref: str) -> None:
        """Delete an archived agent that no session was opened with."""

        async def work(tx: Tx) -> None:
            agent = await find_agent(tx, owner, ref)
            if agent.status is not AgentStatus.ARCHIVED:
                raise Conflict(
                    Code.AGENT_IN_USE, "The agent is active; archive it before you delete it."
                )
            if await tx.agents.is_used(owner, agent.id):
                raise Conflict(
                    Code.AGENT_IN_USE,
                    "The agent has sessions; delete them before you delete the agent.",
                )
            await tx.agents.remove(owner, agent.id)

        await self._store.write(work, urgent=True)
        # Also out of the write-ahead log: deleted data must not be recoverable from the disk.
        await self._store.scrub()

    async def in_repositories(self, owner: Owner) -> Agent:
        """Return the default agent in a repository."""
        return await self.get(owner, self._in_repositories)

    async def seed(self, owner: Owner, ref: str) -> None:
        """Create a seed agent on first use; a no-op for any other reference.

        Requests by slug then work without creating it first.
        """
        if ref not in self._seeds:
            return
        try:
            await self._read_agent(owner, ref)
        except NotFound:
            # If another process created it in between (race), the agent exists and this is a
            # success.
            with suppress(Conflict):
                await self.create(owner, self._seeds[ref])

    async def _read_agent(self, owner: Owner, ref: str) -> Agent:
        return await self._store.read(lambda tx: find_agent(tx, owner, ref))

    async def _with_models(self, tx: Tx, agent: Agent, refs: tuple[str, ...] | None) -> Agent:
        if refs is None:
            return agent
        if not isinstance(agent.runtime, LlmRuntime):
            raise Invalid(
                Code.AGENT_INVALID,
                "An agent that runs a program chooses its own models; leave out models.",
                {"fields": ["models"]},
            )
        # A file may set attempts per model; model ids are the same on every installation.
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
        # Offered only if the configuration lists commands and domains.
        "run_command",
        "http_request",
    ),
    "grant": None,
}


async def used_functions(tx: Tx, agent: Agent) -> frozenset[str]:
    """Return the functions that processes have or had, in so far as the store knows.

    They were announced, or the newest sessions of the agent were opened with them. A new session
    waits until a process has them again.
    """
    query = SessionQuery(owner=agent.owner, agent_id=agent.id, limit=_NEWEST_SESSIONS)
    sessions = [session for session, _ in await tx.sessions.page(query)]
    used = frozenset(name for session in sessions for name in functions_of(session.tools))
    return used | await tx.workers.functions(agent.owner)


async def find_agent(tx: Tx, owner: Owner, ref: str) -> Agent:
    """Return the owner's agent by id or slug, or raise `NotFound`."""
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


def _slug_of_name(fields: Mapping[str, Any]) -> str:
    return slug_of(str(fields.get("name", ""))) or "agent"


async def _created_before(tx: Tx, owner: Owner, agent_id: AgentId, digest: bytes) -> Agent | None:
    """Return the agent of a repeated request; the same id with another request is refused."""
    stored = await tx.agents.digest(owner, agent_id)
    if stored is None:
        return None
    if stored != digest:
        raise Conflict(Code.ID_REUSED, "This id is taken; leave it out, or choose another.")
    return await tx.agents.by_id(owner, agent_id)


async def _free_slug(tx: Tx, owner: Owner, fields: Mapping[str, Any]) -> str:
    """Return the requested slug if it is free; a derived one is numbered until it is."""
    given = fields.get("slug")
    wanted = str(given) if given is not None else _slug_of_name(fields)
    number = 1
    candidate = wanted
    while await tx.agents.by_slug(owner, candidate) is not None:
        if given is not None:
            raise Conflict(
                Code.SLUG_TAKEN, "Another agent has this slug; choose another.", {"slug": wanted}
            )
        number += 1
        # Truncated, so that the number does not exceed the length limit of a slug.
        candidate = f"{wanted[:245]}-{number}"
    if number > 1 and slug_of(str(fields.get("name", ""))):
        text = "an agent %s exists, so this one is %s; agents.ensure returns the one that exists"
        log.warning(text, wanted, candidate)
    return candidate


def _models_in(fields: dict[str, Any]) -> tuple[str, ...] | None:
    """Remove the models from the fields and return them; refuses unknown fields."""
    unknown = sorted(set(fields) - CHANGEABLE)
    if unknown:
        raise Invalid(
            Code.AGENT_INVALID,
            f"An agent has no field {', '.join(unknown)}; the fields are "
            f"{', '.join(sorted(CHANGEABLE))}.",
            {"fields": unknown},
        )
    models = fields.pop("models", None)
    if models is not None and not all(isinstance(ref, str) for ref in models):
        raise Invalid(Code.AGENT_INVALID, "models must be strings.", {"fields": ["models"]})
    return None if models is None else tuple(models)


def _agent(fields: Mapping[str, Any], stamps: Mapping[str, Any]) -> Agent:
    """Return the agent made of the fields, validated by type."""
    tools = fields.get("tools", ())
    if isinstance(tools, list | tuple):
        # A bare name is enough, because most tools are described by their implementation.
        fields = {**fields, "tools": [_tool(each) for each in tools]}
    schemas = {key: fields[key] for key in SCHEMA_KEYS if key in fields}
    if schemas:
        # None removes a schema.
        kept = {**fields.get("extra", {}), **schemas}
        fields = {**fields, "extra": {key: kept[key] for key in kept if kept[key] is not None}}
    try:
        agent = msgspec.convert({**fields, **stamps}, Agent)
    except msgspec.ValidationError as error:
        raise Invalid(Code.AGENT_INVALID, f"The agent is not valid: {error}.") from None
    _require_light(agent)
    require_schemas(agent.extra)
    return agent


def _tool(given: Any) -> Any:
    if not isinstance(given, str | dict):
        return given
    fields = tool_fields(given)
    # A tool object with only a name is equal to that name.
    return fields if fields.get("extra") else {**fields, "extra": None}


def _require_light(agent: Agent) -> None:
    if isinstance(agent.runtime, AcpRuntime):
        # Validated here and not in the type, so that options stored by older versions stay
        # readable.
        parse_program_options(agent.runtime)
    elif isinstance(agent.runtime, LlmRuntime):
        require_retry(agent.runtime.retry)
    # Limited here and not in the type, because readers do not need the check.
    if len(msgspec.json.encode(agent.tools)) > TOOLS_LARGEST:
        raise Invalid(
            Code.AGENT_INVALID,
            "tools may have at most 256 KiB together.",
            {"fields": ["tools"]},
        )


INPUT_SCHEMA, OUTPUT_SCHEMA = SCHEMA_KEYS
_RULE_LONGEST: Final = 200
_REFERENCE: Final = "every $ref must name a part of the schema itself, beginning with #"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class SchemaFault(Exception):  # noqa: N818 — a finding, often not an error
    """Why a value does not match: a path and a rule, never the value."""


def schema_of(agent: Agent, key: str) -> dict[str, Any] | None:
    """Return a schema of an agent; `None` if it has none."""
    found = agent.extra.get(key) if agent.extra else None
    return found if isinstance(found, dict) else None


def with_overrides(agent: Agent, overrides: AgentOverrides | None) -> Agent:
    """Return the agent as a session changes it; refuses a schema that cannot be applied."""
    changed = override_agent(agent, overrides)
    if overrides is not None and overrides.output_schema is not None:
        require_schemas(changed.extra)
    return changed


def require_schemas(extra: Mapping[str, Any]) -> None:
    """Refuse an agent whose schemas cannot be applied."""
    for key in SCHEMA_KEYS:
        found = extra.get(key)
        fault = _schema_fault(found) if isinstance(found, dict) else None
        if fault is not None:
            raise Invalid(Code.AGENT_INVALID, f"{key} is not valid: {fault}.", {"fields": [key]})


# How many agents a definition of `invoke_agent` may name.
AGENTS_MOST: Final = 64
DEFINITION_LARGEST: Final = 64 << 10
_APPROVALS: Final = frozenset({None, "auto", "ask", "deny", "mode"})


def require_definitions(tools: Iterable[ToolSpec]) -> None:
    """Refuse a definition of a client's tool, or of `invoke_agent`, that could not be offered."""
    for tool in tools:
        fault = _definition_fault(tool) if tool.parameters is not None else None
        if tool.name == INVOKE_AGENT and "agents" in (tool.extra or {}):
            given = (tool.extra or {})["agents"]
            is_good = is_list_of_texts(given) and len(tool.agents) == len(given) <= AGENTS_MOST
            fault = fault if is_good else f"agents must be a list of at most {AGENTS_MOST} slugs"
        if fault is not None:
            text = f"The tool {tool.name} is not valid: {fault}."
            raise Invalid(Code.TOOL_INVALID, text, {"field": "tools", "tool": tool.name})


def _definition_fault(tool: ToolSpec) -> str | None:
    if is_reserved(tool.name):
        raise Invalid(
            Code.TOOL_NAME_TAKEN,
            f"{tool.name} is the name of a tool of Holdfast; leave out `parameters`, or choose "
            "another name.",
            {"field": "tools", "tool": tool.name},
        )
    schema, extra = tool.parameters or {}, tool.extra or {}
    timeout = extra.get("timeout_s", CLIENT_TIMEOUT)
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    rules = {
        "its name needs at most 64 letters, digits, _ and -": TOOL_NAME.fullmatch(tool.name),
        "it needs a description": (tool.description or "").strip(),
        "parameters may have at most 64 KiB": (
            len(msgspec.json.encode(schema)) <= DEFINITION_LARGEST
        ),
        "parameters must be a schema with the type object": schema.get("type") == "object",
        "effect must be pure, idempotent or unsafe": (
            extra.get("effect", Effect.UNSAFE) in list(Effect)
        ),
        "approval must be auto, ask, deny or mode": tool.approval in _APPROVALS,
        "parallel must be true or false, and true needs the effect pure or idempotent": (
            isinstance(extra.get("parallel", False), bool)
            and tool.is_parallel >= extra.get("parallel", False)
        ),
        f"timeout_s must be above 0 and at most {CLIENT_TIMEOUT_LONGEST:.0f}": (
            is_number and 0 < timeout <= CLIENT_TIMEOUT_LONGEST
        ),
    }
    broken = next((rule for rule, holds in rules.items() if not holds), None)
    fault = broken or _schema_fault(schema)
    return fault if broken or fault is None else f"parameters: {fault}"


def _schema_fault(schema: dict[str, Any]) -> str | None:
    from jsonschema import Draft202012Validator, SchemaError

    if schema.get("$schema", _DIALECT) != _DIALECT:
        return f"$schema must be {_DIALECT}"
    if _leads_elsewhere(schema):
        return _REFERENCE
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {_rule(error.validator, error.validator_value)}"
    return None


def _leads_elsewhere(schema: Any) -> bool:
    """Return whether a reference leaves the schema: Holdfast would request its address (SSRF)."""
    if isinstance(schema, list):
        return any(map(_leads_elsewhere, schema))
    if not isinstance(schema, dict):
        return False
    refs = [schema.get(key, "#") for key in ("$ref", "$dynamicRef")]
    is_outside = any(isinstance(ref, str) and not ref.startswith("#") for ref in refs)
    return is_outside or any(map(_leads_elsewhere, schema.values()))


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the JSON value of a text; raises `SchemaFault` if it does not match the schema."""
    try:
        value = msgspec.json.decode(_without_fence(text))
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise SchemaFault("it is not a single JSON value") from None
    check_value(value, schema)
    return value


def check_value(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise `SchemaFault` if a JSON value does not match the schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    if _leads_elsewhere(schema):
        raise SchemaFault(_REFERENCE)
    try:
        error = best_match(Draft202012Validator(schema).iter_errors(value))
    # A reference to a missing part of the schema raises a class without a public name.
    except Exception:  # noqa: BLE001
        raise SchemaFault(_REFERENCE) from None
    if error is not None:
        raise SchemaFault(f"at {error.json_path}: {_rule(error.validator, error.validator_value)}")


def _without_fence(text: str) -> str:
    """Return a text without the Markdown fence that models put around JSON."""
    lines = text.strip().splitlines()
    is_fenced = len(lines) > 1 and lines[0] in {"```", "```json"} and lines[-1] == "```"
    return "\n".join(lines[1:-1]) if is_fenced else text


def _rule(keyword: Any, wanted: Any) -> str:
    rule = f"{keyword} {msgspec.json.encode(wanted).decode()}"
    return rule if len(rule) <= _RULE_LONGEST else f"{rule[:_RULE_LONGEST]}…"


def require_input(agent: Agent, text: str) -> None:
    """Refuse a message that does not match the agent's input schema."""
    schema = schema_of(agent, INPUT_SCHEMA)
    if schema is None:
        return
    try:
        parse_value(text, schema)
    except SchemaFault as fault:
        raise Invalid(
            Code.MESSAGE_INVALID,
            f"The message does not match the input_schema of agent {agent.slug}: {fault}. Send "
            "JSON that matches it.",
            {"rule": str(fault)},
        ) from None
