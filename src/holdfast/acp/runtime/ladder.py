"""How a program takes a conversation up: by going on with it, by loading it, or by a new one.

Each rung is tried once; what refuses or does not answer leads to the next one.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.acp.runtime.companions import entries_of
from holdfast.acp.runtime.conversation import Conversation
from holdfast.acp.translate.introductions import introduction_of
from holdfast.acp.translate.readings import fields, name, word
from holdfast.acp.translate.stops import words_of
from holdfast.acp.translate.told import opened
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import AUTH_REQUIRED, RpcError
from holdfast.domain.events import Failure, FailureCode
from holdfast.ports import ClientMcpServer

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


class Wish(Struct, frozen=True, kw_only=True):
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
    conversation: Conversation, capabilities: Mapping[str, Any], wish: Wish
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
    said = fields(found).get("protocolVersion")
    # In Python true is the number one.
    if said is True or said != VERSION or not isinstance(said, int):
        raise NotReady(_other_version(f"offered {said!r:.50}"))
    conversation.introduction = introduction_of(found)
    conversation.auth_methods = conversation.introduction["authMethods"]


async def climb(conversation: Conversation, wish: Wish, tried: set[Rung]) -> Rung:
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


def _rungs(conversation: Conversation, wish: Wish) -> list[Rung]:
    rungs: list[Rung] = []
    if wish.known is not None and conversation.is_free(wish.known):
        if conversation.can("sessionCapabilities", "resume"):
            rungs.append("session/resume")
        if conversation.can("loadSession"):
            rungs.append("session/load")
    return [*rungs, "session/new"]


async def _asked(conversation: Conversation, rung: Rung, wish: Wish) -> Any:
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


async def _sign_in(conversation: Conversation, wish: Wish) -> None:
    if wish.auth_method is None:
        raise NotReady(_locked(conversation, wish))
    asked = {"methodId": wish.auth_method}
    try:
        await conversation.ask("authenticate", asked, within=wish.start_seconds)
    except (Refused, TimeoutError):
        raise NotReady(_locked(conversation, wish)) from None


def _holds(conversation: Conversation, rung: Rung, wish: Wish, result: object) -> bool:
    """Tell whether a rung that was answered really leads somewhere."""
    if rung == "session/new":
        session = name(fields(result).get("sessionId"))
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


def _locked(conversation: Conversation, wish: Wish) -> Failure:
    ways = ", ".join(map(_way, conversation.auth_methods)) or "none that it names"
    own = f"its own program ({wish.command})" if wish.command else "its own program"
    message = (
        f"The agent wants somebody to sign in. It offers: {ways}. Sign in with {own}, or set "
        "options.auth_method of the agent to one of these."
    )
    return Failure(code=FailureCode.AGENT_AUTH_REQUIRED, message=message)


def _way(method: Mapping[str, Any]) -> str:
    told = [word(method.get(each), longest=_TOLD) for each in ("name", "description")]
    return f"{method.get('id')} ({': '.join(filter(None, told)) or 'no name'})"


def _version() -> str:
    # With it comes a reader of mail, which nobody needs before a program is started.
    from importlib import metadata

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        # Run from a source tree that was never installed.
        return "0"
