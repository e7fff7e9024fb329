"""Wiring: builds a `LocalHoldfast` from a `Config`; the only module in which all packages meet."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast import keychain, wiring
from holdfast.acp.client.presets import DEFAULT_PRESET, preset_fields
from holdfast.api import LocalHoldfast
from holdfast.children.service import Children
from holdfast.config import Config, absolute_model, load
from holdfast.domain.agent_processes import ProcessEnding, ProcessRecord
from holdfast.domain.agents import AcpRuntime, LlmRuntime, LoopRuntime
from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.drafts import Draft
from holdfast.domain.ids import LOCAL_OWNER, SessionId, SessionKey, require_owner
from holdfast.domain.secrets import Secret
from holdfast.execution.capabilities import Capabilities
from holdfast.execution.coordinator import LocalCoordinator, RunScope
from holdfast.execution.system import SystemClock, SystemMachine, SystemRandomness
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.functions.registry import FunctionRegistry
from holdfast.llm.providers import KEY_VARIABLES
from holdfast.observations.service import Observations, SubmissionRates
from holdfast.open_store import STORE_NAME, open_configured_store, open_store, store_key
from holdfast.own_loops import register_runtimes
from holdfast.parsing.yaml import WRITTEN_LARGEST
from holdfast.ports.llm import Llm
from holdfast.ports.runtime import Emit, Runtime, TurnEnd, TurnInput
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
from holdfast.services.agents import AgentRules, Agents
from holdfast.services.approvals import Approvals, ApprovalSettings
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
from holdfast.services.turn_inputs import TurnInputs, Visitors, Workspaces
from holdfast.services.turns import Compactions, Turns
from holdfast.store.database_url import password_of
from holdfast.store.sqlite.change_watch import StoreDoorbell
from holdfast.store.sqlite.token_file import SecretFile
from holdfast.workers.service import Workers
from holdfast.workflows.model import Workflow
from holdfast.workflows.session_export import Exports, WorkflowFormat, WorkflowTexts
from holdfast.zones.service import Zones

# Re-exported for programs that open a store without a `LocalHoldfast`.
__all__ = ["STORE_NAME", "Environment", "LocalHoldfast", "open_holdfast", "open_store", "store_key"]


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
    tools: Sequence[Callable[..., Any]] = (),
    runtimes: Sequence[Callable[..., Any]] = (),
) -> AsyncIterator[LocalHoldfast]:
    """Open the store in a home and run its waiting turns until the block exits.

    `scope` selects the turns this process runs: all that wait, only those it sent itself, or none.
    `tools` are functions that agents of the owner may name, `runtimes` those that `runtime` has
    marked as the loops of agents.
    Leaving the block stops running turns so that any process can continue them.
    """
    settings = config or load({"home": home})
    wiring.require_default_model(settings)
    async with AsyncExitStack() as stack:
        functions = wiring.build_functions(settings, require_owner(owner), tools)
        stack.callback(functions.close)
        built = await _assemble(stack, settings, functions, scope, outside or Environment())
        await built.tokens.learn_local()
        await register_runtimes(built, runtimes)
        # Before any request is served, so that recovery has finished when this returns.
        if scope is RunScope.ALL:
            await built.agent_processes.recover()
            await built.maintenance.recover()
            await wiring.run_imports(built)
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
    lease_clock: Clock
    id_factory: IdFactory
    secrets: Secrets
    journal: Journal
    children: Children
    leases: Leases
    approvals: Approvals
    events: Events
    observations: Observations
    repos: Repos
    zones: Zones


async def _records(stack: AsyncExitStack, config: Config, outside: Environment) -> _Records:
    kept = await open_configured_store(stack, config, outside.clock, outside.machine, outside.vfs)
    store, doorbell = outside.wrap(kept.store), kept.doorbell
    id_factory = IdFactory(outside.clock, outside.randomness)
    secrets = Secrets(keychain, os.environ, KEY_VARIABLES)
    if (password := password_of(config.database_url or "")) is not None:
        secrets.remember("store.database_url", Secret(password))
    # Not a function of Python, because every row that is written asks for it.
    scrubber = partial(getattr, secrets, "scrubber")
    stamping = Stamping(clock=outside.clock, id_factory=id_factory, scrubber=scrubber)
    journal = Journal(store, doorbell, stamping)
    leases = Leases(store, journal, kept.clock, kept.machine)
    return _Records(
        key_source=kept.key_source,
        store=store,
        machine=kept.machine,
        doorbell=doorbell,
        lease_clock=kept.clock,
        id_factory=id_factory,
        secrets=secrets,
        journal=journal,
        children=wiring.build_children(config, store, journal, doorbell, leases),
        leases=leases,
        approvals=Approvals(
            store,
            journal,
            doorbell,
            outside.clock,
            _rules(config, outside),
            lease_clock=kept.clock,
        ),
        events=await stack.enter_async_context(Events(store, doorbell)),
        observations=Observations(store, journal, stamping, _rates(config, outside)),
        repos=Repos(store, outside.clock, id_factory, config.workspace_root),
        zones=Zones(store, journal, stamping),
    )


async def _assemble(
    stack: AsyncExitStack,
    config: Config,
    functions: FunctionRegistry,
    scope: RunScope,
    outside: Environment,
) -> LocalHoldfast:
    """Build every component; they are closed in the reverse order of opening."""
    records = await _records(stack, config, outside)
    store, journal, secrets = records.store, records.journal, records.secrets
    clock, id_factory, leases = outside.clock, records.id_factory, records.leases
    run = await _run_parts(stack, config, records, functions, outside)
    models, tools, pool, runtimes = run.models, run.tools, run.process_pool, run.runtimes
    most, folders, visitors = config.turns_at_a_time, WorkspaceFolders(config.home), Visitors()
    rules = _session_rules(config, secrets, functions)
    processes = AgentProcesses(store, journal, records.doorbell, records.machine, pool)
    await stack.enter_async_context(processes)
    inputs = _turn_inputs(config, records, models, folders, visitors, agent_processes=processes)
    turns = Turns(store, journal, inputs, runtimes, rules.slots, missing=functions.missing)
    # Entered last, so it exits first: turns stop while the store can still be written.
    coordinator = LocalCoordinator(leases, turns, scope=scope, at_a_time=most, process_pool=pool)
    await stack.enter_async_context(coordinator)
    creation = SessionCreation(journal, models, records.repos, folders, rules)
    agents = Agents(store, models, clock, id_factory, _agent_rules(config, secrets))
    sessions = Sessions(store, journal, creation, leases, coordinator, agents=agents)
    parts = wiring.LoopParts(records, turns, inputs, coordinator, models, agents, tools, clock)
    calls, workers, foreign = _connect_functions(functions, run.loops, parts, sessions)
    return LocalHoldfast(
        config=config,
        owner=functions.owner,
        store=store,
        key_source=records.key_source,
        agents=agents,
        approvals=records.approvals,
        agent_processes=processes,
        calls=calls,
        children=records.children,
        compactions=Compactions(store, journal, inputs, runtimes),
        mcp_servers=SessionMcpServers(visitors, tools),
        models=models,
        repos=records.repos,
        secrets=secrets,
        sessions=sessions,
        messages=Messages(store, journal, coordinator, creation, leases, models=models),
        media=Media(store),
        events=records.events,
        session_views=SessionViews(store, leases),
        costs=Costs(store),
        exports=Exports(store, journal, workflow_texts(models, config), lambda: secrets.scrubber),
        maintenance=Maintenance(store, sessions, leases, coordinator, clock, events=records.events),
        observations=records.observations,
        search=Search(store),
        tokens=Tokens(store, clock, id_factory, _token_file(config), secrets.remember),
        tools=functions,
        workers=workers,
        zones=records.zones,
        loops=run.loops,
        foreign=foreign,
        programs=wiring.known_programs,
    )


def _connect_functions(
    functions: FunctionRegistry,
    loops: "_DeferredLoops",
    parts: wiring.LoopParts,
    sessions: Sessions,
) -> tuple[Calls, Workers, "_Deferred"]:
    """Connect the functions of the program, as tools and as loops, with what they write to.

    Return the calls, those who run them for others, and the sessions that frameworks run.
    """
    records = parts.records
    calls = wiring.build_calls(records, parts.coordinator)
    workers = wiring.build_workers(parts)
    records.approvals.attach(parts.coordinator)
    records.children.connect(sessions, parts.coordinator)
    capabilities = Capabilities(
        records.store,
        records.journal,
        parts.coordinator,
        records.lease_clock,
        owner=functions.owner,
        missing=functions.missing,
        announce=partial(workers.announce, functions.owner),
        withdraw=partial(workers.withdraw, functions.owner),
    )
    functions.connect(
        sessions.add_functions,
        partial(wiring.settle_late, calls),
        capabilities.add,
        capabilities.continue_session,
    )
    loops.connect(partial(wiring.build_loops, functions, parts, capabilities))
    loop = asyncio.get_running_loop()
    foreign = _Deferred(partial(wiring.build_foreign, parts, sessions, loop, functions.owner))
    return calls, workers, foreign


@dataclass(frozen=True, kw_only=True)
class _RunParts:
    """What turns run with; built when the first turn needs it."""

    models: Models
    tools: Any
    loops: "_DeferredLoops"
    process_pool: "_DeferredPool"
    runtimes: Mapping[type[AgentRuntime], Runtime]


async def _run_parts(
    stack: AsyncExitStack,
    config: Config,
    records: _Records,
    functions: FunctionRegistry,
    outside: Environment,
) -> _RunParts:
    secrets, raw_lines = records.secrets, records.zones.raw_lines
    clock = outside.clock
    llms = _Deferred(partial(wiring.build_models, secrets))
    make_tools = partial(wiring.build_toolbox, config, secrets, clock, functions, records.children)
    programs = _Deferred(
        partial(wiring.build_acp_runtime, config, secrets, records.id_factory, raw_lines)
    )
    pool = _DeferredPool(programs)
    stack.push_async_callback(llms.aclose)
    keeping = Background()

    def build_tools() -> Any:
        tools = make_tools()
        keeping.start(tools.close_idle_forever())
        return tools

    tools = _Deferred(build_tools)
    stack.push_async_callback(tools.aclose)
    stack.push_async_callback(pool.aclose)
    await stack.enter_async_context(keeping)
    engine = _Deferred(
        lambda: _engine(llms.get_component(), tools.get_component(), outside, secrets)
    )
    player = _Deferred(lambda: programs.get_component()[1])
    loops = _DeferredLoops()
    return _RunParts(
        models=Models(records.store, config.default_model, llms, absolute=absolute_model),
        tools=tools,
        loops=loops,
        process_pool=pool,
        runtimes={
            LlmRuntime: cast("Runtime", engine),
            AcpRuntime: cast("Runtime", player),
            LoopRuntime: loops,
        },
    )


class _Deferred:
    """A component that is built at its first use, because importing its packages takes long.

    Opening a store to read it needs no model, tool or agent program.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._built: Any = None
        # Models are looked up in a thread of the store as well.
        self._lock = threading.Lock()

    def get_component(self) -> Any:
        """Return the component; builds it if necessary."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    @property
    def is_built(self) -> bool:
        return self._built is not None

    async def aclose(self) -> None:
        """Close the component, if it was built."""
        if self._built is not None:
            await self._built.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._built or self.get_component(), name)


class _DeferredLoops:
    """The loops of this process; imported when the first one is registered or a turn needs one."""

    writes_first = False

    def __init__(self) -> None:
        self._build: Callable[[], tuple[Any, Any]] | None = None
        self._built: tuple[Any, Any] | None = None

    def connect(self, build: Callable[[], tuple[Any, Any]]) -> None:
        """Set what builds the service and the runtime."""
        self._build = build

    def _parts(self) -> tuple[Any, Any]:
        if self._built is None:
            assert self._build is not None  # noqa: S101 — connected while everything is built
            self._built = self._build()
        return self._built

    def hold(self, *arguments: Any, **options: Any) -> Any:
        return self._parts()[0].hold(*arguments, **options)

    def register(self, function: Callable[..., Any], **options: Any) -> None:
        self._parts()[0].register(function, **options)

    async def ready(self) -> None:
        if self._built is not None:
            await self._built[0].ready()

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        return cast("TurnEnd", await self._parts()[1].run(turn, emit))

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        return cast("Sequence[Draft]", await self._parts()[1].compact(turn))


class _DeferredPool:
    """The agent processes of this process; there are none before the first start."""

    def __init__(self, programs: _Deferred) -> None:
        self._programs = programs

    def held(self) -> frozenset[SessionKey]:
        return self._programs.get_component()[0].held() if self._programs.is_built else frozenset()

    async def end(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        if self._programs.is_built:
            await self._programs.get_component()[0].end(key, why)

    async def reap(self, process_record: ProcessRecord, session: SessionId) -> None:
        await self._programs.get_component()[0].reap(process_record, session)

    async def aclose(self) -> None:
        if self._programs.is_built:
            await self._programs.get_component()[0].aclose()


def _turn_inputs(
    config: Config,
    records: _Records,
    models: Models,
    folders: WorkspaceFolders,
    visitors: Visitors,
    *,
    agent_processes: AgentProcesses,
) -> TurnInputs:
    process_slot = partial(agent_processes.of, WorkspaceResolver(records.repos, folders))
    workspaces = Workspaces(records.store, folders, wiring.ceiling_of(config), visitors)
    return TurnInputs(
        models,
        workspaces,
        records.approvals,
        wiring.limits_of(config),
        journal=records.journal,
        process_slot=process_slot,
    )


def _token_file(config: Config) -> SecretFile:
    # A database may serve several homes; a store file has one.
    return SecretFile(config.home, is_shared=config.database_url is not None)


def workflow_texts(models: Models, config: Config) -> WorkflowTexts:
    """Return the converter from sessions to workflow files."""
    workflow_format = WorkflowFormat(
        write=_workflow_written, read=_workflow_read, largest=WRITTEN_LARGEST
    )
    return WorkflowTexts(models, config.default_model, workflow_format)


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
        scrubber=partial(getattr, secrets, "scrubber"),
    )


def _session_rules(config: Config, secrets: Secrets, functions: FunctionRegistry) -> SessionRules:
    return SessionRules(
        ceiling=wiring.ceiling_of(config),
        turn_cap=config.turn_cap,
        budget=wiring.budget_of(config),
        reasoning_effort=config.chat.reasoning_effort,
        scrubber=lambda: secrets.scrubber,
        slots=ProcessLimit(config.max_concurrent_sessions),
        require_program=partial(_require_program, os.environ),
        functions=functions.names,
    )


def _require_program(environment: Mapping[str, str], runtime: AcpRuntime) -> None:
    from holdfast.acp.client.agent_command import find_agent_program

    find_agent_program(runtime, environment)


def _agent_rules(config: Config, secrets: Secrets) -> AgentRules:
    usual = config.acp.agent or DEFAULT_PRESET
    seeds = {DEFAULT_PRESET: preset_fields(DEFAULT_PRESET, is_root=os.geteuid() == 0)}
    return AgentRules(scrubber=lambda: secrets.scrubber, seeds=seeds, in_repositories=usual)


def _rules(config: Config, outside: Environment) -> ApprovalSettings:
    return ApprovalSettings(
        loosest=config.approval,
        expire_after=config.approvals_expire_after,
        pause_after=config.approvals_pause_after,
        is_attended=outside.is_attended,
        yes_to=outside.yes_to,
    )


def _rates(config: Config, outside: Environment) -> SubmissionRates:
    return SubmissionRates(outside.clock, config.observations_per_minute)
