"""Probes an agent without a turn: its identity, whether it opens a session, its stored sessions."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.agent_command import StartSettings, build_start
from holdfast.acp.client.agent_process import AgentProcess
from holdfast.acp.client.agent_session import AcpSession
from holdfast.acp.client.agent_state import AgentState
from holdfast.acp.client.launcher import start_problem
from holdfast.acp.client.lenient_json import read_list, read_name, read_object, read_text
from holdfast.acp.client.prompt import is_offered
from holdfast.acp.client.session_setup import AgentNotReady, SessionSetup, initialize, open_session
from holdfast.acp.client.stop_reasons import refusal_text
from holdfast.acp.rpc.framing import ConnectionLost, RequestRefused
from holdfast.acp.rpc.redaction import LineRedactor
from holdfast.domain.agent_processes import parse_program_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.process.child import ChildNotStarted

# Used in place of a session id, so that the process does not carry a real session's mark.
_PROBE_SESSION: Final = "check"
_LIST_SECONDS: Final = 30.0
_SHOWN: Final = 300
PAGES_MOST: Final = 100


class AgentIntroduction(Struct, frozen=True, kw_only=True):
    """The identity and capabilities of an agent; `modes` are known after a deep probe."""

    name: str | None
    version: str | None
    protocol: int
    can: tuple[str, ...]
    sign_in: tuple[str, ...]
    modes: tuple[str, ...] | None = None


class StoredAgentSession(Struct, frozen=True, kw_only=True):
    """A session that an agent stores itself."""

    id: str
    title: str | None
    folder: str | None
    updated_at: str | None


async def probe_agent(
    start_settings: StartSettings, runtime: AcpRuntime, *, is_deep: bool = False
) -> AgentIntroduction:
    """Start an agent, read its identity, and end it; `is_deep` also opens an empty session."""
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        async with _connect(start_settings, runtime, folder) as agent_session:
            found = _introduction(agent_session)
            if not is_deep:
                return found
            method = parse_program_options(runtime).auth_method
            setup = SessionSetup(folder=folder, auth_method=method, command=runtime.command)
            await open_session(agent_session, setup, set())
            return replace(found, modes=_modes(agent_session.agent_state))


async def list_agent_sessions(
    start_settings: StartSettings, runtime: AcpRuntime, folder: str, *, is_everywhere: bool = False
) -> list[StoredAgentSession]:
    """Return the sessions that an agent stores, of one folder or all."""
    async with _connect(start_settings, runtime, folder) as agent_session:
        if not agent_session.can("sessionCapabilities", "list"):
            raise Unavailable(
                Code.AGENT_UNAVAILABLE, "The agent does not support listing its sessions."
            )
        folder_filter = {} if is_everywhere else {"cwd": folder}
        found: list[StoredAgentSession] = []
        cursor: str | None = None
        for _ in range(PAGES_MOST):
            params = folder_filter | ({"cursor": cursor} if cursor else {})
            page = read_object(
                await agent_session.ask("session/list", params, within=_LIST_SECONDS)
            )
            found += filter(None, map(_stored_session, read_list(page.get("sessions"))))
            cursor = read_text(page.get("nextCursor"))
            if not cursor:
                break
        return found


@asynccontextmanager
async def _connect(
    start_settings: StartSettings, runtime: AcpRuntime, folder: str
) -> AsyncIterator[AcpSession]:
    """Start and initialize an agent; the process is ended when the block exits."""
    try:
        start = await build_start(start_settings, runtime, folder, _PROBE_SESSION)
        program = await AgentProcess.spawn(start, redactor=LineRedactor(start_settings.scrubber))
    except ChildNotStarted as error:
        raise Unavailable(
            Code.AGENT_UNAVAILABLE,
            f"The agent's program {runtime.command} cannot be started: {start_problem(error)}.",
        ) from None
    try:
        agent_session = AcpSession(program, AgentState())
        await initialize(agent_session, {}, SessionSetup(folder=folder))
        yield agent_session
    except (AgentNotReady, ConnectionLost, RequestRefused, TimeoutError) as error:
        # Ended first, because some agents write to stderr only when they exit.
        await program.end()
        raise _unavailable(error, program.stderr_tail) from None
    finally:
        await program.end()


def _unavailable(error: Exception, stderr: str) -> Unavailable:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = f" Its last output: {lines[-1][:_SHOWN]}" if lines else ""
    return Unavailable(
        Code.AGENT_UNAVAILABLE,
        f"{_describe_error(error)}{last}",
        {"stderr": stderr} if lines else {},
    )


def _describe_error(error: Exception) -> str:
    match error:
        case AgentNotReady():
            return error.failure.message
        case RequestRefused():
            return f"The agent rejected the request ({refusal_text(error.error)})."
        case ConnectionLost():
            return "The agent's program exited before it answered."
        case _:
            return "The agent's program did not answer in time."


def _introduction(agent_session: AcpSession) -> AgentIntroduction:
    said = agent_session.introduction
    agent = read_object(said.get("agentInfo"))
    methods = [read_name(each.get("id")) for each in agent_session.auth_methods]
    return AgentIntroduction(
        name=read_name(agent.get("title")) or read_name(agent.get("name")),
        version=read_name(agent.get("version")),
        protocol=int(said["protocolVersion"]),
        can=tuple(_list_capabilities(read_object(said.get("agentCapabilities")))),
        sign_in=tuple(each for each in methods if each is not None),
    )


def _list_capabilities(capabilities: Mapping[str, Any]) -> list[str]:
    """Return the paths of offered capabilities: `loadSession`, `promptCapabilities.image`."""
    found: list[str] = []
    for key, value in sorted(capabilities.items()):
        # Names with an underscore are extensions without a meaning for us.
        if key.startswith("_"):
            continue
        inner = [
            each for each in sorted(read_object(value)) if is_offered(read_object(value)[each])
        ]
        found += [f"{key}.{each}" for each in inner if not each.startswith("_")]
        if not read_object(value) and is_offered(value):
            found.append(key)
    return found


def _modes(agent_state: AgentState) -> tuple[str, ...]:
    """Return the available modes, from the config options and the older mode list."""
    chosen = [
        read_object(each)
        for each in agent_state.options
        if read_object(each).get("category") == "mode"
    ]
    offered = [read_name(read_object(mode).get("id")) for mode in agent_state.modes]
    offered += [
        read_name(read_object(each).get("value"))
        for way in chosen
        for each in read_list(way.get("options"))
    ]
    return tuple(dict.fromkeys(each for each in offered if each))


def _stored_session(session: object) -> StoredAgentSession | None:
    found = read_object(session)
    id_ = read_name(found.get("sessionId"))
    if id_ is None:
        return None
    return StoredAgentSession(
        id=id_,
        title=read_name(found.get("title")),
        folder=read_name(found.get("cwd")),
        updated_at=read_name(found.get("updatedAt")),
    )
