"""One agent process shared by several sessions: routes its lines and decides when it ends."""

import asyncio
import hashlib
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import asdict, replace

from holdfast.acp.client.agent_process import DEFAULT_TIMEOUTS, AgentProcess
from holdfast.acp.client.lenient_json import read_object
from holdfast.acp.rpc.connection import (
    AcpConnection,
    AnswerMarker,
    ConnectionLimits,
    ConnectionLost,
    Item,
    LossReason,
)
from holdfast.acp.rpc.framing import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcRequest,
    Junk,
)
from holdfast.acp.rpc.redaction import LineRedactor
from holdfast.acp.rpc.streams import DEFAULT_LIMITS, Inbox
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity
from holdfast.ports.runtime import TurnInput
from holdfast.process.agent_child import AgentStart
from holdfast.process.process_table import SESSION_VARIABLE

# Answer to a permission request that will not be decided any more.
NOT_DECIDED: Final[Mapping[str, Any]] = {"outcome": {"outcome": "cancelled"}}
HOSTED: Final = frozenset(
    {
        "session/request_permission",
        "fs/read_text_file",
        "fs/write_text_file",
        *(f"terminal/{verb}" for verb in ("create", "output", "wait_for_exit", "kill", "release")),
    }
)
_NO_METHOD: Final = JsonRpcError(METHOD_NOT_FOUND, "there is no such method here")
_NO_SESSION: Final = JsonRpcError(INVALID_PARAMS, "there is no such session here")


