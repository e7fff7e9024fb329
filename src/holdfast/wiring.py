"""Builds models, tools and agent runtimes from the configuration, with their limits.

Part of `app`: it only turns settings into plain arguments.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.api import LocalHoldfast
from holdfast.children.model import ChildLimits
from holdfast.children.service import Children
from holdfast.config import Config, Credential
from holdfast.domain.agent_processes import KnownProgram
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.domain.ids import LOCAL_OWNER, Owner, SessionId, SessionKey
from holdfast.domain.models import model_of
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.sessions import Budget
from holdfast.domain.tools import Grant
from holdfast.execution.system import SystemClock, SystemRandomness
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.functions.calls import FunctionRunner
from holdfast.functions.registry import FunctionRegistry
from holdfast.importers.template_sessions import TemplatePromotion
from holdfast.ports.runtime import Coordinator, Limits
from holdfast.ports.store import Store
from holdfast.ports.system import Clock, Doorbell
from holdfast.services.calls import BoundResult, Calls, SettlementAction, SettlementRequest
from holdfast.services.journal import Journal
from holdfast.services.leases import Leases
from holdfast.services.media import SessionOutputStore
from holdfast.services.secrets import Secrets
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.workers.service import Workers

if TYPE_CHECKING:
    from holdfast.acp.client.agent_command import StartSettings
    from holdfast.acp.client.process_registry import ProcessRegistry
    from holdfast.acp.client.raw_log import RawLogWriter
    from holdfast.acp.client.runtime import AcpAgentRuntime
    from holdfast.execution.capabilities import Capabilities
    from holdfast.execution.coordinator import LocalCoordinator
    from holdfast.importers.block_zones import BlockReport
    from holdfast.integrations.calls import DurableCalls
    from holdfast.integrations.records import ForeignSessions
    from holdfast.llm.router import ModelRouter
    from holdfast.process.launcher import Launcher
    from holdfast.services.agents import Agents
    from holdfast.services.models import Models
    from holdfast.services.sessions import Sessions
    from holdfast.services.turn_inputs import TurnInputs
    from holdfast.services.turns import Turns
    from holdfast.tools.mcp.client import McpSettings
    from holdfast.tools.process_context import ProcessSettings
    from holdfast.tools.repository_files import LocalRepositoryFiles
    from holdfast.tools.toolbox import LocalToolbox

# Imported when a turn first needs them, because they take longer to import than a store to open.
TURN_MODULES: Final = (
    "holdfast.acp.client.launcher",
    "holdfast.acp.client.presets",
    "holdfast.acp.client.runtime",
    "holdfast.engine.runtime",
    "holdfast.llm.router",
    "holdfast.tools.files.tools",
    "holdfast.tools.git.tools",
    "holdfast.tools.mcp.tools",
    "holdfast.tools.repository_files",
    "holdfast.tools.run_command",
    "holdfast.tools.session_tools",
    "holdfast.tools.toolbox",
    "holdfast.tools.web.http_request",
)

# How long the unknown outcome of a call may take to be written, in attempts and seconds.
LATE_ATTEMPTS: Final = 50
LATE_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


def preload() -> None:
    """Import what turns need; a server does so at its start, and before it forks workers."""
    for name in TURN_MODULES:
        import_module(name)


async def run_imports(holdfast: LocalHoldfast) -> None:
    """Import the configured block zones, and move zones of templates to their own agents."""
    folder = holdfast.config.block_zones
    if folder is not None:
        try:
            await import_blocks(holdfast, folder)
        except HoldfastError as error:
            # Retried at the next start; a failed import must not block startup.
            log.error("block zones were not imported: %s", error.message)
    promotion = TemplatePromotion(holdfast.store, holdfast.zones.stamping)
    await promotion.promote(holdfast.config.home)


async def import_blocks(
    holdfast: LocalHoldfast, folder: Path, *, dry_run: bool = False
) -> "BlockReport":
    """Import the zones of blocks in a folder for the owner's agents."""
    from holdfast.importers.block_zones import BlockZones
    from holdfast.store.sqlite.block_files import BlockFolder

    with closing(BlockFolder(folder)) as source:
        stamping, owner = holdfast.zones.stamping, holdfast.owner
        importer = BlockZones(holdfast.store, stamping, owner, source, dry_run=dry_run)
        return await importer.migrate(holdfast.config.home)


async def blocks_left(store: Store, folder: Path) -> int:
    """Return how many blocks of a folder have a snapshot that is in no zone of the local owner."""
    from holdfast.importers.block_zones import BlockZones
    from holdfast.store.sqlite.block_files import BlockFolder

    clock = SystemClock()
    stamping = Stamping(clock=clock, id_factory=IdFactory(clock, SystemRandomness()))
    with closing(BlockFolder(folder)) as source:
        return await BlockZones(store, stamping, LOCAL_OWNER, source).count_missing()


