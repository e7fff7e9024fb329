"""A JSON-RPC connection: requests in both directions, processed in line order, with back-pressure.

Tracks the pending requests of both sides. Knows nothing about ACP methods.
"""

import asyncio
import logging
import sys
from asyncio import Future, Task
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeAlias

from msgspec import Struct

from holdfast.acp.rpc.framing import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LINE_LIMIT,
    LONG,
    ByteReader,
    ByteWriter,
    ConnectionLost,
    Id,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcReply,
    JsonRpcRequest,
    Junk,
    LineSplitter,
    LossReason,
    Message,
    RequestRefused,
    render_message,
)
from holdfast.acp.rpc.redaction import NO_REDACTION, LineRedactor

log = logging.getLogger(__name__)
_CHUNK: Final = 1 << 16
_TICK: Final = 0.05
_CLOSE_SECONDS: Final = 1.0
# Larger than a pipe buffer: everything written before an exit fits. A process that goes on
# writing is cut off here.
_DRAIN_BYTES: Final = 4 << 20
# Log at most this many junk lines and unexpected replies, so that they cannot flood the log.
_SHOWN: Final = 20


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of a connection.

    Above `noise_*`, junk before the first message means that the peer is probably not an agent.
    """

    line: int = LINE_LIMIT
    queued: int = 1024
    queued_bytes: int = 16 << 20
    open_requests: int = 64
    write_seconds: float = 30.0
    noise_lines: int = sys.maxsize
    noise_bytes: int = sys.maxsize


DEFAULT_LIMITS: Final = ConnectionLimits()


class _InboundRequest(Struct, eq=False):
    work: Task[Any] | None = None
    is_cancelled: bool = False


class PendingInbound:
    """Inbound requests without an answer, and their handler tasks.

    Requests are compared by identity: two with the same id are two entries.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[JsonRpcRequest, _InboundRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: JsonRpcRequest) -> bool:
        """Register a request; return `False` when the limit of open requests is reached."""
        if len(self._open) >= self._most:
            return False
        self._open[request] = _InboundRequest()
        return True

    def remove(self, request: JsonRpcRequest) -> bool:
        """Mark a request as answered; return `False` when it is not open any more."""
        entry = self._open.pop(request, None)
        if entry is not None and entry.work is not None:
            # The request was answered by another path, so the result of this task is not needed.
            entry.work.cancel()
        return entry is not None

    def work(self, request: JsonRpcRequest, work: Coroutine[Any, Any, Any]) -> Task[Any] | None:
        """Start the handler task of a request; return `None` when it is not open any more."""
        entry = self._open.get(request)
        if entry is None or entry.work is not None:
            work.close()
            return None
        entry.work = asyncio.get_running_loop().create_task(work)
        if entry.is_cancelled:
            entry.work.cancel()
        return entry.work

    def cancel(self, params: Any) -> None:
        """Cancel the handlers of the request that `$/cancel_request` names."""
        if not isinstance(params, dict) or "requestId" not in params:
            return
        unwanted = params["requestId"]
        for request, entry in self._open.items():
            if (type(request.id), request.id) == (type(unwanted), unwanted):
                entry.is_cancelled = True
                if entry.work is not None:
                    entry.work.cancel()

    def lose(self) -> None:
        """Cancel all handlers, because the connection is gone."""
        inbound, self._open = self._open, {}
        for entry in inbound.values():
            if entry.work is not None:
                entry.work.cancel()


class AnswerMarker(Struct, frozen=True, eq=False):
    """The position in the line order at which a request sent with `begin` was answered.

    Its future is done when the connection yields it: with the result, `RequestRefused` or
    `ConnectionLost`.
    """

    future: Future[Any]
    answer: JsonRpcReply | ConnectionLost

    def resolve(self) -> None:
        """Resolve the future; does nothing when the caller has cancelled it."""
        if self.future.done():
            return
        if isinstance(self.answer, ConnectionLost):
            self.future.set_exception(self.answer)
        elif self.answer.error is not None:
            self.future.set_exception(RequestRefused(self.answer.error))
        else:
            self.future.set_result(self.answer.result)


class _OutboundRequest(Struct, frozen=True, eq=False):
    future: Future[Any]
    is_begun: bool


