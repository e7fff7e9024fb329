"""A JSON-RPC connection: requests in both directions, in the order of the lines.

Holds the requests of both sides that wait for an answer. Knows nothing of ACP's methods.

"""

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeAlias

from msgspec import Struct

from holdfast.acp.rpc.framing import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LONG,
    ConnectionLost,
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
from holdfast.acp.rpc.streams import (
    DEFAULT_LIMITS,
    ByteReader,
    ByteWriter,
    ConnectionLimits,
    Inbox,
)

log = logging.getLogger(__name__)


class _InboundRequest(Struct, eq=False):
    work: Task[Any] | None = None
    is_cancelled: bool = False


class PendingInbound:
    """What we owe, and who works on it; two requests with the same id are two debts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[JsonRpcRequest, _InboundRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request: object) -> bool:
        return request in self._open

    def owe(self, request: JsonRpcRequest) -> bool:
        """Take a request on; `False` when there are too many."""
        if len(self._open) >= self._most:
            return False
        self._open[request] = _InboundRequest()
        return True

    def pay(self, request: JsonRpcRequest) -> bool:
        """Count a request as answered; `False` when it was, or when nobody is there."""
        debt = self._open.pop(request, None)
        if debt is not None and debt.work is not None:
            # Answered by somebody else: nobody waits for this work any more.
            debt.work.cancel()
        return debt is not None

    def work(self, request: JsonRpcRequest, work: Coroutine[Any, Any, Any]) -> Task[Any] | None:
        """Begin to work on a request; nothing when it needs no answer any more."""
        debt = self._open.get(request)
        if debt is None or debt.work is not None:
            work.close()
            return None
        debt.work = asyncio.get_running_loop().create_task(work)
        if debt.is_cancelled:
            debt.work.cancel()
        return debt.work

    def cancel(self, params: Any) -> None:
        """Stop the work on what the other side does not want to know any more."""
        if not isinstance(params, dict) or "requestId" not in params:
            return
        unwanted = params["requestId"]
        for request, debt in self._open.items():
            if (type(request.id), request.id) == (type(unwanted), unwanted):
                debt.is_cancelled = True
                if debt.work is not None:
                    debt.work.cancel()

    def lose(self) -> None:
        """Stop all work: there is nobody left to be answered."""
        inbound, self._open = self._open, {}
        for debt in inbound.values():
            if debt.work is not None:
                debt.work.cancel()


async def run_handler(
    request: JsonRpcRequest, work: Task[Any], within: float | None
) -> JsonRpcReply:
    """Wait for the work, no longer than it has time, and return what is answered."""
    await asyncio.wait([work], timeout=within)
    is_late = work.cancel()
    await asyncio.wait([work])
    if is_late:
        log.warning("an answer to %s took longer than %s s", request.method, within)
        return JsonRpcReply(id=request.id, error=JsonRpcError(INTERNAL_ERROR, "it took too long"))
    if work.cancelled():
        return JsonRpcReply(id=request.id, error=JsonRpcError(CANCELLED, "cancelled"))
    trouble = work.exception()
    if isinstance(trouble, RequestRefused):
        return JsonRpcReply(id=request.id, error=trouble.error)
    if trouble is not None:
        log.error("an answer to %s failed", request.method, exc_info=trouble)
        return JsonRpcReply(id=request.id, error=JsonRpcError(INTERNAL_ERROR, "internal error"))
    return JsonRpcReply(id=request.id, result=work.result())


class PendingAnswer(Struct, frozen=True, eq=False):
    """An answer that waits for its place in the order of lines."""

    future: Future[Any]
    answer: JsonRpcReply | ConnectionLost

    def settle(self) -> None:
        """Tell whoever waits; one who gave up is passed over."""
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
    """Who waits for which answer; numbers count from 1."""

    def __init__(self) -> None:
        self._open: dict[int, _OutboundRequest] = {}
        self._last = 0

    def number(self, *, is_begun: bool) -> tuple[int, Future[Any]]:
        """Return the number of a new question, and what will hold its answer."""
        self._last += 1
        future: Future[Any] = asyncio.get_running_loop().create_future()
        # Looked at here, because whoever asked may have gone.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._open[self._last] = _OutboundRequest(future, is_begun)
        return self._last, future

    def drop(self, number: int) -> None:
        """Wait no longer for this answer."""
        self._open.pop(number, None)

    def find(self, reply: JsonRpcReply) -> int | None:
        """Return the number of the question that this answers, if it is open."""
        if reply.id is not None:
            # In Python true is the number one.
            known = type(reply.id) is not bool and _is_number(reply.id)
            return int(reply.id) if known and reply.id in self._open else None
        if reply.error is not None and len(self._open) == 1:
            # The other side could not even read the number.
            return next(iter(self._open))
        return None

    def settle(self, number: int, reply: JsonRpcReply) -> PendingAnswer | None:
        """Take an answer: give it to whoever waits, or return it where its place has to come."""
        question = self._open.pop(number)
        reached = PendingAnswer(question.future, reply)
        if question.is_begun:
            return reached
        reached.settle()
        return None

    def lose(self, lost: ConnectionLost) -> list[PendingAnswer]:
        """Tell all who wait that nothing will come; return what has to keep its place."""
        questions, self._open = self._open.values(), {}
        for each in questions:
            if not each.is_begun:
                PendingAnswer(each.future, lost).settle()
        return [PendingAnswer(each.future, lost) for each in questions if each.is_begun]


def _is_number(id: object) -> bool:
    return isinstance(id, int | float)


__all__ = [
    "AcpConnection",
    "AnswerMarker",
    "ByteReader",
    "ByteWriter",
    "ConnectionLimits",
    "ConnectionLost",
    "Item",
    "LossReason",
    "RequestRefused",
]
_CHUNK: Final = 1 << 16
_TICK: Final = 0.05
_CLOSE_SECONDS: Final = 1.0
# More than a pipe holds: what was said before an end has come by then, and who talks on is left.
_DRAIN_BYTES: Final = 4 << 20
# So many lines that are no messages, and answers to nothing, are shown one by one.
_SHOWN: Final = 20


class AnswerMarker(Struct, frozen=True, eq=False):
    """The place in the order of lines at which a begun request was answered.

    Its future is done when this is seen: with the result, `Refused` or `Lost`.
    """

    future: Future[Any]


Item: TypeAlias = JsonRpcRequest | JsonRpcNotification | AnswerMarker | Junk


class AcpConnection:
    """One side of a conversation. It needs a running loop, and reads from its first moment on.

    `on_line` is shown each line as it came, before anything is made of it, and of one that is too
    long the beginning. What is made of a line is the `censor`'s to say.
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
        self._inbox: Inbox[JsonRpcRequest | JsonRpcNotification | Junk | PendingAnswer] = Inbox(
            most=bounds.queued, most_bytes=bounds.queued_bytes
        )
        self._outbound = PendingOutbound()
        self._inbound = PendingInbound(bounds.open_requests)
        self._answering: set[Task[None]] = set()
        self._junk_lines = self._junk_bytes = self._unasked = 0
        self._is_greeted = False
        self._heard_at = loop.time()
        self._heard_bytes = 0
        self._lost: LossReason | None = None
        self._is_hung_up = False
        self._splitter = LineSplitter(bounds.line)
        self._reading = loop.create_task(self._read())

    @property
    def heard_at(self) -> float:
        """Return the loop's time of the last line, at first that of the beginning."""
        return self._heard_at

    @property
    def owed(self) -> int:
        """Return how many of their requests wait for our answer."""
        return len(self._inbound)

    def owes(self, request: JsonRpcRequest) -> bool:
        """Tell whether one of their requests waits for our answer."""
        return request in self._inbound

    @property
    def lost(self) -> LossReason | None:
        """Return why the other side is gone, if it is."""
        return self._lost

    async def request(self, method: str, params: Any, *, timeout: float | None = None) -> Any:
        """Ask, and wait for the answer: raises `Refused`, `Lost` or `TimeoutError`.

        The answer overtakes what waits in `incoming()`. Where the order matters, or where much may
        come before the answer and nobody else takes it, `begin`.
        """
        number, future = self._outbound.number(is_begun=False)
        try:
            async with asyncio.timeout(timeout):
                await self._send(JsonRpcRequest(id=number, method=method, params=params))
                return await future
        finally:
            self._outbound.drop(number)

    async def begin(
        self, method: str, params: Any, *, note: Callable[[Future[Any]], None] | None = None
    ) -> Future[Any]:
        """Ask, and return as soon as the question is sent; raises `Lost`.

        The future is done when `incoming()` has come to the answer, which it shows as `Answered`.
        Somebody has to take from `incoming()`, or it never is. `note` is shown the future first:
        the answer may be there before this returns.
        """
        number, future = self._outbound.number(is_begun=True)
        if note is not None:
            note(future)
        try:
            await self._send(JsonRpcRequest(id=number, method=method, params=params))
        except BaseException:
            self._outbound.drop(number)
            raise
        return future

    async def notify(self, method: str, params: Any) -> None:
        """Tell something that needs no answer; raises `Lost`."""
        await self._send(JsonRpcNotification(method=method, params=params))

    async def answer(self, request: JsonRpcRequest, result: Any) -> None:
        """Answer; a second answer to one request is not sent. Raises `Lost`."""
        await self._reply(request, JsonRpcReply(id=request.id, result=result))

    async def refuse(self, request: JsonRpcRequest, error: JsonRpcError) -> None:
        """Answer with an error; a second answer to one request is not sent. Raises `Lost`."""
        await self._reply(request, JsonRpcReply(id=request.id, error=error))

    def handle(
        self,
        request: JsonRpcRequest,
        work: Coroutine[Any, Any, Any],
        *,
        within: float | None = None,
    ) -> None:
        """Answer with what the work returns, whatever happens, while others go on.

        `Refused` becomes its error, any other exception and the end of its time `-32603` without
        details, and `$/cancel_request` of the other side cancels the work: `-32800`.
        """
        task = self._inbound.work(request, work)
        if task is not None:
            answering = asyncio.get_running_loop().create_task(
                self._run_handler(request, task, within)
            )
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    def incoming(self) -> AsyncIterator[Item]:
        """Yield what came, in the order of the lines, for one consumer at a time.

        Left early, it can be taken up again where it was left. It ends when the other side is gone
        and everything it said was taken. Of junk only the lines that were too long are shown.
        """
        return _Incoming(self._inbox)

    def ready(self) -> JsonRpcNotification | None:
        """Return what `incoming()` comes to next, if it has come and is a notification."""
        return self._inbox.ready(JsonRpcNotification)

    def answered(self) -> AnswerMarker | None:
        """Return what `incoming()` comes to next, if it has come and is the answer to a `begin`."""
        reached = self._inbox.ready(PendingAnswer)
        if reached is None:
            return None
        reached.settle()
        return AnswerMarker(reached.future)

    async def ended(self) -> LossReason:
        """Wait until nothing more can come, and return why."""
        await asyncio.wait([self._reading])
        return self._lost or "ended"

    def lose(self, reason: LossReason) -> None:
        """Give the other side up: nothing more is read, and whoever waits is told."""
        if self._lost is not None:
            return
        self._lost = reason
        self._reading.cancel()
        for reached in self._outbound.lose(ConnectionLost(reason)):
            self._inbox.push(reached)
        self._inbox.close()
        self._inbound.lose()

    async def listen(self, seconds: float) -> None:
        """Wait for the last words; the time stands still while they come, or nobody takes them.

        To be asked when nobody is there any more who could end the line that was begun.
        """
        enough = self._heard_bytes + _DRAIN_BYTES
        while seconds > 0 and not self._reading.done():
            before = self._heard_bytes
            await asyncio.wait([self._reading], timeout=min(_TICK, seconds))
            is_coming = before < self._heard_bytes < enough
            seconds -= 0 if is_coming or self._inbox.is_full else _TICK
        # Whoever holds the output of one who is gone would keep its last line from us.
        with suppress(OSError, ConnectionLost):
            await self._take_all(self._splitter.rest())

    def hang_up(self) -> None:
        """Close our output only; what the other side still says is heard."""
        self._is_hung_up = True
        self._writer.close()

    async def aclose(self) -> None:
        """Close both directions; handlers are cancelled, whoever waits gets `Lost`."""
        self.lose("closed")
        self.hang_up()
        await asyncio.gather(self._reading, *self._answering, return_exceptions=True)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def _send(self, message: Message) -> None:
        if self._lost is not None or self._is_hung_up:
            raise ConnectionLost(self._lost or "closed")
        try:
            self._writer.write(render_message(message))
            async with asyncio.timeout(self._bounds.write_seconds):
                await self._writer.drain()
        except TimeoutError:
            self.lose("stuck")
            raise ConnectionLost("stuck") from None
        except OSError:
            # Not given up for reading: the last words may still be on their way.
            raise ConnectionLost("ended") from None

    async def _reply(self, request: JsonRpcRequest, reply: JsonRpcReply) -> None:
        if self._inbound.pay(request):
            await self._send(reply)

    async def _run_handler(
        self, request: JsonRpcRequest, work: Task[Any], within: float | None
    ) -> None:
        with suppress(ConnectionLost):
            await self._reply(request, await run_handler(request, work, within))

    async def _read(self) -> None:
        try:
            while chunk := await self._reader.read(_CHUNK):
                self._heard_bytes += len(chunk)
                await self._take_all(self._splitter.feed(chunk))
            # A message that was cut off is no JSON, so this one is whole or skipped.
            await self._take_all(self._splitter.rest())
        except (OSError, ConnectionLost):
            log.debug("nothing more is read")
        finally:
            self.lose("ended")

    async def _take_all(self, lines: list[bytes | Junk]) -> None:
        for line in lines:
            # Before anything is made of it: what was counted as come has to be taken by somebody.
            await self._inbox.room()
            await self._take(line)

    async def _take(self, line: bytes | Junk) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if isinstance(line, Junk):
            junk = self.redactor.shown(line)
            self._show(junk.head)
            await self._skip(junk)
            return
        self._show(line)
        if len(line) <= LONG:
            found = self.redactor.read(line)
        else:
            # Beside all others; those that come after it wait, because the order counts.
            found = await asyncio.to_thread(self.redactor.read, line)
        if isinstance(found, Junk):
            await self._skip(self.redactor.shown(found))
            return
        self._is_greeted = True
        if isinstance(found, JsonRpcReply):
            self._settle(found, len(line))
        elif isinstance(found, JsonRpcRequest):
            await self._owe(found)
        elif found.method == "$/cancel_request":
            self._inbound.cancel(found.params)
        else:
            self._inbox.push(found, found.size)

    def _show(self, line: bytes) -> None:
        if self._on_line is not None:
            self._on_line(line)

    def _settle(self, reply: JsonRpcReply, size: int) -> None:
        number = self._outbound.find(reply)
        if number is None:
            self._unasked += 1
            if self._unasked <= _SHOWN:
                log.info("an answer to nothing that was asked is dropped (id %.100r)", reply.id)
            return
        reached = self._outbound.settle(number, reply)
        if reached is not None:
            self._inbox.push(reached, size)

    async def _owe(self, request: JsonRpcRequest) -> None:
        if self._inbound.owe(request):
            self._inbox.push(request, request.size)
            return
        # Waited for: who asks on and on without reading is not read either.
        error = JsonRpcError(INTERNAL_ERROR, "too many requests wait for an answer")
        await self._send(JsonRpcReply(id=request.id, error=error))

    async def _skip(self, junk: Junk) -> None:
        self._junk_lines += 1
        self._junk_bytes += junk.size
        if self._junk_lines <= _SHOWN:
            log.warning("a line that is no message (%s, %d bytes): %r", *_describe_junk(junk))
        if not self._is_greeted and self._is_noise():
            self.lose("noise")
            raise ConnectionLost("noise")
        if junk.kind == "array":
            await self._send(
                JsonRpcReply(error=JsonRpcError(INVALID_REQUEST, "batches are not spoken here"))
            )
        if junk.kind == "too_long":
            self._inbox.push(junk, len(junk.head))

    def _is_noise(self) -> bool:
        lines, size = self._bounds.noise_lines, self._bounds.noise_bytes
        return (lines is not None and self._junk_lines >= lines) or (
            size is not None and self._junk_bytes >= size
        )


class _Incoming(AsyncIterator[Item]):
    """Takes from the inbox; an answer is given to whoever waits when its place has come."""

    def __init__(
        self, inbox: Inbox[JsonRpcRequest | JsonRpcNotification | Junk | PendingAnswer]
    ) -> None:
        self._inbox = inbox

    async def __anext__(self) -> Item:
        item = await self._inbox.take()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, PendingAnswer):
            item.settle()
            return AnswerMarker(item.future)
        return item


def _describe_junk(junk: Junk) -> tuple[str, int, bytes]:
    return junk.kind, junk.size, junk.head