def require_default_model(config: Config) -> None:
    """Refuse a default model of an unknown provider, with which every turn would fail."""
    from holdfast.llm.providers import provider_fault

    if (fault := provider_fault(model_of(config.default_model).provider)) is not None:
        key = "chat.default_model"
        raise Invalid(Code.CONFIG_INVALID, f"{key} (HOLDFAST_MODEL): {fault}", {"key": key})


def build_models(secrets: Secrets) -> "ModelRouter":
    """Return the router for all models, each with its key from the secrets."""
    from holdfast.llm.provider_models import ProviderModels
    from holdfast.llm.providers import base_urls
    from holdfast.llm.router import ModelRouter

    return ModelRouter(ProviderModels(secrets.key_of, base_urls(os.environ)))


def build_toolbox(
    config: Config,
    secrets: Secrets,
    clock: Clock,
    functions: FunctionRegistry | None = None,
    children: Children | None = None,
) -> "LocalToolbox":
    """Return the tools of this installation."""
    from holdfast.tools.files.tools import FileSettings, file_tools
    from holdfast.tools.function_tools import FunctionTools
    from holdfast.tools.git.tools import git_tools
    from holdfast.tools.mcp.tools import McpTools
    from holdfast.tools.run_command import command_tools
    from holdfast.tools.session_tools import checkpoint_tool, notify_tool, read_output_tool
    from holdfast.tools.toolbox import LocalToolbox
    from holdfast.tools.web.http_request import web_tools

    roots = tuple(map(str, config.chat.extra_roots))
    files = FileSettings(
        protected=(str(config.home),),
        extra_roots=roots,
        linked_dirs=config.chat.linked_dirs,
        user_home=os.environ.get("HOME"),
    )
    remote = _remote(config, secrets)
    web, processes, launcher = remote.web, remote.processes, remote.launcher
    own = (
        *file_tools(files),
        *command_tools(processes, launcher),
        *git_tools(processes, launcher),
        *web_tools(web),
        read_output_tool(),
        notify_tool(),
        checkpoint_tool(clock.now),
    )
    registered = FunctionTools(functions) if functions is not None else None
    scrubber = partial(getattr, secrets, "scrubber")
    return LocalToolbox(own, McpTools(remote), scrubber, registered, children)


def build_children(
    config: Config, store: Store, journal: Journal, doorbell: Doorbell, leases: Leases
) -> Children:
    """Return what opens the children of sessions."""
    return Children(
        store,
        journal,
        doorbell,
        leases=leases,
        folders=WorkspaceFolders(config.home),
        limits=ChildLimits(
            depth=config.child_depth,
            at_a_time=config.children_at_a_time,
            per_session=config.children_per_session,
        ),
    )


def _redact(secrets: Secrets, value: Any) -> Any:
    # By the newest scrubber: a secret may be registered at any time.
    return secrets.scrubber.redact_value(value)


class LoopParts(NamedTuple):
    """What loops of the user need from the other components."""

    records: Any
    turns: "Turns"
    inputs: "TurnInputs"
    coordinator: "LocalCoordinator"
    models: "Models"
    agents: "Agents"
    tools: Any
    clock: Clock


def build_loops(
    functions: FunctionRegistry, parts: LoopParts, capabilities: "Capabilities"
) -> tuple[Any, Any]:
    """Return the service of loops and their runtime."""
    from holdfast.loops.held_turns import HeldTurns
    from holdfast.loops.registry import LocalLoops, Loops
    from holdfast.loops.turn import LoopServices
    from holdfast.tools.child_agents import SpawnArguments, child_tool
    from holdfast.tools.function_tools import function_tool
    from holdfast.tools.toolbox import OwnFunction

    records = parts.records

    @cache
    def services() -> LoopServices:
        return LoopServices(
            toolbox=parts.tools.get_component(),
            alone=lambda tool: OwnFunction(
                function_tool(tool, functions.runner), lambda: records.secrets.scrubber
            ),
            spawner=OwnFunction(
                child_tool(records.children, (), SpawnArguments), lambda: records.secrets.scrubber
            ),
            find_model=parts.models.named,
            new_id=records.id_factory.new,
            now=parts.clock.now,
            redact=partial(_redact, records.secrets),
        )

    loops = Loops(functions.owner, services)
    held = HeldTurns(
        records.store,
        records.journal,
        leases=records.leases,
        doorbell=records.doorbell,
        turns=parts.turns,
        inputs=parts.inputs,
        coordinator=parts.coordinator,
        parts=services,
    )
    service = LocalLoops(
        functions.owner,
        held=held,
        loops=loops,
        agents=parts.agents,
        capabilities=capabilities,
        coordinator=parts.coordinator,
    )
    return service, loops


