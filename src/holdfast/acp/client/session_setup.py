"""ACP's session setup: `initialize`, `authenticate`, then `session/resume`, `load` or `new`.

Also which MCP servers are sent along, and which of the agent's options are applied.

"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.acp.client.agent_session import Conversation
from holdfast.acp.client.agent_state import introduction_of, opened
from holdfast.acp.client.lenient_json import read_name, read_object, read_word
from holdfast.acp.client.stop_reasons import words_of
from holdfast.acp.rpc.connection import Refused
from holdfast.acp.rpc.framing import AUTH_REQUIRED, RpcError
from holdfast.domain.agent_processes import ProgramOptions
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import Message, Notice, NoticeCode, Role
from holdfast.domain.secrets import Secret
from holdfast.ports import ClientMcpServer


def entries_of(
    conversation: Conversation, companions: Sequence[ClientMcpServer]
) -> list[dict[str, Any]]:
    """Return what is sent of those servers that the program can use; all secrets are in it."""
    return [_entry(each) for each in companions if _is_usable(conversation, each)]


def left_out(conversation: Conversation, companions: Sequence[ClientMcpServer]) -> Iterator[str]:
    """Yield in sentences which servers the program cannot use."""
    for each in companions:
        if not _is_usable(conversation, each):
            yield (
                f"The agent does not get the MCP server {each.name}: its program takes none over "
                f"{each.transport}."
            )


def told_of(troubles: Sequence[str], history: Sequence[Message]) -> tuple[MessageDraft, ...]:
    """Return what is missing as rows; what the record says already is not said again."""
    told = {part.text for row in history for part in row.parts if isinstance(part, Notice)}
    return tuple(
        MessageDraft(
            role=Role.SYSTEM, parts=(Notice(code=NoticeCode.MCP_UNAVAILABLE, text=trouble),)
        )
        for trouble in dict.fromkeys(troubles)
        if trouble not in told
    )


def _is_usable(conversation: Conversation, companion: ClientMcpServer) -> bool:
    # Programs on pipes are the one kind that every agent has to take.
    is_program = companion.transport == "stdio"
    return is_program or conversation.can("mcpCapabilities", companion.transport)


def _entry(companion: ClientMcpServer) -> dict[str, Any]:
    values = _pairs(companion.values)
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


def _pairs(values: Mapping[str, Secret]) -> list[dict[str, str]]:
    return [{"name": name, "value": value.reveal()} for name, value in values.items()]


log = logging.getLogger(__name__)
Rung = Literal["session/resume", "session/load", "session/new"]
VERSION: Final = 1
_TOLD: Final = 300


class NotReady(Exception):  # noqa: N818 — it says what is, not what went wrong
    """A program that cannot be spoken with; whether another attempt may come out differently."""

    def __init__(self, failure: Failure, *, can_pass: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.can_pass = can_pass
        # What the program complained before it was given up.
        self.evidence = ""


class SessionSetup(Struct, frozen=True, kw_only=True):
    """What is wanted of a program before its first prompt.

    `known` is its own name for the conversation if it had one before, `is_answered` that something
    was answered in it.
    """

    folder: str
    known: str | None = None
    is_answered: bool = False
    auth_method: str | None = None
    # How a person starts the program, for whoever has to sign in with it.
    command: str = ""
    companions: tuple[ClientMcpServer, ...] = ()
    start_seconds: float = 30.0
    session_seconds: float = 60.0


async def introduce(
    conversation: Conversation, capabilities: Mapping[str, Any], wish: SessionSetup
) -> None:
    """Say who we are and learn who the program is; refuse one that speaks another version."""
    ours = {
        "protocolVersion": VERSION,
        "clientCapabilities": capabilities,
        "clientInfo": {"name": "holdfast", "title": "Holdfast", "version": _version()},
    }
    try:
        found = await conversation.ask("initialize", ours, within=wish.start_seconds)
    except TimeoutError:
        raise NotReady(_slow("has not answered", wish.start_seconds)) from None
    except Refused as refusal:
        raise NotReady(_other_version(f"refused it ({refusal.error.code})")) from None
    said = read_object(found).get("protocolVersion")
    # In Python true is the number one.
    if said is True or said != VERSION or not isinstance(said, int):
        raise NotReady(_other_version(f"offered {said!r:.50}"))
    conversation.introduction = introduction_of(found)
    conversation.auth_methods = conversation.introduction["authMethods"]


async def climb(conversation: Conversation, wish: SessionSetup, tried: set[Rung]) -> Rung:
    """Take the conversation up by the first rung that holds; those that were tried are left out.

    Raises `Lost` when the program died on a rung: what was not tried yet may hold another one.
    """
    for rung in _rungs(conversation, wish):
        if rung in tried:
            continue
        tried.add(rung)
        try:
            result = await _asked(conversation, rung, wish)
        except TimeoutError:
            if rung == "session/new":
                raise NotReady(_slow("has opened no session", wish.session_seconds)) from None
            continue
        except Refused as refusal:
            if rung == "session/new":
                raise NotReady(_refused(refusal.error)) from None
            log.info("the agent refused %s: %s", rung, refusal)
            continue
        if _holds(conversation, rung, wish, result):
            return rung
    raise NotReady(Failure(code=FailureCode.AGENT_PROTOCOL, message=_NAMELESS))


def _rungs(conversation: Conversation, wish: SessionSetup) -> list[Rung]:
    rungs: list[Rung] = []
    if wish.known is not None and conversation.is_free(wish.known):
        if conversation.can("sessionCapabilities", "resume"):
            rungs.append("session/resume")
        if conversation.can("loadSession"):
            rungs.append("session/load")
    return [*rungs, "session/new"]


async def _asked(conversation: Conversation, rung: Rung, wish: SessionSetup) -> Any:
    """Try a rung; where somebody has to sign in first, once more after that."""
    servers = entries_of(conversation, wish.companions)
    params: dict[str, Any] = {"cwd": wish.folder, "mcpServers": servers}
    if rung != "session/new":
        params["sessionId"] = conversation.session = wish.known
    else:
        # What an earlier rung has replayed is not said of this one.
        conversation.session = None
    conversation.passed_over.clear()
    try:
        return await conversation.ask(rung, params, within=wish.session_seconds)
    except Refused as refusal:
        if refusal.error.code != AUTH_REQUIRED:
            raise
    await _sign_in(conversation, wish)
    try:
        return await conversation.ask(rung, params, within=wish.session_seconds)
    except Refused as refusal:
        if refusal.error.code != AUTH_REQUIRED:
            raise
        raise NotReady(_locked(conversation, wish)) from None


async def _sign_in(conversation: Conversation, wish: SessionSetup) -> None:
    if wish.auth_method is None:
        raise NotReady(_locked(conversation, wish))
    asked = {"methodId": wish.auth_method}
    try:
        await conversation.ask("authenticate", asked, within=wish.start_seconds)
    except (Refused, TimeoutError):
        raise NotReady(_locked(conversation, wish)) from None


def _holds(conversation: Conversation, rung: Rung, wish: SessionSetup, result: object) -> bool:
    """Tell whether a rung that was answered really leads somewhere."""
    if rung == "session/new":
        session = read_name(read_object(result).get("sessionId"))
        if session is None:
            return False
        if not conversation.is_free(session):
            raise NotReady(Failure(code=FailureCode.AGENT_PROTOCOL, message=_TWICE))
        conversation.named(session)
    elif rung == "session/load" and wish.is_answered and not conversation.passed_over["replayed"]:
        # Some make an empty one of what they have lost, and do not say so.
        log.info("the agent has loaded an empty session")
        return False
    conversation.told = opened(conversation.told, result)
    conversation.is_fresh = rung == "session/new"
    return True


_TWICE: Final = (
    "The agent gave the same name to two sessions that share its program; set options.share of the "
    "agent to false."
)
_NAMELESS: Final = "The agent opened a session and did not say which; it may be another program."


def _slow(what: str, seconds: float) -> Failure:
    message = f"The agent's program {what} within {seconds:g} s."
    return Failure(code=FailureCode.AGENT_START_TIMEOUT, message=message)


def _other_version(said: str) -> Failure:
    message = f"Version {VERSION} of the protocol is spoken here, and the agent {said}; update it."
    return Failure(code=FailureCode.AGENT_VERSION, message=message)


def _refused(error: RpcError) -> Failure:
    message = f"The agent opens no session ({words_of(error)})."
    return Failure(code=FailureCode.AGENT_ERROR, message=message)


def _locked(conversation: Conversation, wish: SessionSetup) -> Failure:
    ways = ", ".join(map(_way, conversation.auth_methods)) or "none that it names"
    own = f"its own program ({wish.command})" if wish.command else "its own program"
    message = (
        f"The agent wants somebody to sign in. It offers: {ways}. Sign in with {own}, or set "
        "options.auth_method of the agent to one of these."
    )
    return Failure(code=FailureCode.AGENT_AUTH_REQUIRED, message=message)


def _way(method: Mapping[str, Any]) -> str:
    told = [read_word(method.get(each), longest=_TOLD) for each in ("name", "description")]
    return f"{method.get('id')} ({': '.join(filter(None, told)) or 'no name'})"


def _version() -> str:
    # With it comes a reader of mail, which nobody needs before a program is started.
    from importlib import metadata

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        # Run from a source tree that was never installed.
        return "0"


_MODE = "mode"


async def apply_options(
    conversation: Conversation, options: ProgramOptions, *, within: float
) -> tuple[MessageDraft, ...]:
    """Set what is wanted and not so already; what is refused is told and is no failure."""
    notices = []
    for what, wanted, method, params in _wishes(conversation, options):
        refusal = "it is not offered"
        if method is not None:
            asked = {"sessionId": conversation.session, **params}
            try:
                result = await conversation.ask(method, asked, within=within)
            except TimeoutError:
                refusal = f"no answer within {within:g} s"
            except Refused as refused:
                refusal = words_of(refused.error)
            else:
                conversation.told = opened(conversation.told, result)
                continue
        notices.append(_told(f"The agent did not take {what} {wanted!r}: {refusal}."))
    return tuple(notices)


OptionSetting = tuple[str, str | bool, str | None, dict[str, Any]]


def _wishes(conversation: Conversation, options: ProgramOptions) -> Iterator[OptionSetting]:
    told = conversation.told
    if options.mode is not None and (conversation.is_fresh or told.mode != options.mode):
        # Where both are offered, the options count: the modes are their older form.
        chosen = next((each for each in told.options if _MODE in _names(each)), None)
        if chosen is not None:
            wanted = {"configId": chosen.get("id"), "value": options.mode}
            yield _MODE, options.mode, "session/set_config_option", wanted
        else:
            method = "session/set_mode" if told.modes else None
            yield _MODE, options.mode, method, {"modeId": options.mode}
    for name, value in options.settings.items() if conversation.is_fresh else ():
        is_offered = any(each.get("id") == name for each in told.options)
        kind = {"type": "boolean"} if isinstance(value, bool) else {}
        method = "session/set_config_option" if is_offered else None
        yield f"the option {name}", value, method, {"configId": name, "value": value, **kind}


def _names(option: Mapping[str, Any]) -> tuple[object, object]:
    return option.get("id"), option.get("category")


def _told(text: str) -> MessageDraft:
    notice = Notice(code=NoticeCode.AGENT_OPTION_REFUSED, text=text)
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))