class PendingOutbound:
    """Outbound requests without a reply; ids count from 1."""

    def __init__(self) -> None:
        self._open: dict[Id, _OutboundRequest] = {}
        self._last = 0

    def number(self, *, is_begun: bool) -> tuple[int, Future[Any]]:
        """Return the id of a new request and the future that will hold its reply."""
        self._last += 1
        future: Future[Any] = asyncio.get_running_loop().create_future()
        # Retrieve the exception here: asyncio would log it if the caller is gone.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._open[self._last] = _OutboundRequest(future, is_begun)
        return self._last, future

    def drop(self, number: int) -> None:
        """Stop waiting for this reply."""
        self._open.pop(number, None)

    def take(self, reply: JsonRpcReply) -> _OutboundRequest | None:
        """Remove and return the request that a reply belongs to, if there is one."""
        if reply.id is not None:
            # `True == 1` in Python, so a boolean id would match request 1.
            is_number = type(reply.id) in {int, float}
            return self._open.pop(reply.id, None) if is_number else None
        if reply.error is not None and len(self._open) == 1:
            # An error without an id: the peer could not parse the id of our only open request.
            return self._open.popitem()[1]
        return None

    def take_all(self) -> list[_OutboundRequest]:
        """Remove and return all requests, because the connection is gone."""
        requests, self._open = self._open, {}
        return list(requests.values())


Item: TypeAlias = JsonRpcRequest | JsonRpcNotification | AnswerMarker | Junk


