"""ACP's session setup: `initialize`, `authenticate`, then `session/resume`, `load` or `new`.

Also decides which MCP servers are passed on, and applies the agent's options.

"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.acp.client.agent_session import AcpSession
from holdfast.acp.client.agent_state import parse_initialize, state_after_setup
from holdfast.acp.client.lenient_json import read_name, read_object, read_word
from holdfast.acp.client.stop_reasons import refusal_text
from holdfast.acp.rpc.framing import AUTH_REQUIRED, JsonRpcError, RequestRefused
from holdfast.domain.agent_processes import ProgramOptions
from holdfast.domain.drafts import MessageDraft, notice_draft
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import Message, Notice, NoticeCode
from holdfast.ports.tools import ClientMcpServer


def unsupported_servers(
    agent_session: AcpSession, servers: Sequence[ClientMcpServer]
) -> Iterator[str]:
    """Yield a message for each server that the agent does not support."""
    for each in servers:
        if not _is_supported(agent_session, each):
            yield (
                f"The agent does not get the MCP server {each.name}: its program does not "
                f"support {each.transport}."
            )


def server_notices(
    missing_texts: Sequence[str], history: Sequence[Message]
) -> tuple[MessageDraft, ...]:
    """Return the messages as notices, without those that the history already holds."""
    earlier = {part.text for row in history for part in row.parts if isinstance(part, Notice)}
    return tuple(
        notice_draft(NoticeCode.MCP_UNAVAILABLE, missing_text)
        for missing_text in dict.fromkeys(missing_texts)
        if missing_text not in earlier
    )


def _is_supported(agent_session: AcpSession, companion: ClientMcpServer) -> bool:
    # The protocol requires every agent to support stdio servers.
    is_program = companion.transport == "stdio"
    return is_program or agent_session.can("mcpCapabilities", companion.transport)


def _server_entry(companion: ClientMcpServer) -> dict[str, Any]:
    """Return a server in the form of the protocol, with its secrets in clear."""
    values = [{"name": name, "value": each.reveal()} for name, each in companion.values.items()]
    if companion.transport == "stdio":
        return {
            "name": companion.name,
            "command": companion.command,
            "args": list(companion.args),
            "env": values,
        }
    return {
        "type": companion.transport,
        "name": companion.name,
        "url": companion.url,
        "headers": values,
    }


log = logging.getLogger(__name__)
SetupMethod = Literal["session/resume", "session/load", "session/new"]
VERSION: Final = 1
_MESSAGE_LONGEST: Final = 300


class AgentNotReady(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The agent cannot be used; `can_pass` is set when a retry may succeed."""

    def __init__(self, failure: Failure, *, can_pass: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.can_pass = can_pass
        # The end of the process's stderr before it was given up.
        self.evidence = ""


class AcpTimeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of each phase, in seconds."""

    start: float = 30.0
    session: float = 60.0
    option: float = 10.0
    silence: float = 60.0
    cancel: float = 5.0
    write: float = 30.0


class SessionSetup(Struct, frozen=True, kw_only=True):
    """What the session setup needs to know.

    `known` is the agent's id of the session from an earlier process, `is_answered` is set when the
    session has an answered turn.
    """

    folder: str
    known: str | None = None
    is_answered: bool = False
    auth_method: str | None = None
    # The command to show to a user who has to sign in.
    command: str = ""
    mcp_servers: tuple[ClientMcpServer, ...] = ()
    deadlines: AcpTimeouts = AcpTimeouts()


async def initialize(
    agent_session: AcpSession, capabilities: Mapping[str, Any], setup: SessionSetup
) -> None:
    """Send `initialize` and store the reply; raises `AgentNotReady` on a version mismatch."""
    ours = {
        "protocolVersion": VERSION,
        "clientCapabilities": capabilities,
        "clientInfo": {"name": "holdfast", "title": "Holdfast", "version": _version()},
    }
    try:
        found = await agent_session.ask("initialize", ours, within=setup.deadlines.start)
    except TimeoutError:
        raise AgentNotReady(_timeout_error("has not answered", setup.deadlines.start)) from None
    except RequestRefused as refusal:
        raise AgentNotReady(
            _version_error(f"rejected the request ({refusal.error.code})")
        ) from None
    said = read_object(found).get("protocolVersion")
    # `True == 1` in Python, so a boolean would pass as version 1.
    if said is True or said != VERSION or not isinstance(said, int):
        raise AgentNotReady(_version_error(f"offered {said!r:.50}"))
    agent_session.introduction = parse_initialize(found)
    agent_session.auth_methods = agent_session.introduction["authMethods"]


async def open_session(
    agent_session: AcpSession, setup: SessionSetup, tried: set[SetupMethod]
) -> SetupMethod:
    """Open the session with the first method that works, skipping those in `tried`.

    Raises `ConnectionLost` when the process died; a new process can try the remaining methods.
    """
    for setup_method in _setup_methods(agent_session, setup):
        if setup_method in tried:
            continue
        tried.add(setup_method)
        try:
            result = await _try_method(agent_session, setup_method, setup)
        except TimeoutError:
            if setup_method == "session/new":
                raise AgentNotReady(
                    _timeout_error("has not opened a session", setup.deadlines.session)
                ) from None
            continue
        except RequestRefused as refusal:
            if setup_method == "session/new":
                raise AgentNotReady(_refusal_error(refusal.error)) from None
            log.info("the agent rejected %s: %s", setup_method, refusal)
            continue
        if _is_usable_result(agent_session, setup_method, setup, result):
            return setup_method
    raise AgentNotReady(Failure(code=FailureCode.AGENT_PROTOCOL, message=_NO_SESSION_ID))


def _setup_methods(agent_session: AcpSession, setup: SessionSetup) -> list[SetupMethod]:
    setup_methods: list[SetupMethod] = []
    if setup.known is not None:
        if agent_session.can("sessionCapabilities", "resume"):
            setup_methods.append("session/resume")
        if agent_session.can("loadSession"):
            setup_methods.append("session/load")
    return [*setup_methods, "session/new"]


async def _try_method(
    agent_session: AcpSession, setup_method: SetupMethod, setup: SessionSetup
) -> Any:
    """Try a setup method; if it requires authentication, sign in and try once more."""
    servers = [
        _server_entry(each) for each in setup.mcp_servers if _is_supported(agent_session, each)
    ]
    params: dict[str, Any] = {"cwd": setup.folder, "mcpServers": servers}
    if setup_method != "session/new":
        params["sessionId"] = agent_session.agent_session_id = setup.known
    else:
        # Updates replayed by an earlier method belong to another session.
        agent_session.agent_session_id = None
    agent_session.ignored.clear()
    try:
        return await agent_session.ask(setup_method, params, within=setup.deadlines.session)
    except RequestRefused as refusal:
        if refusal.error.code != AUTH_REQUIRED:
            raise
    await _sign_in(agent_session, setup)
    try:
        return await agent_session.ask(setup_method, params, within=setup.deadlines.session)
    except RequestRefused as refusal:
        if refusal.error.code != AUTH_REQUIRED:
            raise
        raise AgentNotReady(_sign_in_error(agent_session, setup)) from None


async def _sign_in(agent_session: AcpSession, setup: SessionSetup) -> None:
    if setup.auth_method is None:
        raise AgentNotReady(_sign_in_error(agent_session, setup))
    asked = {"methodId": setup.auth_method}
    try:
        await agent_session.ask("authenticate", asked, within=setup.deadlines.start)
    except (RequestRefused, TimeoutError):
        raise AgentNotReady(_sign_in_error(agent_session, setup)) from None


def _is_usable_result(
    agent_session: AcpSession, setup_method: SetupMethod, setup: SessionSetup, result: object
) -> bool:
    """Return whether the reply has opened a usable session, and store its state."""
    if setup_method == "session/new":
        session = read_name(read_object(result).get("sessionId"))
        if session is None:
            return False
        agent_session.set_session(session)
    elif (
        setup_method == "session/load"
        and setup.is_answered
        and not agent_session.ignored["replayed"]
    ):
        # Some agents silently load an empty session in place of one they have lost.
        log.info("the agent has loaded an empty session")
        return False
    agent_session.agent_state = state_after_setup(agent_session.agent_state, result)
    agent_session.is_fresh = setup_method == "session/new"
    return True


_NO_SESSION_ID: Final = "The agent opened a session without an id; it may not be an ACP agent."


def _timeout_error(what: str, seconds: float) -> Failure:
    message = f"The agent's program {what} within {seconds:g} s."
    return Failure(code=FailureCode.AGENT_START_TIMEOUT, message=message)


def _version_error(theirs: str) -> Failure:
    message = f"Holdfast uses ACP version {VERSION}, the agent {theirs}; update the agent."
    return Failure(code=FailureCode.AGENT_VERSION, message=message)


def _refusal_error(error: JsonRpcError) -> Failure:
    message = f"The agent cannot open a session ({refusal_text(error)})."
    return Failure(code=FailureCode.AGENT_ERROR, message=message)


def _sign_in_error(agent_session: AcpSession, setup: SessionSetup) -> Failure:
    ways = ", ".join(map(_way, agent_session.auth_methods)) or "no methods"
    own = f"its own program ({setup.command})" if setup.command else "its own program"
    message = (
        f"The agent requires a sign-in. It offers: {ways}. Sign in with {own}, or set "
        "options.auth_method of the agent to one of these."
    )
    return Failure(code=FailureCode.AGENT_AUTH_REQUIRED, message=message)


def _way(method: Mapping[str, Any]) -> str:
    labels = [
        read_word(method.get(each), longest=_MESSAGE_LONGEST) for each in ("name", "description")
    ]
    return f"{method.get('id')} ({': '.join(filter(None, labels)) or 'no name'})"


def _version() -> str:
    # Imported here, because it loads the `email` package, which only this needs.
    from importlib import metadata

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        # Not installed: run from a source tree.
        return "0"


_MODE = "mode"


async def apply_options(
    agent_session: AcpSession, options: ProgramOptions, *, within: float
) -> tuple[MessageDraft, ...]:
    """Set the options that differ from the wanted values; a refusal becomes a notice."""
    notices = []
    for what, wanted, method, params in _wanted_options(agent_session, options):
        refusal = "it is not offered"
        if method is not None:
            asked = {"sessionId": agent_session.agent_session_id, **params}
            try:
                result = await agent_session.ask(method, asked, within=within)
            except TimeoutError:
                refusal = f"no answer within {within:g} s"
            except RequestRefused as refused:
                refusal = refusal_text(refused.error)
            else:
                agent_session.agent_state = state_after_setup(agent_session.agent_state, result)
                continue
        text = f"The agent did not accept {what} {wanted!r}: {refusal}."
        notices.append(notice_draft(NoticeCode.AGENT_OPTION_REFUSED, text))
    return tuple(notices)


OptionSetting = tuple[str, str | bool, str | None, dict[str, Any]]


def _wanted_options(agent_session: AcpSession, options: ProgramOptions) -> Iterator[OptionSetting]:
    agent_state = agent_session.agent_state
    if options.mode is not None and (agent_session.is_fresh or agent_state.mode != options.mode):
        # Config options take precedence, because modes are their deprecated form.
        by_mode = [
            each for each in agent_state.options if _MODE in (each.get("id"), each.get("category"))
        ]
        if by_mode:
            wanted = {"configId": by_mode[0].get("id"), "value": options.mode}
            yield _MODE, options.mode, "session/set_config_option", wanted
        else:
            method = "session/set_mode" if agent_state.modes else None
            yield _MODE, options.mode, method, {"modeId": options.mode}
    for name, value in options.settings.items() if agent_session.is_fresh else ():
        is_offered = any(each.get("id") == name for each in agent_state.options)
        kind = {"type": "boolean"} if isinstance(value, bool) else {}
        method = "session/set_config_option" if is_offered else None
        yield f"the option {name}", value, method, {"configId": name, "value": value, **kind}