class ForeignParts(NamedTuple):
    """What the classes for agent frameworks are made of."""

    sessions: "ForeignSessions"
    calls: "DurableCalls"


def build_foreign(
    parts: LoopParts, sessions: "Sessions", loop: asyncio.AbstractEventLoop, owner: Owner
) -> ForeignParts:
    """Return the sessions that frameworks run, and their durable calls."""
    from holdfast.integrations.calls import DurableCalls
    from holdfast.integrations.records import ForeignSessions

    records = parts.records
    foreign = ForeignSessions(
        owner,
        records.store,
        records.journal,
        loop=loop,
        leases=records.leases,
        sessions=sessions,
        agents=parts.agents,
        models=parts.models,
    )
    return ForeignParts(foreign, DurableCalls(foreign, records.leases, parts.coordinator))


def build_functions(
    config: Config, owner: Owner, tools: Sequence[Callable[..., Any]]
) -> FunctionRegistry:
    """Return the functions that this process offers as tools."""
    return FunctionRegistry(owner, FunctionRunner(threads=config.tool_threads), tools)


def build_calls(records: Any, coordinator: Coordinator) -> Calls:
    """Return the service of tool calls."""
    return Calls(
        records.store,
        records.journal,
        coordinator,
        records.id_factory,
        lease_clock=records.lease_clock,
        bound_result=result_bounds(records.store, lambda: records.secrets.scrubber),
    )


def build_workers(parts: LoopParts) -> Workers:
    """Return the service of workers and of claims on calls."""
    records = parts.records
    return Workers(
        records.store,
        records.journal,
        parts.coordinator,
        records.doorbell,
        records.machine,
        agents=parts.agents,
        lease_clock=records.lease_clock,
    )


def result_bounds(store: Store, scrubber: Callable[[], Scrubber]) -> BoundResult:
    """Return the function that limits the results of clients as those of tools."""

    async def bound(result: Any, key: SessionKey) -> Any:
        from holdfast.engine.tool_results import limit_result

        return await limit_result(scrubber().redact_value(result), SessionOutputStore(store, key))

    return bound


async def settle_late(calls: Calls, owner: str, session_id: str, call_id: str, result: Any) -> None:
    """Settle the unknown call of a function that returned after its call had ended."""
    by_function = partial(SettlementRequest, how=SettlementAction.MARK_DONE, by="late")
    try:
        request = by_function(result=result)
    except Invalid:
        # Nothing, or too much for a settlement.
        request = by_function(result="The function has returned.")
    for _ in range(LATE_ATTEMPTS):
        try:
            await calls.settle(Owner(owner), SessionId(session_id), call_id, request)
        except Conflict as error:
            # Race: the unknown outcome of the call is not written yet.
            if error.details.get("state") != CallState.STARTED:
                return
            await asyncio.sleep(LATE_SECONDS)
        else:
            return


def _remote(config: Config, secrets: Secrets) -> "McpSettings":
    """Return how MCP servers are started and reached."""
    from holdfast.process.launcher import Launcher
    from holdfast.tools.mcp.client import McpSettings
    from holdfast.tools.web.connection import WebSettings

    web = WebSettings(
        credentials={each.host: partial(_of_host, secrets, each) for each in config.credentials}
    )
    return McpSettings(
        web=web,
        configured={each.name: each.declaration for each in config.mcp_servers},
        secret=partial(_of_server, secrets),
        launcher=Launcher(),
        processes=_processes(config),
    )


def build_process_registry(
    config: Config, secrets: Secrets, launcher: "Launcher | None" = None
) -> "StartSettings":
    """Return the settings for starting agent programs."""
    from holdfast.acp.client.agent_command import SandboxSettings, StartSettings
    from holdfast.process.launcher import Launcher

    processes = _processes(config)
    return StartSettings(
        environment=os.environ,
        secret=secrets.of_variable,
        wrap=config.acp.wrap,
        workspace_flag=config.acp.workspace_flag,
        scrubber=lambda: secrets.scrubber,
        sandbox=SandboxSettings(
            launcher=launcher or Launcher(),
            hidden=processes.hidden,
            open_names=processes.command_writes,
            bounds=processes.bounds,
            allows_unprotected=processes.allows_unprotected,
        ),
    )


