"""One agent process shared by several sessions: which line belongs to which, and who ends it."""

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
from holdfast.ports import TurnInput
from holdfast.process.agent_child import AgentStart
from holdfast.process.process_table import SESSION_VARIABLE

# The outcome of a permission that nobody will decide about any more.
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
    """What one conversation says and hears, in the form of a connection of its own.

    `name` is the program's own word for the conversation; without one it hears whatever belongs to
    nobody, because some of that may be the first of its own.
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
        """Return why the other side is gone, if it is."""
        return self._trunk.connection.lost

    @property
    def owed(self) -> int:
        """Return how many requests of this conversation wait for our answer."""
        return len(self.unpaid())

    def unpaid(self) -> list[JsonRpcRequest]:
        """Return the requests of this conversation that wait for our answer."""
        self._asked = [each for each in self._asked if self._trunk.connection.owes(each)]
        return self._asked

    def is_free(self, name: str) -> bool:
        """Tell whether no other conversation with the program bears this name."""
        return all(each is self or each.name != name for each in self._trunk.strands)

    async def request(self, method: str, params: Any, *, timeout: float | None = None) -> Any:
        """Ask, and wait for the answer, which overtakes what waits."""
        return await self._trunk.connection.request(method, params, timeout=timeout)

    async def begin(self, method: str, params: Any) -> Future[Any]:
        """Ask, and return as soon as the question is sent; the answer keeps its place."""
        return await self._trunk.begin(self, method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Tell something that needs no answer."""
        await self._trunk.connection.notify(method, params)

    async def answer(self, request: JsonRpcRequest, result: Any) -> None:
        """Answer a request."""
        await self._trunk.connection.answer(request, result)

    async def refuse(self, request: JsonRpcRequest, error: JsonRpcError) -> None:
        """Answer with an error."""
        await self._trunk.connection.refuse(request, error)

    def handle(
        self,
        request: JsonRpcRequest,
        work: Coroutine[Any, Any, Any],
        *,
        within: float | None = None,
    ) -> None:
        """Answer with what the work returns, while others go on."""
        self._trunk.connection.handle(request, work, within=within)

    def incoming(self) -> AsyncIterator[Item]:
        """Yield what came for this conversation, in the order of the lines."""
        return _Incoming(self._inbox)

    def ready(self) -> JsonRpcNotification | None:
        """Return what `incoming()` comes to next, if it has come and is a notification."""
        return self._inbox.ready(JsonRpcNotification)

    def answered(self) -> AnswerMarker | None:
        """Return what `incoming()` comes to next, if it has come and is the answer to a `begin`."""
        return self._inbox.ready(AnswerMarker)

    async def bring(self, item: Item) -> bool:
        """Take in what came for this conversation, as soon as there is room; `False` if it left."""
        await self._inbox.room()
        if self not in self._trunk.strands:
            return False
        self.heard_at = asyncio.get_running_loop().time()
        if isinstance(item, JsonRpcRequest):
            self._asked.append(item)
        self._inbox.push(item, _weight(item))
        return True

    def close(self) -> None:
        """Take nothing more in; what is there can still be taken."""
        self._inbox.close()

    def forget(self) -> None:
        """Take nothing more in, and let go of what is there."""
        self._inbox.clear()
        self._inbox.close()


class Trunk:
    """The one consumer of what a shared program says; whoever makes one has to `aclose` it."""

    def __init__(self, connection: AcpConnection) -> None:
        self.connection = connection
        self.strands: list[Strand] = []
        self._begun: dict[Future[Any], Strand] = {}
        self._sorting = asyncio.get_running_loop().create_task(self._sort())

    def strand(self) -> Strand:
        """Return a place for one more conversation."""
        strand = Strand(self)
        self.strands.append(strand)
        return strand

    async def begin(self, strand: Strand, method: str, params: Any) -> Future[Any]:
        """Ask on behalf of a conversation."""

        def note(future: Future[Any]) -> None:
            self._begun[future] = strand

        return await self.connection.begin(method, params, note=note)

    async def drop(self, strand: Strand) -> None:
        """Let a conversation go; what it is still asked for is answered, because others go on."""
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
        """Sort nothing any more."""
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
        """Yield whom a line is for."""
        if isinstance(item, Junk):
            # Too long to be read, and its beginning may still tell whose it was.
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
    """Takes from the inbox of one conversation."""

    def __init__(self, inbox: Inbox[Item]) -> None:
        self._inbox = inbox

    async def __anext__(self) -> Item:
        item = await self._inbox.take()
        if item is None:
            raise StopAsyncIteration
        return item