class Inbox:
    """A bounded queue between one producer and one consumer; sizes are bytes of the line.

    It is full when either limit is reached, so the last item may exceed the byte limit.
    """

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._is_closed = False
        self._brought = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Return whether the producer has to wait."""
        return len(self._items) >= self._most or self._bytes >= self._most_bytes

    async def room(self) -> None:
        """Wait until the queue is not full; called by the producer."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def push(self, item: Item, size: int = 0) -> None:
        """Add an item, even when the queue is full."""
        self._items.append((item, size))
        self._bytes += size
        self._brought.set()

    def close(self) -> None:
        """Accept no more items; queued items can still be taken."""
        self._is_closed = True
        self._brought.set()

    async def wait(self) -> bool:
        """Wait until an item is queued or `wake` is called; `False` when closed and empty."""
        if not self._items and not self._is_closed:
            self._brought.clear()
            await self._brought.wait()
        return bool(self._items) or not self._is_closed

    def wake(self) -> None:
        """Make the consumer's `wait` return."""
        self._brought.set()

    def peek(self) -> Item | None:
        """Return the oldest item, if there is one."""
        return self._items[0][0] if self._items else None

    def pop(self) -> Item | None:
        """Remove and return the oldest item, if there is one."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self._bytes -= size
        self._taken.set()
        return item


class AcpConnection:
    """One end of a JSON-RPC connection. Needs a running event loop and starts reading at once.

    `on_line` receives each raw line before it is parsed; of a line above the limit it receives the
    beginning. The `redactor` parses lines and removes secrets from them.
    """

    def __init__(
        self,
        reader: ByteReader,
        writer: ByteWriter,
        *,
        bounds: ConnectionLimits = DEFAULT_LIMITS,
        on_line: Callable[[bytes], None] | None = None,
        redactor: LineRedactor = NO_REDACTION,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self._on_line = on_line
        self.redactor = redactor
        self._inbox: Inbox = Inbox(most=bounds.queued, most_bytes=bounds.queued_bytes)
        self._outbound = PendingOutbound()
        self._inbound = PendingInbound(bounds.open_requests)
        self._answering: set[Task[None]] = set()
        self._junk_lines = self._junk_bytes = self._unasked = 0
        self._has_received_message = False
        # The loop time of the last line received; initially the time of construction.
        self.heard_at = loop.time()
        self._heard_bytes = 0
        # Why the connection was lost, if it was.
        self.lost: LossReason | None = None
        self._is_hung_up = False
        self._splitter = LineSplitter(bounds.line)
        self._reading = loop.create_task(self._read())

    @property
    def unanswered(self) -> int:
        """Return how many inbound requests wait for our answer."""
        return len(self._inbound)

    async def request(self, method: str, params: Any) -> Any:
        """Send a request and wait for the reply.

        Raises `RequestRefused` or `ConnectionLost`. The reply overtakes items that
        are queued in `incoming()`. Use `begin` where the order matters, or where nothing else
        consumes `incoming()`: a full inbox stops the reader (back-pressure), which is a deadlock.
        """
        number, future = self._outbound.number(is_begun=False)
        try:
            await self._send(JsonRpcRequest(id=number, method=method, params=params))
            return await future
        finally:
            self._outbound.drop(number)

    async def begin(self, method: str, params: Any) -> Future[Any]:
        """Send a request and return the future of its reply; raises `ConnectionLost`.

        The future is resolved when `incoming()` reaches the reply, which it yields as an
        `AnswerMarker`; without a consumer of `incoming()` it is never resolved.
        """
        number, future = self._outbound.number(is_begun=True)
        try:
            await self._send(JsonRpcRequest(id=number, method=method, params=params))
        except BaseException:
            self._outbound.drop(number)
            raise
        return future

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification; raises `ConnectionLost`."""
        await self._send(JsonRpcNotification(method=method, params=params))

    async def answer(self, request: JsonRpcRequest, result: Any) -> None:
        """Send the result of a request; ignores a second answer. Raises `ConnectionLost`."""
        await self._reply(request, JsonRpcReply(id=request.id, result=result))

    async def refuse(self, request: JsonRpcRequest, error: JsonRpcError) -> None:
        """Send an error reply; ignores a second answer. Raises `ConnectionLost`."""
        await self._reply(request, JsonRpcReply(id=request.id, error=error))

    def handle(self, request: JsonRpcRequest, work: Coroutine[Any, Any, Any]) -> None:
        """Run a handler concurrently and always answer with its result or an error.

        `RequestRefused` becomes its own error. Any other exception becomes `-32603` without
        details. `$/cancel_request` cancels the handler and is answered with `-32800`.
        """
        task = self._inbound.work(request, work)
        if task is not None:
            answering = asyncio.get_running_loop().create_task(self._finish(request, task))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    def incoming(self) -> AsyncIterator[Item]:
        """Yield items in line order, for one consumer at a time.

        A consumer that stops early can continue later at the same place. The iterator ends when the
        connection is lost and the inbox is empty. Of the junk it yields only lines above the limit.
        """
        return _Incoming(self)

    async def wait(self) -> bool:
        """Wait until an item is queued or `wake` is called; `False` when no more can arrive."""
        return await self._inbox.wait()

    def wake(self) -> None:
        """Make the consumer's `wait` return, because it has something else to do."""
        self._inbox.wake()

    def next(self) -> Item | None:
        """Return the next item of `incoming()` if one is queued."""
        item = self._inbox.pop()
        if isinstance(item, AnswerMarker):
            item.resolve()
        return item

    def next_notification(self) -> JsonRpcNotification | None:
        """Return the next item if it is queued and is a notification."""
        item = self._inbox.peek()
        if not isinstance(item, JsonRpcNotification):
            return None
        self._inbox.pop()
        return item

    def is_answered(self, future: Future[Any]) -> bool:
        """Return whether the next item is queued and is the peer's reply to a `begin`."""
        item = self._inbox.peek()
        return (
            isinstance(item, AnswerMarker)
            and item.future is future
            and isinstance(item.answer, JsonRpcReply)
        )

    async def wait_ended(self) -> LossReason:
        """Wait until nothing more can be read, and return why."""
        await asyncio.wait([self._reading])
        return self.lost or "ended"

    def lose(self, reason: LossReason) -> None:
        """Give up the connection: stop reading and fail everything that waits for a reply."""
        if self.lost is not None:
            return
        self.lost = reason
        self._reading.cancel()
        for request in self._outbound.take_all():
            self._deliver(request, ConnectionLost(reason))
        self._inbox.close()
        self._inbound.lose()

    async def listen(self, seconds: float) -> None:
        """Read remaining output for so many seconds after the process has exited.

        The time does not count while bytes arrive or while the inbox is full. Call it only when the
        process has exited and cannot complete a partial line.
        """
        enough = self._heard_bytes + _DRAIN_BYTES
        while seconds > 0 and not self._reading.done():
            before = self._heard_bytes
            await asyncio.wait([self._reading], timeout=min(_TICK, seconds))
            is_coming = before < self._heard_bytes < enough
            seconds -= 0 if is_coming or self._inbox.is_full else _TICK
        # A child process may hold the pipe open, so EOF may never flush the last partial line.
        with suppress(OSError, ConnectionLost):
            await self._take_all(self._splitter.rest())

    def hang_up(self) -> None:
        """Close our output only; input is still read."""
        self._is_hung_up = True
        self._writer.close()

    async def aclose(self) -> None:
        """Close both directions; cancel handlers, fail pending requests with `ConnectionLost`."""
        self.lose("closed")
        self.hang_up()
        await asyncio.gather(self._reading, *self._answering, return_exceptions=True)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def _send(self, message: Message) -> None:
        if self.lost is not None or self._is_hung_up:
            raise ConnectionLost(self.lost or "closed")
        try:
            self._writer.write(render_message(message))
            async with asyncio.timeout(self._bounds.write_seconds):
                await self._writer.drain()
        except TimeoutError:
            self.lose("stuck")
            raise ConnectionLost("stuck") from None
        except OSError:
            # The read side stays open, because the last lines may still be in the pipe.
            raise ConnectionLost("ended") from None

    async def _reply(self, request: JsonRpcRequest, reply: JsonRpcReply) -> None:
        if self._inbound.remove(request):
            await self._send(reply)

    async def _finish(self, request: JsonRpcRequest, work: Task[Any]) -> None:
        """Wait for a handler, and send its result or an error."""
        await asyncio.wait([work])
        with suppress(ConnectionLost):
            if work.cancelled():
                await self.refuse(request, JsonRpcError(CANCELLED, "cancelled"))
            elif isinstance(trouble := work.exception(), RequestRefused):
                await self.refuse(request, trouble.error)
            elif trouble is not None:
                log.error("the handler of %s failed", request.method, exc_info=trouble)
                await self.refuse(request, JsonRpcError(INTERNAL_ERROR, "internal error"))
            else:
                await self.answer(request, work.result())

    async def _read(self) -> None:
        try:
            while chunk := await self._reader.read(_CHUNK):
                self._heard_bytes += len(chunk)
                await self._take_all(self._splitter.feed(chunk))
            # A truncated message is not valid JSON, so it is skipped as junk.
            await self._take_all(self._splitter.rest())
        except (OSError, ConnectionLost):
            log.debug("the connection is not read any more")
        finally:
            self.lose("ended")

    async def _take_all(self, lines: list[bytes | Junk]) -> None:
        for line in lines:
            # Before parsing, because a parsed line changes state and must then fit into the inbox.
            await self._inbox.room()
            await self._take(line)

    async def _take(self, line: bytes | Junk) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if isinstance(line, Junk):
            junk = self.redactor.for_display(line)
            self._show(junk.head)
            await self._skip(junk)
            return
        self._show(line)
        if len(line) <= LONG:
            found = self.redactor.read(line)
        else:
            # In a thread, to keep the event loop free. Later lines wait, because the order matters.
            found = await asyncio.to_thread(self.redactor.read, line)
        if isinstance(found, Junk):
            await self._skip(self.redactor.for_display(found))
            return
        self._has_received_message = True
        if isinstance(found, JsonRpcReply):
            self._resolve_reply(found, len(line))
        elif isinstance(found, JsonRpcRequest):
            await self._accept(found)
        elif found.method == "$/cancel_request":
            self._inbound.cancel(found.params)
        else:
            self._inbox.push(found, found.size)

    def _show(self, line: bytes) -> None:
        if self._on_line is not None:
            self._on_line(line)

    def _resolve_reply(self, reply: JsonRpcReply, size: int) -> None:
        request = self._outbound.take(reply)
        if request is not None:
            self._deliver(request, reply, size)
            return
        self._unasked += 1
        if self._unasked <= _SHOWN:
            log.info("a response without a matching request is dropped (id %.100r)", reply.id)

    def _deliver(
        self, request: _OutboundRequest, answer: JsonRpcReply | ConnectionLost, size: int = 0
    ) -> None:
        """Resolve the future of a request now, or when the consumer reaches its place."""
        reached = AnswerMarker(request.future, answer)
        if request.is_begun:
            self._inbox.push(reached, size)
        else:
            reached.resolve()

    async def _accept(self, request: JsonRpcRequest) -> None:
        if self._inbound.add(request):
            self._inbox.push(request, request.size)
            return
        # Awaited for back-pressure: a peer that sends requests without reading replies is not read.
        error = JsonRpcError(INTERNAL_ERROR, "too many requests are pending")
        await self._send(JsonRpcReply(id=request.id, error=error))

    async def _skip(self, junk: Junk) -> None:
        self._junk_lines += 1
        self._junk_bytes += junk.size
        if self._junk_lines <= _SHOWN:
            log.warning(
                "a line is not a valid message (%s, %d bytes): %r", junk.kind, junk.size, junk.head
            )
        is_noise = (
            self._junk_lines >= self._bounds.noise_lines
            or self._junk_bytes >= self._bounds.noise_bytes
        )
        if is_noise and not self._has_received_message:
            self.lose("noise")
            raise ConnectionLost("noise")
        if junk.kind == "array":
            await self._send(
                JsonRpcReply(error=JsonRpcError(INVALID_REQUEST, "batches are not supported"))
            )
        if junk.kind == "too_long":
            self._inbox.push(junk, len(junk.head))


class _Incoming(AsyncIterator[Item]):
    def __init__(self, connection: AcpConnection) -> None:
        self._connection = connection

    async def __anext__(self) -> Item:
        while (item := self._connection.next()) is None:
            if not await self._connection.wait():
                raise StopAsyncIteration
        return item