def build_acp_runtime(
    config: Config,
    secrets: Secrets,
    id_factory: IdFactory,
    raw_log_writer: "RawLogWriter",
) -> "tuple[ProcessRegistry, AcpAgentRuntime]":
    """Return the registry of agent processes, empty at first, and the runtime that uses it.

    `raw_log_writer` writes the raw output of programs to the active zone, if enabled.
    """
    from holdfast.acp.client.launcher import AgentLauncher
    from holdfast.acp.client.process_registry import ProcessRegistry
    from holdfast.acp.client.runtime import AcpAgentRuntime
    from holdfast.acp.client.session_setup import AcpTimeouts
    from holdfast.process.launcher import Launcher
    from holdfast.tools.mcp.tools import PassthroughServers

    limits, processes = config.acp, Launcher()
    deadlines = AcpTimeouts(
        start=limits.start_timeout.total_seconds(),
        session=limits.session_timeout.total_seconds(),
        option=limits.option_timeout.total_seconds(),
        silence=limits.silence_timeout.total_seconds(),
        cancel=limits.cancel_timeout.total_seconds(),
        write=limits.write_timeout.total_seconds(),
    )
    registry = ProcessRegistry()
    launcher = AgentLauncher(
        registry,
        start_settings=build_process_registry(config, secrets, processes),
        mcp_servers=PassthroughServers(_remote(config, secrets)),
        deadlines=deadlines,
        line_limit=limits.line_limit,
        raw_log_writer=raw_log_writer if limits.raw_log else None,
    )
    files = _hosted_files(config, processes)
    return registry, AcpAgentRuntime(registry, launcher, files, id_factory.new)


def _hosted_files(config: Config, launcher: "Launcher") -> "LocalRepositoryFiles":
    from holdfast.tools.files.access import FileAccess
    from holdfast.tools.files.openat import probe_kernel
    from holdfast.tools.files.tools import FileSettings
    from holdfast.tools.git.status import GitStatus
    from holdfast.tools.repository_files import LocalRepositoryFiles

    settings = FileSettings(
        protected=(str(config.home),),
        linked_dirs=config.chat.linked_dirs,
        user_home=os.environ.get("HOME"),
    )
    status = GitStatus(_processes(config), launcher)
    return LocalRepositoryFiles(FileAccess(settings, probe_kernel()), status)


def _processes(config: Config) -> "ProcessSettings":
    """Return the sandbox and resource limits for tool processes."""
    from holdfast.process.sandbox import Bounds
    from holdfast.tools.process_context import ProcessSettings

    chat = config.chat
    return ProcessSettings(
        environment=os.environ,
        command_env=chat.command_env,
        extra_roots=tuple(map(str, chat.extra_roots)),
        hidden=(str(config.home),),
        command_writes=chat.command_writes,
        bounds=Bounds(
            processes=chat.command_processes,
            memory=chat.command_memory_mb << 20,
            cpu_seconds=chat.command_cpu_seconds,
        ),
        allows_unprotected=chat.allow_unprotected_commands,
    )


async def _of_host(secrets: Secrets, credential: Credential) -> Secret:
    return _require_secret(await secrets.of_host(credential.secret), credential.secret)


async def _of_server(secrets: Secrets, name: str) -> Secret:
    return _require_secret(await secrets.of_server(name), name)


def _require_secret(secret: Secret | None, name: str) -> Secret:
    if secret is None:
        raise Unavailable(
            Code.KEY_NOT_FOUND, f"The keychain holds no secret {name}; set it with `holdfast key`."
        )
    return secret


def ceiling_of(config: Config) -> Grant:
    """Return the widest grant that any session may have."""
    return Grant(
        fs=config.chat.fs_scope,
        commands=config.chat.allowed_commands,
        command_globs=config.chat.allowed_command_globs,
        domains=config.chat.allowed_domains,
    )


def limits_of(config: Config) -> Limits:
    """Return the limits of a turn."""
    return Limits(
        tool_rounds=config.max_tool_rounds,
        max_messages=config.chat.max_messages,
        compact_threshold=config.chat.compact_threshold if config.chat.auto_compact else None,
        allow_unpriced=config.chat.allow_unpriced,
        budget=budget_of(config),
    )


def budget_of(config: Config) -> Budget | None:
    """Return the default budget of a session; `None` means no limit."""
    most = config.chat.max_cost_microcents
    return Budget(microcents=most, on_exceed=config.chat.on_exceed) if most else None


async def known_programs() -> list[KnownProgram]:
    """Return well-known agent programs with their runtimes, installed ones first."""
    from holdfast.acp.client.presets import detect, preset_fields

    found = sorted(await detect(os.environ), key=lambda each: each.path is None)
    return [
        KnownProgram(
            preset=each.preset,
            title=each.title,
            path=each.path,
            version=each.version,
            install=each.install,
            runtime=preset_fields(each.preset, is_root=os.geteuid() == 0)["runtime"],
        )
        for each in found
    ]
