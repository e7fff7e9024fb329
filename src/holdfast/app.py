"""Wiring: builds a `Holdfast` from a `Config`; the only module in which all packages meet."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from holdfast import keychain
from holdfast.config import Config, absolute_model, load
from holdfast.domain.agent_processes import KnownProgram
from holdfast.domain.agents import AcpRuntime, LlmRuntime
from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.errors import Code, Invalid, out_of_memory
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import LOCAL_OWNER, Owner, SessionId, require_owner
from holdfast.domain.messages import Message, Part
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import OnBusy, Session, SessionRequest
from holdfast.execution.coordinator import LocalCoordinator, RunScope
from holdfast.execution.system import SystemClock, SystemMachine, SystemRandomness
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.observations.service import Observations, SubmissionRates
from holdfast.open_store import STORE_NAME, open_configured_store, open_store, store_key
from holdfast.parsing.yaml import LARGEST
from holdfast.ports.llm import Llm
from holdfast.ports.runtime import Runtime
from holdfast.ports.store import Store
from holdfast.ports.system import Clock, Machine, Randomness
from holdfast.ports.tools import Toolbox
from holdfast.search.service import Search
from holdfast.services.agent_processes import (
    AgentProcesses,
    ProcessLimit,
    SessionMcpServers,
    WorkspaceResolver,
)
from holdfast.services.agents import BUILT_IN, AgentRules, Agents
from holdfast.services.approvals import ApprovalRules, Approvals
from holdfast.services.background_tasks import Background
from holdfast.services.calls import Calls
from holdfast.services.costs import Costs
from holdfast.services.event_stream import Events
from holdfast.services.journal import Journal
from holdfast.services.leases import Leases
from holdfast.services.maintenance import Maintenance, Retention
from holdfast.services.media import Media
from holdfast.services.messages import Messages
from holdfast.services.models import Models
from holdfast.services.repos import Repos
from holdfast.services.secrets import Secrets
from holdfast.services.session_create import SessionCreation, SessionRules
from holdfast.services.session_views import SessionViews
from holdfast.services.sessions import Sessions
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.services.tokens import Tokens
from holdfast.services.turns import Compactions, TurnInputs, Turns
from holdfast.services.workspaces import Visitors, Workspaces
from holdfast.store.database_url import password_of
from holdfast.store.sqlite.change_watch import StoreDoorbell
from holdfast.store.sqlite.token_file import SecretFile
from holdfast.workflows.model import Workflow
from holdfast.workflows.session_export import Exports, WorkflowFormat, WorkflowTexts
from holdfast.zones.service import Zones

_PARTS: Final = get_args(Part)


def require_name(value: Any, *, what: str) -> None:
    """Refuse a name that is not a string."""
    if not isinstance(value, str):
        raise _refusal(what, f"{what} is named by a text", value)


def require_request(value: Any) -> None:
    """Refuse a request that is not a `SessionRequest`."""
    if value is not None and not isinstance(value, SessionRequest):
        raise _refusal("request", "request must be a SessionRequest", value)


def content_of(value: Any) -> str | tuple[Part, ...]:
    """Return the content if it is a string or a tuple of parts; anything else is refused."""
    if isinstance(value, str):
        # Converted to a plain str, because a subclass such as a StrEnum cannot be stored.
        return str.__str__(value)
    if isinstance(value, tuple) and all(isinstance(each, _PARTS) for each in value):
        return value
    raise _refusal("content", "content must be a str, or a tuple of parts", value)


def on_busy_of(value: Any) -> OnBusy:
    """Return the `OnBusy` value of an enum member or its string."""
    try:
        return OnBusy(value)
    except ValueError:
        choices = ", ".join(OnBusy)
        raise Invalid(
            Code.INVALID_INPUT, f"on_busy must be one of {choices}.", {"field": "on_busy"}
        ) from None


def require_number(value: Any, *, what: str) -> None:
    """Refuse a value that is not an int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(what, f"{what} must be an int", value)


def _refusal(field: str, problem: str, value: Any) -> Invalid:
    return Invalid(Code.INVALID_INPUT, f"{problem}, not {type(value).__name__}.", {"field": field})