class Strand:
    """One session's view of a shared connection, with the interface of a connection.

    `name` is the agent's id for the session. Without a name the strand receives notifications of
    unknown sessions, because the first updates of its own session may be among them.
    """

    def __init__(self, trunk: "Trunk") -> None:
        self.name: str | None = None
        self.heard_at = asyncio.get_running_loop().time()
        self._inbox: Inbox[Item] = Inbox(
            most=DEFAULT_LIMITS.queued, most_bytes=DEFAULT_LIMITS.queued_bytes
        )
        self._trunk = trunk
        self._asked: list[JsonRpcRequest] = []

    @property
    def lost(self) -> LossReason | None:
        """Return why the connection was lost, if it was."""
        return self._trunk.connection.lost

    @property
    def owed(self) -> int:
        """Return how many requests of this session wait for our answer."""
        return len(self.unpaid())

    def unpaid(self) -> list[JsonRpcRequest]:
        """Return the requests of this session that wait for our answer."""
        self._asked = [each for each in self._asked if self._trunk.connection.owes(each)]
        return self._asked

    def is_free(self, name: str) -> bool:
        """Return whether no other session of the process has this id."""
        return all(each is self or each.name != name for each in self._trunk.strands)

    async def request(self, method: str, params: Any, *, timeout: float | None = None) -> Any:
        """Send a request and wait for the reply, which overtakes queued items."""
        return await self._trunk.connection.request(method, params, timeout=timeout)

    async def begin(self, method: str, params: Any) -> Future[Any]:
        """Send a request and return the future of its reply; the reply arrives in line order."""
        return await self._trunk.begin(self, method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        await self._trunk.connection.notify(method, params)

    async def answer(self, request: JsonRpcRequest, result: Any) -> None:
        """Send the result of a request."""
        await self._trunk.connection.answer(request, result)

    async def refuse(self, request: JsonRpcRequest, error: JsonRpcError) -> None:
        """Send an error reply."""
        await self._trunk.connection.refuse(request, error)

    def handle(
        self,
        request: JsonRpcRequest,
        work: Coroutine[Any, Any, Any],
        *,
        within: float | None = None,
    ) -> None:
        """Run a handler concurrently and answer with its result."""
        self._trunk.connection.handle(request, work, within=within)

    def incoming(self) -> AsyncIterator[Item]:
        """Yield the items of this session in line order."""
        return _Incoming(self._inbox)

    def ready(self) -> JsonRpcNotification | None:
        """Return the next item of `incoming()` if it is queued and is a notification."""
        return self._inbox.ready(JsonRpcNotification)

    def answered(self) -> AnswerMarker | None:
        """Return the next item of `incoming()` if it is queued and is the reply to a `begin`."""
        return self._inbox.ready(AnswerMarker)

    async def bring(self, item: Item) -> bool:
        """Queue an item, waiting for room (back-pressure); `False` if the session has left."""
        await self._inbox.room()
        if self not in self._trunk.strands:
            return False
        self.heard_at = asyncio.get_running_loop().time()
        if isinstance(item, JsonRpcRequest):
            self._asked.append(item)
        self._inbox.push(item, _weight(item))
        return True

    def close(self) -> None:
        """Accept no more items; queued items can still be taken."""
        self._inbox.close()

    def forget(self) -> None:
        """Accept no more items and drop the queued ones."""
        self._inbox.clear()
        self._inbox.close()


class Trunk:
    """The only consumer of a shared connection; the owner must `aclose` it."""

    def __init__(self, connection: AcpConnection) -> None:
        self.connection = connection
        self.strands: list[Strand] = []
        self._begun: dict[Future[Any], Strand] = {}
        self._sorting = asyncio.get_running_loop().create_task(self._sort())

    def strand(self) -> Strand:
        """Add a strand for one more session."""
        strand = Strand(self)
        self.strands.append(strand)
        return strand

    async def begin(self, strand: Strand, method: str, params: Any) -> Future[Any]:
        """Send a request for a strand; its reply is routed back to that strand."""

        def note(future: Future[Any]) -> None:
            self._begun[future] = strand

        return await self.connection.begin(method, params, note=note)

    async def drop(self, strand: Strand) -> None:
        """Remove a strand; answers its open requests, because the process goes on for others."""
        if strand in self.strands:
            self.strands.remove(strand)
        self._begun = {each: whose for each, whose in self._begun.items() if whose is not strand}
        strand.forget()
        with suppress(ConnectionLost):
            for request in tuple(strand.unpaid()):
                if request.method == "session/request_permission":
                    await self.connection.answer(request, NOT_DECIDED)
                else:
                    await self.connection.refuse(request, _NO_SESSION)

    async def aclose(self) -> None:
        """Stop routing."""
        self._sorting.cancel()
        await asyncio.wait([self._sorting])

    async def _sort(self) -> None:
        try:
            async for item in self.connection.incoming():
                await self._pass_on(item)
        finally:
            for strand in self.strands:
                strand.close()

    async def _pass_on(self, item: Item) -> None:
        if isinstance(item, AnswerMarker):
            asker = self._begun.pop(item.future, None)
            if asker is not None:
                await asker.bring(item)
            return
        is_heard = False
        for strand in tuple(self._hearers(item)):
            is_heard |= await strand.bring(item)
        if isinstance(item, JsonRpcRequest) and not is_heard:
            error = _NO_SESSION if item.method in HOSTED else _NO_METHOD
            with suppress(ConnectionLost):
                await self.connection.refuse(item, error)

    def _hearers(self, item: JsonRpcRequest | JsonRpcNotification | Junk) -> Iterator[Strand]:
        """Yield the strands that an item is for."""
        if isinstance(item, Junk):
            # Too long to parse, but its beginning may still contain the session id.
            named = [each for each in self.strands if _mentions(item.head, each.name)]
            yield from named if len(named) == 1 else self.strands
            return
        session = read_object(item.params).get("sessionId")
        named = [each for each in self.strands if each.name == session and session is not None]
        if named or isinstance(item, JsonRpcRequest):
            yield from named
        else:
            yield from (each for each in self.strands if each.name is None)


class _Incoming(AsyncIterator[Item]):
    """Iterates over the inbox of one strand."""

    def __init__(self, inbox: Inbox[Item]) -> None:
        self._inbox = inbox

    async def __anext__(self) -> Item:
        item = await self._inbox.take()
        if item is None:
            raise StopAsyncIteration
        return item


def _weight(item: Item) -> int:
    """Return how many bytes of the inbox limit an item uses."""
    if isinstance(item, Junk):
        return len(item.head)
    return 0 if isinstance(item, AnswerMarker) else item.size


def _mentions(head: bytes, name: str | None) -> bool:
    return name is not None and msgspec.json.encode(name) in head


# Sends the last messages to a process before it is ended.
Farewell = Callable[[], Awaitable[object]]
# Receives each raw line.
Listener = Callable[[bytes], None]
_LAST_WORDS: Final = 1.5
# The exit of a session that left a shared process which goes on running.
LEFT: Final = ProcessExit(reason="left")


def share_key(
    turn: TurnInput, owner: str, start: AgentStart, capabilities: Mapping[str, Any]
) -> str:
    """Return the key under which sessions may share a process: equal inputs, equal owner."""
    given = asdict(start) | {"limits": asdict(start.limits)}
    # The session id differs for each session and must not be part of the key.
    given["environment"] = {
        n: value for n, value in start.environment.items() if n != SESSION_VARIABLE
    }
    grants = turn.place.grants if turn.place is not None else ()
    whole = [owner, turn.agent.id, turn.agent.grant, grants, given, capabilities]
    # Hashed, because the environment holds secrets.
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


class SharedProgram:
    """A process and the sessions that use it; ended when the last session leaves."""

    def __init__(self, program: AgentProcess, seats: "list[Seat]") -> None:
        self.program = program
        self.introduction: Mapping[str, Any] = {}
        self._trunk = Trunk(program.connection)
        self._seats = seats
        self._is_closing = False

    @classmethod
    async def spawn(
        cls, start: AgentStart, mark: str, bounds: ConnectionLimits, redactor: LineRedactor
    ) -> "SharedProgram":
        """Start a process with a mark of its own, not a session's; raises `AgentNotStarted`."""
        seats: list[Seat] = []
        program = await AgentProcess.spawn(
            replace(start, environment={**start.environment, SESSION_VARIABLE: mark}),
            bounds=bounds,
            on_line=partial(_show, seats),
            redactor=redactor,
        )
        program.birth = replace(program.birth, mark=mark)
        return cls(program, seats)

    @property
    def is_open(self) -> bool:
        """Return whether another session may join."""
        return not self._is_closing and not self._is_gone

    def seat(self, listener: Listener | None) -> "Seat":
        """Add a seat for one more session."""
        seat = Seat(self, self._trunk.strand(), listener)
        self._seats.append(seat)
        return seat

    async def leave(
        self, seat: "Seat", farewell: Farewell | None, *, is_for_all: bool
    ) -> ProcessExit:
        """Remove a session; end the process with the last one, or at once if `is_for_all`."""
        self._is_closing |= is_for_all or self._seats == [seat]
        try:
            if self._is_gone:
                # Wait for the real exit status, so that every session reports the same one.
                await asyncio.wait([self.program.exited], timeout=_LAST_WORDS)
            if self._is_closing or self._is_gone:
                return await self.program.end(farewell=farewell)
            if farewell is not None:
                with suppress(Exception):
                    async with asyncio.timeout(DEFAULT_TIMEOUTS.farewell):
                        await farewell()
            return LEFT
        finally:
            await self._vacate(seat)

    async def _vacate(self, seat: "Seat") -> None:
        if seat in self._seats:
            self._seats.remove(seat)
        await self._trunk.drop(seat.strand)
        if not self._seats:
            self._is_closing = True
            await self.program.end()
            await self._trunk.aclose()

    @property
    def _is_gone(self) -> bool:
        return self.program.connection.lost is not None or self.program.exited.done()


class Seat:
    """One session's share of a process."""

    def __init__(self, shared: SharedProgram, strand: Strand, listener: Listener | None) -> None:
        self.shared = shared
        self.strand = strand
        self.listener = listener

    async def leave(self, farewell: Farewell | None, *, is_for_all: bool) -> ProcessExit:
        """Leave the process; a second call has no effect."""
        return await self.shared.leave(self, farewell, is_for_all=is_for_all)


def _show(seats: list[Seat], line: bytes) -> None:
    """Pass a raw line to all listeners."""
    for seat in seats:
        if seat.listener is not None:
            seat.listener(line)


class Shares:
    """The shared processes of this server."""

    def __init__(self) -> None:
        self._programs: dict[str, SharedProgram] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: str) -> asyncio.Lock:
        """Return the lock to hold while finding or starting a shareable process."""
        return self._locks.setdefault(key, asyncio.Lock())

    def find(self, key: str) -> SharedProgram | None:
        """Return a process that another session may join, if there is one."""
        found = self._programs.get(key)
        return found if found is not None and found.is_open else None

    def add(self, key: str, shared: SharedProgram) -> None:
        """Register a process that other sessions may join."""
        self._programs = {k: each for k, each in self._programs.items() if each.is_open}
        self._programs[key] = shared

    def has(self, birth: ProcessIdentity) -> bool:
        """Return whether a registered process has this identity and can still be joined."""
        return any(each.is_open and each.program.birth == birth for each in self._programs.values())
