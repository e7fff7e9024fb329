"""Prepares an agent process for a prompt: starts it, initializes it, opens the session.

Retries a failed start. The spawn itself is in `agent_process.py`, the sandbox in
`agent_command.py`, the protocol steps in `session_setup.py`.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart, StartSettings, build_start
from holdfast.acp.client.agent_process import AGENT_LIMITS, AgentProcess
from holdfast.acp.client.agent_session import LITERAL_METHODS, AcpSession
from holdfast.acp.client.agent_state import AgentState, restore_state
from holdfast.acp.client.process_registry import AgentSlot, ProcessRegistry
from holdfast.acp.client.raw_log import RawLog, RawLogWriter
from holdfast.acp.client.session_setup import (
    AcpTimeouts,
    AgentNotReady,
    SessionSetup,
    SetupMethod,
    apply_options,
    initialize,
    open_session,
    server_notices,
    unsupported_servers,
)
from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.acp.rpc.redaction import LineRedactor
from holdfast.domain.agent_processes import (
    ALIVE,
    ProcessExit,
    ProcessState,
    ProgramOptions,
    parse_program_options,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.drafts import MessageDraft, notice_draft
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid, NotFound
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import NoticeCode
from holdfast.domain.turns import group_by_turn
from holdfast.ports.runtime import TurnInput
from holdfast.ports.tools import ClientMcpServer, ClientMcpServers, McpServerSource
from holdfast.process.child import ChildNotStarted

log = logging.getLogger(__name__)


def client_capabilities(turn: TurnInput) -> Mapping[str, Any]:
    """Return the client capabilities that are sent to the agent."""
    has_files = program_options(turn).fs
    return {
        "fs": {"readTextFile": has_files, "writeTextFile": has_files},
        "terminal": has_terminals(turn),
        "session": {"configOptions": {"boolean": {}}},
    }


def has_terminals(turn: TurnInput) -> bool:
    """Return whether the agent may run commands through us."""
    grant = turn.agent.grant
    may_run = grant is not None and bool(grant.commands or grant.command_globs)
    return may_run and program_options(turn).terminal


def acp_runtime_of(turn: TurnInput) -> AcpRuntime:
    """Return the ACP runtime of the agent; raises `AgentNotReady` for any other runtime."""
    runtime = turn.agent.runtime
    if not isinstance(runtime, AcpRuntime):
        raise AgentNotReady(unavailable_error("The agent does not run a program."))
    return runtime


def program_options(turn: TurnInput) -> ProgramOptions:
    """Return the program options of the agent."""
    return parse_program_options(acp_runtime_of(turn))


def unavailable_error(message: str) -> Failure:
    """Return the failure of a turn whose program is unavailable."""
    return Failure(code=FailureCode.AGENT_UNAVAILABLE, message=message)


def _start_error(failed: ChildNotStarted) -> AgentNotReady:
    message = f"The agent's program cannot be started: {start_problem(failed)}."
    return AgentNotReady(unavailable_error(message), can_pass=failed.can_pass)


def start_problem(failed: ChildNotStarted) -> str:
    """Describe why a program did not start, with the remedy if its sandbox is the cause."""
    if failed.stage not in _SANDBOX_STAGES:
        return failed.reason
    return (
        f"its sandbox cannot be set up ({failed.stage}: {failed.reason}); set its option confined "
        "to false to run it without one"
    )


# Steps of the start that set up the sandbox.
_SANDBOX_STAGES: Final = frozenset(
    {
        "confinement",
        "landlock",
        "mounts",
        "namespaces",
        "network",
        "privileges",
        "seccomp",
        "survey",
    }
)
# Delays in seconds before each new attempt after a transient start failure.
RETRY_DELAYS: Final = (1.0, 4.0)


class AgentLauncher:
    """Starts and prepares agent processes; no other class starts them."""

    def __init__(
        self,
        registry: ProcessRegistry,
        *,
        start_settings: StartSettings,
        mcp_servers: McpServerSource,
        deadlines: AcpTimeouts,
        line_limit: int,
        raw_log_writer: RawLogWriter | None,
    ) -> None:
        """`raw_log_writer` writes into the active zone of a session, if there is one."""
        self.deadlines = deadlines
        self._registry = registry
        self._start_settings = start_settings
        self._mcp_server_source = mcp_servers
        self._bounds = replace(AGENT_LIMITS, line=line_limit, write_seconds=deadlines.write)
        self._raw_log_writer = raw_log_writer

    async def prepare(self, slot: AgentSlot, turn: TurnInput) -> tuple[MessageDraft, ...]:
        """Make a process ready for the turn's prompt; return the notices for the transcript.

        Raises `AgentNotReady`, with the end of the process's stderr as evidence.
        """
        for seconds in (*RETRY_DELAYS, None):
            try:
                return await self._start(slot, turn)
            except AgentNotReady as failed:
                if not failed.can_pass or seconds is None:
                    raise
                log.info("the agent will be restarted in %g s: %s", seconds, failed)
                await asyncio.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    async def again(self, slot: AgentSlot, turn: TurnInput) -> tuple[MessageDraft, ...]:
        """Open a new session in a live process that has lost the old one."""
        agent_session = slot.present()
        agent_session.agent_session_id, agent_session.is_prompted = None, False
        servers = await self._mcp_servers(turn)
        try:
            await open_session(
                agent_session, self._setup(slot, turn, None, servers.companions), set()
            )
            options = program_options(turn)
            await apply_options(agent_session, options, within=self.deadlines.option)
        except ConnectionLost as lost:
            raise await _death_error(slot, lost) from None
        await slot.keep(ProcessState.READY)
        return _restart_notice("session/new")

    def _setup(
        self,
        slot: AgentSlot,
        turn: TurnInput,
        known: str | None,
        mcp_servers: tuple[ClientMcpServer, ...],
    ) -> SessionSetup:
        return SessionSetup(
            folder=slot.folder,
            known=known,
            is_answered=any(each.is_answered for each in group_by_turn(turn.history)),
            auth_method=program_options(turn).auth_method,
            command=acp_runtime_of(turn).command,
            mcp_servers=mcp_servers,
            deadlines=self.deadlines,
        )

    async def _start(self, slot: AgentSlot, turn: TurnInput) -> tuple[MessageDraft, ...]:
        known = await slot.process_slot.known()
        if known.state in ALIVE:
            # Left by a previous holder of the lease: a session has only one process.
            await self._registry.reap(known, slot.process_slot.session)
        servers = await self._mcp_servers(turn)
        slot.start = await self._build_start(slot, turn, servers)
        is_new = known.agent_session is None
        agent_state = AgentState() if is_new else restore_state(known.about)
        slot.title = agent_state.title
        setup = self._setup(slot, turn, known.agent_session, servers.companions)
        method = await self._open_session(slot, turn, setup, agent_state)
        try:
            options, within = program_options(turn), self.deadlines.option
            refused = await apply_options(slot.present(), options, within=within)
            left = unsupported_servers(slot.present(), servers.companions)
            notices = (*server_notices((*servers.troubles, *left), turn.history), *refused)
        except ConnectionLost:
            raise await _death_error(slot) from None
        except BaseException:
            await slot.stop(None)
            raise
        await slot.keep(ProcessState.READY)
        return (*(() if is_new else _restart_notice(method)), *notices)

    async def _mcp_servers(self, turn: TurnInput) -> ClientMcpServers:
        """Return the MCP servers to pass on; read at each start, because consent may change."""
        return (
            await self._mcp_server_source.of(turn.workspace)
            if turn.workspace
            else ClientMcpServers()
        )

    async def _build_start(
        self, slot: AgentSlot, turn: TurnInput, servers: ClientMcpServers
    ) -> AgentStart:
        try:
            return await build_start(
                self._start_settings,
                acp_runtime_of(turn),
                await slot.process_slot.folder(),
                slot.process_slot.session,
                scratch=await slot.process_slot.scratch(),
                servers=servers.companions,
            )
        except (Denied, Invalid, NotFound) as error:
            raise AgentNotReady(unavailable_error(error.message)) from None
        except HoldfastError as error:
            if error.code is not Code.AGENT_UNAVAILABLE:
                raise
            raise AgentNotReady(unavailable_error(error.message)) from None

    async def _open_session(
        self, slot: AgentSlot, turn: TurnInput, setup: SessionSetup, agent_state: AgentState
    ) -> SetupMethod:
        tried: set[SetupMethod] = set()
        while True:
            try:
                agent_session = await self._spawn(slot, turn, agent_state)
                await initialize(agent_session, client_capabilities(turn), setup)
                return await open_session(agent_session, setup, tried)
            except ConnectionLost as lost:
                died = await _death_error(slot, lost)
                # The process died of this setup method; a new one may survive the next method.
                if not tried or "session/new" in tried:
                    raise died from None
            except AgentNotReady as failed:
                failed.evidence = failed.evidence or await _end_process(slot)
                raise
            except BaseException:
                await slot.stop(None)
                raise

    async def _spawn(self, slot: AgentSlot, turn: TurnInput, agent_state: AgentState) -> AcpSession:
        """Start the process of the slot; `agent_state` is the last known."""
        if slot.start is None:
            raise AgentNotReady(unavailable_error("The agent has no command to start."))
        writer = self._raw_log_writer
        raw = RawLog(writer, slot.process_slot.key) if writer is not None else None
        try:
            program = await AgentProcess.spawn(
                slot.start,
                bounds=self._bounds,
                on_line=raw.add if raw is not None else None,
                redactor=LineRedactor(self._start_settings.scrubber, LITERAL_METHODS),
            )
        except BaseException as failed:
            if raw is not None:
                await raw.aclose()
            if not isinstance(failed, ChildNotStarted):
                raise
            raise _start_error(failed) from None
        agent_session = slot.agent_session = AcpSession(program, agent_state, raw)
        fields = {
            "session_id": slot.process_slot.session,
            "agent": turn.agent.slug,
            "cwd": slot.folder,
            "pid": program.birth.pid,
            "argv0": slot.start.argv[0],
            "sandbox": slot.start.sandbox.description,
        }
        log.info("agent.spawned", extra={"fields": fields})
        # Recorded before the first message, so that it is reaped if we crash now.
        await slot.keep(ProcessState.STARTING)
        return agent_session


async def _death_error(slot: AgentSlot, lost: ConnectionLost | None = None) -> AgentNotReady:
    """Return the error for a process that was lost before its first prompt."""
    program = slot.present().agent_process
    end = await slot.drop_process()
    tail = program.stderr_tail
    if lost is not None and lost.reason == "noise":
        message = "The program does not use the Agent Client Protocol; it may not be an agent."
        failure = Failure(code=FailureCode.AGENT_PROTOCOL, message=message)
    else:
        code = FailureCode.AGENT_STUCK if end.reason == "stuck" else FailureCode.AGENT_DIED
        message = f"The agent's program exited before it was ready ({describe_exit(end)})."
        failure = Failure(code=code, message=message)
    can_pass = end.signal is not None and end.reason == "exited"
    died = AgentNotReady(failure, can_pass=can_pass)
    died.evidence = tail
    return died


async def _end_process(slot: AgentSlot) -> str:
    """End the process of the slot, if any, and return the end of its stderr."""
    found = slot.agent_session
    if found is None:
        return ""
    await slot.stop(None)
    return found.agent_process.stderr_tail


def describe_exit(end: ProcessExit) -> str:
    """Describe how a process ended."""
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"exit code {end.code}" if end.code is not None else end.reason or "unknown"


def _restart_notice(method: SetupMethod) -> tuple[MessageDraft, ...]:
    if method == "session/resume":
        return ()
    text = {
        "session/load": "The agent was restarted and has loaded the conversation.",
        "session/new": "The agent was restarted and had lost the conversation; it was given the "
        "transcript.",
    }[method]
    return (notice_draft(NoticeCode.AGENT_RESTARTED, text),)