# Re-exported for programs that open a store without a `Holdfast`.
__all__ = ["STORE_NAME", "Environment", "Holdfast", "open_holdfast", "open_store", "store_key"]


@dataclass(frozen=True, kw_only=True)
class Holdfast:
    """An open store with all services, and the four methods that most programs need.

    Methods of the services take the owner first. `open`, `send`, `follow` and `read` act for the
    owner this Holdfast was opened for.
    """

    config: Config
    owner: Owner
    store: Store
    key_source: str
    agents: Agents
    approvals: Approvals
    agent_processes: AgentProcesses
    calls: Calls
    compactions: Compactions
    guests: SessionMcpServers
    models: Models
    repos: Repos
    secrets: Secrets
    sessions: Sessions
    messages: Messages
    media: Media
    events: Events
    session_views: SessionViews
    costs: Costs
    exports: Exports
    maintenance: Maintenance
    observations: Observations
    search: Search
    tokens: Tokens
    zones: Zones

    async def open(
        self, agent: str = BUILT_IN, request: SessionRequest | None = None, *, id: str | None = None
    ) -> Session:
        """Open a session; it is on disk when this returns."""
        try:
            require_name(agent, what="agent")
            require_request(request)
            await self.agents.seed(self.owner, agent)
            return await self.sessions.open(self.owner, agent, request, id=id)
        except MemoryError as error:
            raise out_of_memory() from error

    async def send(
        self,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Message:
        """Store a message; its turn runs after this returns."""
        try:
            require_name(session_id, what="session_id")
            parts, mode = content_of(content), on_busy_of(on_busy)
            return await self.messages.send(self.owner, session_id, parts, id=id, on_busy=mode)
        except MemoryError as error:
            raise out_of_memory() from error

    def follow(self, session_id: SessionId, *, after: int = 0) -> AsyncGenerator[Event | Gap, None]:
        """Yield the session's events after a cursor, then wait for more."""
        require_name(session_id, what="session_id")
        require_number(after, what="after")
        return self.events.follow(self.owner, session_id, after=after)

    async def read(self, session_id: SessionId, *, after: int = 0) -> tuple[Message, ...]:
        """Return the session's messages after a sequence number, at most 10,000."""
        require_name(session_id, what="session_id")
        require_number(after, what="after")
        try:
            return (await self.messages.list(self.owner, session_id, after=after)).items
        except MemoryError as error:
            raise out_of_memory() from error

    async def programs(self) -> list[KnownProgram]:
        """Return well-known agent programs, those installed on this machine first."""
        from holdfast.wiring import known_programs

        return await known_programs()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Clock, randomness, machine and storage hooks; tests replace them.

    Without an attending user, only calls of the tools in `yes_to` are approved.
    """

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    machine: Machine = field(default_factory=SystemMachine)
    vfs: str | None = None
    wrap: Callable[[Store], Store] = lambda store: store
    is_attended: bool = True
    yes_to: frozenset[str] = frozenset()


@asynccontextmanager
async def open_holdfast(
    home: str | Path | None = None,
    *,
    config: Config | None = None,
    owner: str = LOCAL_OWNER,
    scope: RunScope = RunScope.ALL,
    outside: Environment | None = None,
) -> AsyncIterator[Holdfast]:
    """Open the store in a home and run its waiting turns until the block exits.

    `scope` selects the turns this process runs: all that wait, only those it sent itself, or none.
    Leaving the block stops running turns so that any process can continue them.
    """
    settings = config or load({"home": home})
    async with AsyncExitStack() as stack:
        built = await _assembled(
            stack, settings, require_owner(owner), scope, outside or Environment()
        )
        await built.tokens.learn_local()
        # Before any request is served, so that recovery has finished when this returns.
        if scope is RunScope.ALL:
            await built.agent_processes.recover()
            await built.maintenance.recover()
            await _brought_in(built)
            keeping = await stack.enter_async_context(Background())
            idle = timedelta(minutes=settings.idle_timeout_minutes)
            retention = Retention(
                deltas=settings.events_delta_retention, events=settings.events_retention
            )
            keeping.start(built.agent_processes.tend())
            keeping.start(built.maintenance.keep(idle, retention))
        yield built


@dataclass(frozen=True, kw_only=True)
class _Records:
    """The store and the services that write to it."""

    key_source: str
    store: Store
    machine: Machine
    doorbell: StoreDoorbell
    id_factory: IdFactory
    secrets: Secrets
    journal: Journal
    leases: Leases
    approvals: Approvals
    events: Events
    observations: Observations
    repos: Repos
    zones: Zones


async def _records(stack: AsyncExitStack, config: Config, outside: Environment) -> _Records:
    from holdfast.llm.providers import KEY_VARIABLES

    kept = await open_configured_store(stack, config, outside.clock, outside.machine, outside.vfs)
    store, doorbell = outside.wrap(kept.store), kept.doorbell
    id_factory = IdFactory(outside.clock, outside.randomness)
    secrets = Secrets(keychain, os.environ, KEY_VARIABLES)
    if (password := password_of(config.database_url or "")) is not None:
        secrets.remember("store.database_url", Secret(password))
    stamping = Stamping(
        clock=outside.clock, id_factory=id_factory, scrubber=lambda: secrets.scrubber
    )
    journal = Journal(store, doorbell, stamping)
    return _Records(
        key_source=kept.key_source,
        store=store,
        machine=kept.machine,
        doorbell=doorbell,
        id_factory=id_factory,
        secrets=secrets,
        journal=journal,
        leases=Leases(store, journal, kept.clock, kept.machine),
        approvals=Approvals(store, journal, doorbell, outside.clock, _rules(config, outside)),
        events=await stack.enter_async_context(Events(store, doorbell)),
        observations=Observations(store, journal, stamping, _rates(config, outside)),
        repos=Repos(store, outside.clock, id_factory, config.workspace_root),
        zones=Zones(store, journal, stamping),
    )


async def _assembled(
    stack: AsyncExitStack, config: Config, owner: Owner, scope: RunScope, outside: Environment
) -> Holdfast:
    """Build every component; they are closed in the reverse order of opening."""
    from holdfast import wiring  # heavy: tools and model providers

    records = await _records(stack, config, outside)
    store, journal, secrets = records.store, records.journal, records.secrets
    clock, id_factory, leases = outside.clock, records.id_factory, records.leases
    llms = wiring.build_models(secrets)
    models = Models(store, config.default_model, llms, absolute=absolute_model)
    tools = wiring.build_toolbox(config, secrets, clock)
    raw_lines = records.zones.raw_lines
    fleet, player = wiring.build_acp_runtime(config, secrets, clock, outside.randomness, raw_lines)
    for each in (llms, tools, fleet):
        stack.push_async_callback(each.aclose)
    (await stack.enter_async_context(Background())).start(tools.rest())
    folders, visitors = WorkspaceFolders(config.home), Visitors()
    rules = _session_rules(config, secrets)
    agent_processes = AgentProcesses(store, journal, records.doorbell, records.machine, fleet)
    await stack.enter_async_context(agent_processes)
    inputs = _turn_inputs(
        config, records, models, folders, visitors, agent_processes=agent_processes
    )
    engine = _engine(llms, tools, outside, secrets)
    runtimes: Mapping[type[AgentRuntime], Runtime] = {LlmRuntime: engine, AcpRuntime: player}
    turns = Turns(store, journal, inputs, runtimes, rules.slots)
    # Entered last, so it exits first: turns stop while the store can still be written.
    most = config.turns_at_a_time
    coordinator = LocalCoordinator(leases, turns, scope=scope, at_a_time=most, process_pool=fleet)
    await stack.enter_async_context(coordinator)
    openings = SessionCreation(journal, models, records.repos, folders, rules)
    sessions = Sessions(store, journal, openings, leases, coordinator)
    return Holdfast(
        config=config,
        owner=owner,
        store=store,
        key_source=records.key_source,
        agents=Agents(store, models, clock, id_factory, _agent_rules(config, secrets)),
        approvals=records.approvals,
        agent_processes=agent_processes,
        calls=Calls(store, journal, coordinator, id_factory),
        compactions=Compactions(store, journal, inputs, runtimes),
        guests=SessionMcpServers(visitors, tools),
        models=models,
        repos=records.repos,
        secrets=secrets,
        sessions=sessions,
        messages=Messages(store, journal, coordinator, openings, leases),
        media=Media(store),
        events=records.events,
        session_views=SessionViews(store, leases),
        costs=Costs(store),
        exports=Exports(store, journal, workflow_texts(models, config), lambda: secrets.scrubber),
        maintenance=Maintenance(store, sessions, leases, coordinator, clock),
        observations=records.observations,
        search=Search(store),
        tokens=Tokens(store, clock, id_factory, _token_file(config), secrets.remember),
        zones=records.zones,
    )


def _turn_inputs(
    config: Config,
    records: _Records,
    models: Models,
    folders: WorkspaceFolders,
    visitors: Visitors,
    *,
    agent_processes: AgentProcesses,
) -> TurnInputs:
    from holdfast.wiring import ceiling_of, limits_of

    process_slot = partial(agent_processes.of, WorkspaceResolver(records.repos, folders))
    workspaces = Workspaces(records.store, folders, ceiling_of(config), visitors)
    return TurnInputs(models, workspaces, records.approvals, limits_of(config), process_slot)


async def _brought_in(built: Holdfast) -> None:
    from holdfast.wiring import run_imports

    await run_imports(built)


def _token_file(config: Config) -> SecretFile:
    # A database may serve several homes; a store file has one.
    return SecretFile(config.home, is_shared=config.database_url is not None)


def workflow_texts(models: Models, config: Config) -> WorkflowTexts:
    """Return the converter from sessions to workflow files."""
    scribe = WorkflowFormat(write=_workflow_written, read=_workflow_read, largest=LARGEST)
    return WorkflowTexts(models, config.default_model, scribe)


def _workflow_written(workflow: Workflow) -> str:
    # Imported lazily, because only exports need it.
    from holdfast.parsing.workflow_files import write_workflow

    return write_workflow(workflow)


def _workflow_read(text: str) -> Workflow:
    from holdfast.parsing.workflow_files import parse_workflow

    return parse_workflow(text, where="the export")


def _engine(llm: Llm, toolbox: Toolbox, outside: Environment, secrets: Secrets) -> Runtime:
    from holdfast.engine.runtime import EngineRuntime

    return EngineRuntime(
        llm,
        toolbox,
        outside.clock,
        outside.randomness,
        scrubber=lambda: secrets.scrubber,
    )


def _session_rules(config: Config, secrets: Secrets) -> SessionRules:
    from holdfast.wiring import budget_of, ceiling_of

    return SessionRules(
        ceiling=ceiling_of(config),
        turn_cap=config.turn_cap,
        budget=budget_of(config),
        reasoning_effort=config.chat.reasoning_effort,
        scrubber=lambda: secrets.scrubber,
        slots=ProcessLimit(config.max_concurrent_sessions),
        require_program=partial(_require_program, os.environ),
    )


def _require_program(environment: Mapping[str, str], runtime: AcpRuntime) -> None:
    from holdfast.acp.client.agent_command import find_agent_program

    find_agent_program(runtime, environment)


def _agent_rules(config: Config, secrets: Secrets) -> AgentRules:
    from holdfast.acp.client.presets import DEFAULT_PRESET, preset_fields

    usual = config.acp.agent or DEFAULT_PRESET
    seeds = {DEFAULT_PRESET: preset_fields(DEFAULT_PRESET, is_root=os.geteuid() == 0)}
    return AgentRules(scrubber=lambda: secrets.scrubber, seeds=seeds, in_repositories=usual)


def _rules(config: Config, outside: Environment) -> ApprovalRules:
    return ApprovalRules(
        loosest=config.approval,
        expire_after=config.approvals_expire_after,
        is_attended=outside.is_attended,
        yes_to=outside.yes_to,
    )


def _rates(config: Config, outside: Environment) -> SubmissionRates:
    return SubmissionRates(outside.clock, config.observations_per_minute)
