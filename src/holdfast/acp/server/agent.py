"""Holdfast as an ACP agent: the methods a client may call, and the loop that serves one client.

No input of a client ends the loop. A session that a client has open is in `client_session.py`.

"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.rpc.connection import AcpConnection
from holdfast.acp.rpc.framing import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ByteReader,
    JsonRpcNotification,
    JsonRpcRequest,
    RequestRefused,
)
from holdfast.acp.server.capabilities import (
    MODE,
    MODEL,
    initialize_result,
    session_modes,
    session_options,
)
from holdfast.acp.server.client_session import ClientSession, PendingPrompt, Spawn
from holdfast.acp.server.content import StoreMedia, read_parts
from holdfast.acp.server.errors import invalid_params, request_error, rpc_error
from holdfast.acp.server.notifications import SessionNotifier, replay_cursor
from holdfast.acp.server.session_folders import SessionFolders
from holdfast.api import Holdfast
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.services.background_tasks import Background


class NewSessionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/new`."""

    cwd: str
    mcp_servers: list[Any] = []


class LoadSessionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/load` and `session/resume`."""

    session_id: str
    cwd: str
    mcp_servers: list[Any] = []


class SessionParams(Struct, frozen=True, rename="camel"):
    """Parameters of methods that need only a session id."""

    session_id: str


class PromptParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/prompt`."""

    session_id: str
    prompt: list[Any]


class SetModeParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/set_mode`."""

    session_id: str
    mode_id: str


class SetOptionParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/set_config_option`."""

    session_id: str
    config_id: str
    value: Any = None


class ListSessionsParams(Struct, frozen=True, rename="camel"):
    """Parameters of `session/list`."""

    cwd: str | None = None
    cursor: str | None = None


_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LONGEST: Final = 64


class NameValue(Struct, frozen=True):
    """An environment variable or an HTTP header."""

    name: str
    value: str


class StdioServerEntry(Struct, frozen=True, tag="stdio"):
    """An MCP server that is started as a process."""

    name: str
    command: str
    args: list[str] = []
    env: list[NameValue] = []


class HttpServerEntry(Struct, frozen=True, tag="http"):
    """An MCP server that is reached over HTTP."""

    name: str
    url: str
    headers: list[NameValue] = []


def read_mcp_servers(servers: list[Any]) -> tuple[dict[str, Any], ...]:
    """Return the client's MCP servers; refuses transports that our capabilities do not offer."""
    return tuple(map(_server_entry, servers))


def _server_entry(given: Any) -> dict[str, Any]:
    # The protocol leaves out the type of a program.
    entry = {"type": "stdio"} | given if isinstance(given, dict) else {}
    if entry.get("type") not in ("stdio", "http"):
        raise invalid_params("mcpServers must be programs, or URLs of type http.")
    try:
        found = msgspec.convert(entry, StdioServerEntry | HttpServerEntry)
    except msgspec.ValidationError as error:
        raise invalid_params(f"mcpServers is not valid: {error}.") from None
    name = {"id": _NOT_IN_A_NAME.sub("-", found.name)[:_NAME_LONGEST] or "server"}
    if isinstance(found, StdioServerEntry):
        env = {each.name: each.value for each in found.env}
        return name | {
            "transport": "stdio",
            "command": found.command,
            "args": found.args,
            "env": env,
        }
    headers = {each.name: each.value for each in found.headers}
    return name | {"transport": "http", "url": found.url, "headers": headers}


Result = dict[str, Any]


class AcpServeOptions(Struct, frozen=True, kw_only=True):
    """Options of the server: version, folders, ids, and turns without a client."""

    version: str
    folders: SessionFolders
    new_id: Callable[[], str]
    # Set when a remote server runs the turns, which then continue without a client.
    goes_on: bool = False


Method = Callable[[Any], Coroutine[Any, Any, Result]]


class AcpAgent:
    """Serves one client; holds its sessions as long as it is connected."""

    def __init__(
        self, backend: Holdfast, connection: AcpConnection, options: AcpServeOptions, spawn: Spawn
    ) -> None:
        self._backend = backend
        self._connection = connection
        self._options = options
        self._spawn = spawn
        self._is_initialized = False
        self._is_disconnecting = False
        self._open_requests = 0
        self._all_answered = asyncio.Event()
        self._sessions: dict[SessionId, ClientSession] = {}
        # Weak, so that a lock lives only as long as a task uses it.
        self._locks: WeakValueDictionary[SessionId, asyncio.Lock] = WeakValueDictionary()
        self._methods: Mapping[str, tuple[type[Any], Method]] = {
            "session/new": (NewSessionParams, self._new),
            "session/load": (LoadSessionParams, partial(self._load, is_replayed=True)),
            "session/resume": (LoadSessionParams, partial(self._load, is_replayed=False)),
            "session/list": (ListSessionsParams, self._list),
            "session/close": (SessionParams, self._close),
            "session/delete": (SessionParams, self._delete),
            "session/set_mode": (SetModeParams, self._set_mode),
            "session/set_config_option": (SetOptionParams, self._set_option),
        }

    async def disconnect(self) -> None:
        """Stop the client's turns and answer its open requests, after its input has ended.

        Turns on a remote server continue, and are not awaited.
        """
        self._is_disconnecting = True
        busy = [hold for hold in self._sessions.values() if hold.is_busy]
        if busy and self._options.goes_on:
            return
        for hold in busy:
            hold.leave()
        while self._open_requests:
            self._all_answered.clear()
            await self._all_answered.wait()

    def handle(self, request: JsonRpcRequest) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers a request; a prompt is registered before it returns."""
        if request.method == "initialize":
            self._is_initialized = True
        if not self._is_initialized:
            refusal = request_error(INVALID_REQUEST, "Call initialize first.")
            return self._answer(request, _raise(refusal))
        if request.method == "session/prompt":
            return self._start_prompt(request)
        return self._answer(request, self._call_method(request))

    def cancel(self, params: Any) -> None:
        """Stop the client's prompts in a session; does nothing if there are none."""
        try:
            hold = self._sessions.get(SessionId(msgspec.convert(params, SessionParams).session_id))
        except msgspec.ValidationError:
            return
        if hold is not None:
            hold.cancel()

    async def _call_method(self, request: JsonRpcRequest) -> Result:
        if request.method == "initialize":
            return initialize_result(self._options.version)
        if request.method not in self._methods:
            raise request_error(METHOD_NOT_FOUND, "Method not found.")
        kind, method = self._methods[request.method]
        return await method(_params(request, kind))

    async def _answer(self, request: JsonRpcRequest, work: Coroutine[Any, Any, Result]) -> None:
        """Answer with the result of the work; the answer is sent when this returns."""
        self._open_requests += 1
        try:
            await self._connection.answer(request, await work)
        except HoldfastError as error:
            await self._connection.refuse(request, rpc_error(error))
        except RequestRefused as refusal:
            await self._connection.refuse(request, refusal.error)
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                self._all_answered.set()

    def _start_prompt(self, request: JsonRpcRequest) -> Coroutine[Any, Any, None]:
        """Register a prompt synchronously, so that a later cancel in the input includes it."""
        try:
            said = _params(request, PromptParams)
            hold = self._require_session(said.session_id)
        except RequestRefused as refusal:
            return self._answer(request, _raise(refusal))
        prompt = hold.begin(self._options.new_id())
        prompt.is_cancelled = self._is_disconnecting
        return self._run_prompt(request, hold, prompt, said.prompt)

    async def _run_prompt(
        self, request: JsonRpcRequest, hold: ClientSession, prompt: PendingPrompt, blocks: list[Any]
    ) -> None:
        async def run() -> Result:
            return await hold.run(prompt, await read_parts(blocks, self._keep(hold.session_id)))

        try:
            await self._answer(request, run())
        except asyncio.CancelledError:
            # The client has cancelled its request, so its turn is stopped.
            if not self._is_disconnecting:
                hold.withdraw(prompt)
            raise
        finally:
            hold.drop(prompt)

    def _keep(self, session_id: SessionId) -> StoreMedia:
        async def keep(content: bytes, mime_type: str) -> str:
            return await self._backend.media.keep(
                self._backend.owner, session_id, content, mime_type=mime_type
            )

        return keep

    async def _new(self, request_params: NewSessionParams) -> Result:
        servers = read_mcp_servers(request_params.mcp_servers)
        session = await self._options.folders.open(self._backend, request_params.cwd)
        # From the first row on, so that notices of the opening are sent with the first answer.
        notifier = await self._notifier(replace(session, message_count=0))
        remarks = await self._attach(session.id, servers)
        self._add_session(notifier, after=0, remarks=remarks)
        return {"sessionId": session.id} | await self._modes_and_options(notifier)

    async def _load(self, request_params: LoadSessionParams, *, is_replayed: bool) -> Result:
        servers = read_mcp_servers(request_params.mcp_servers)
        id_ = SessionId(request_params.session_id)
        # Serialized, because two followers of one session would send every update twice.
        async with self._lock(id_):
            session = await self._release(id_, request_params.cwd)
            notifier = await self._notifier(session)
            after = (
                await replay_cursor(self._backend, session) if is_replayed else session.last_event
            )
            if is_replayed:
                await notifier.replay()
            remarks = await self._attach(id_, servers)
            hold = self._add_session(notifier, after=after, remarks=remarks)
        hold.follow()
        return await self._modes_and_options(notifier)

    async def _release(self, id_: SessionId, cwd: str) -> Session:
        """Return the session to load; releases an earlier hold of this client on it."""
        session = await self._options.folders.load(self._backend, id_, cwd)
        before = self._sessions.get(id_)
        if before is None:
            return session
        if before.is_busy:
            raise invalid_params("A prompt of this session is still running; cancel it first.")
        del self._sessions[id_]
        await before.release()
        # Read again, because updates were sent until the release.
        return await self._backend.sessions.get(self._backend.owner, id_)

    async def _attach(
        self, session_id: SessionId, servers: tuple[dict[str, Any], ...]
    ) -> tuple[str, ...]:
        try:
            await self._backend.mcp_servers.attach(self._backend.owner, session_id, servers)
        # An unavailable MCP server must not prevent the session; it becomes a remark.
        except Invalid as error:
            return (error.message,)
        return ()

    async def _notifier(self, session: Session) -> SessionNotifier:
        models = await self._backend.models.catalogue()
        return SessionNotifier(self._backend, self._connection, session, models)

    def _add_session(
        self, notifier: SessionNotifier, *, after: int, remarks: tuple[str, ...]
    ) -> ClientSession:
        hold = ClientSession(
            self._backend,
            self._connection,
            notifier,
            after=after,
            remarks=remarks,
            spawn=self._spawn,
        )
        self._sessions[hold.session_id] = hold
        return hold

    def _lock(self, session_id: SessionId) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    async def _modes_and_options(self, notifier: SessionNotifier) -> Result:
        defaults = await self._backend.defaults()
        return session_modes(notifier.session, notifier.models, defaults)

    async def _list(self, request_params: ListSessionsParams) -> Result:
        return await self._options.folders.list(
            self._backend, request_params.cwd, request_params.cursor
        )

    async def _close(self, request_params: SessionParams) -> Result:
        id_ = SessionId(request_params.session_id)
        async with self._lock(id_):
            hold = self._sessions.pop(id_, None)
            if hold is not None:
                hold.leave()
                await hold.wait_for_replies()
                await hold.release()
                await self._attach(id_, ())
        return {}

    async def _delete(self, request_params: SessionParams) -> Result:
        await self._close(request_params)
        try:
            await self._backend.sessions.delete(
                self._backend.owner, SessionId(request_params.session_id)
            )
        except NotFound as error:
            if error.code is not Code.SESSION_NOT_FOUND:
                raise
        return {}

    async def _set_mode(self, request_params: SetModeParams) -> Result:
        hold = self._require_session(request_params.session_id)
        async with hold.turnstile:
            await self._update(hold, {"approval": _mode(request_params.mode_id)})
        return {}

    async def _set_option(self, request_params: SetOptionParams) -> Result:
        hold = self._require_session(request_params.session_id)
        async with hold.turnstile:
            defaults = await self._backend.defaults()
            shown = session_options(hold.notifier.session, hold.notifier.models, defaults)
            chosen = next((each for each in shown if each["id"] == request_params.config_id), None)
            if chosen is None or request_params.value not in [
                each["value"] for each in chosen["options"]
            ]:
                raise invalid_params("There is no such option, or the value is not valid for it.")
            field = {MODE: "approval", MODEL: "model"}[request_params.config_id]
            value = _mode(request_params.value) if field == "approval" else request_params.value
            await self._update(hold, {field: value})
        return {
            "configOptions": session_options(hold.notifier.session, hold.notifier.models, defaults)
        }

    async def _update(self, hold: ClientSession, changes: Mapping[str, Any]) -> None:
        backend = self._backend
        hold.notifier.session = await backend.sessions.update(
            backend.owner, hold.session_id, changes
        )

    def _require_session(self, session_id: str) -> ClientSession:
        hold = self._sessions.get(SessionId(session_id))
        if hold is None:
            raise invalid_params("Open the session first, with session/new, load or resume.")
        return hold


MODES: Final = frozenset(mode.value for mode in ApprovalMode)


def _mode(id_: str) -> ApprovalMode:
    if id_ not in MODES:
        raise invalid_params(f"There is no such mode; the modes are {', '.join(ApprovalMode)}.")
    return ApprovalMode(id_)


def _params(request: JsonRpcRequest, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(request.params or {}, kind)
    except msgspec.ValidationError as error:
        raise invalid_params(f"The parameters are not valid: {error}.") from None


async def _raise(refusal: RequestRefused) -> Result:
    raise refusal


log = logging.getLogger(__name__)
# Seconds that running turns have to stop after the client has disconnected.
PARTING_SECONDS: Final = 5.0


class ClientInput:
    """A client's input; its end sets `ended` instead of EOF, as open requests need answers."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self.ended = asyncio.Event()

    async def read(self, count: int = -1, /) -> bytes:
        """Return bytes; at EOF a newline that completes a last line, then wait forever."""
        chunk = await self._reader.read(count)
        if chunk:
            return chunk
        if not self.ended.is_set():
            self.ended.set()
            return b"\n"
        # Never returns EOF, which would lose the connection; closing it cancels this read.
        await asyncio.Event().wait()
        return b""


async def serve(
    backend: Holdfast, connection: AcpConnection, options: AcpServeOptions, ended: asyncio.Event
) -> None:
    """Serve a client until it disconnects; then stop its turns, unless they run remotely."""
    async with Background() as background:
        agent = AcpAgent(backend, connection, options, background.start)
        taking = background.start(_dispatch(agent, connection))
        leaving = background.start(_wait_for_end(ended))
        await asyncio.wait([taking, leaving], return_when=asyncio.FIRST_COMPLETED)
        # All input before the end is already dispatched, because it was queued earlier.
        try:
            async with asyncio.timeout(PARTING_SECONDS):
                await agent.disconnect()
        except TimeoutError:
            log.warning("a turn did not stop in time; it can be resumed")
        await connection.aclose()


async def _dispatch(agent: AcpAgent, connection: AcpConnection) -> None:
    async for item in connection.incoming():
        if isinstance(item, JsonRpcRequest):
            connection.handle(item, agent.handle(item))
        elif isinstance(item, JsonRpcNotification) and item.method == "session/cancel":
            agent.cancel(item.params)


async def _wait_for_end(ended: asyncio.Event) -> None:
    await ended.wait()