def _weight(item: Item) -> int:
    """Return how much an item counts against the room: what is kept of its line."""
    if isinstance(item, Junk):
        return len(item.head)
    return 0 if isinstance(item, AnswerMarker) else item.size


def _mentions(head: bytes, name: str | None) -> bool:
    return name is not None and msgspec.json.encode(name) in head


# What a program is told before its end.
Farewell = Callable[[], Awaitable[object]]
# Is shown each line as it came.
Listener = Callable[[bytes], None]
_LAST_WORDS: Final = 1.5
# The program of a session that has left it goes on without it.
LEFT: Final = ProcessExit(reason="left")


def share_key(
    turn: TurnInput, owner: str, start: AgentStart, capabilities: Mapping[str, Any]
) -> str:
    """Return what is the same for all who may share a program, and for nobody else."""
    given = asdict(start) | {"limits": asdict(start.limits)}
    # Who it is started for is not what it is started with.
    given["environment"] = {
        n: value for n, value in start.environment.items() if n != SESSION_VARIABLE
    }
    grants = turn.place.grants if turn.place is not None else ()
    whole = [owner, turn.agent.id, turn.agent.grant, grants, given, capabilities]
    # Hashed, because there are secrets in it.
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


class SharedProgram:
    """A program, and who sits in it; the last one who leaves ends it."""

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
        """Start a program that bears a mark of its own and not a session's; raises `NotStarted`."""
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
        """Tell whether one more may sit down."""
        return not self._is_closing and not self._is_gone

    def seat(self, listener: Listener | None) -> "Seat":
        """Return a place for one more."""
        seat = Seat(self, self._trunk.strand(), listener)
        self._seats.append(seat)
        return seat

    async def leave(
        self, seat: "Seat", farewell: Farewell | None, *, is_for_all: bool
    ) -> ProcessExit:
        """Let one go, and the program with the last; `is_for_all` ends it under all of them."""
        self._is_closing |= is_for_all or self._seats == [seat]
        try:
            if self._is_gone:
                # How it ended is the same for all of them: nobody ends it before it has said so.
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
    """One session's place in a shared program."""

    def __init__(self, shared: SharedProgram, strand: Strand, listener: Listener | None) -> None:
        self.shared = shared
        self.strand = strand
        self.listener = listener

    async def leave(self, farewell: Farewell | None, *, is_for_all: bool) -> ProcessExit:
        """Leave the program; a second time nothing happens any more."""
        return await self.shared.leave(self, farewell, is_for_all=is_for_all)


def _show(seats: list[Seat], line: bytes) -> None:
    """Show a line to all who want to see it."""
    for seat in seats:
        if seat.listener is not None:
            seat.listener(line)


class Shares:
    """The shared programs that live in this process."""

    def __init__(self) -> None:
        self._programs: dict[str, SharedProgram] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: str) -> asyncio.Lock:
        """Return what has to be held by whoever starts a program that may be shared."""
        return self._locks.setdefault(key, asyncio.Lock())

    def find(self, key: str) -> SharedProgram | None:
        """Return the program that one more may sit down in, if there is one."""
        found = self._programs.get(key)
        return found if found is not None and found.is_open else None

    def add(self, key: str, shared: SharedProgram) -> None:
        """Let others sit down in a program."""
        self._programs = {k: each for k, each in self._programs.items() if each.is_open}
        self._programs[key] = shared

    def has(self, birth: ProcessIdentity) -> bool:
        """Tell whether a program is one of those here, and others may sit in it."""
        return any(each.is_open and each.program.birth == birth for each in self._programs.values())
