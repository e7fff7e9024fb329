"""Connection limit, derived from RLIMIT_NOFILE, and the memory budget of responses.

Also has the raw responses for a full server and for malformed requests.
"""

import asyncio
import resource
from collections import Counter
from functools import cache
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from holdfast.domain.errors import Code, HoldfastError, Invalid, LimitReached, Unavailable
from holdfast.domain.ids import TokenId
from holdfast.domain.tokens import Caller
from holdfast.http.errors import error_response
from holdfast.http.responses import encode_json
from holdfast.http.security import SECURITY_HEADERS

CONNECTIONS_MOST: Final = 4096
# File descriptors reserved for the store, for subprocesses and for other uses.
RESERVED_FILES: Final = 256
CONNECTIONS_LEAST: Final = 64
RETRY_SECONDS: Final = 5
# From this size on, a response counts against the budget and is written in chunks.
LARGE: Final = 64 << 10
# Budget of responses that have not been read by the client: per token, and in total.
CALLER_BYTES: Final = 24 << 20
TOTAL_BYTES: Final = 64 << 20
# Longer than the send timeout of a reader that stopped reading.
WAIT_SECONDS: Final = 25.0
WAITING_MOST: Final = 16
# Responses of unknown size that are read at the same time; the store has few readers, and short
# queries need them too.
STARTING_MOST: Final = 2


@cache
def connection_limit() -> int:
    """Return the connection limit of one process, derived from RLIMIT_NOFILE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        CONNECTIONS_MOST
        if soft == resource.RLIM_INFINITY
        else min(CONNECTIONS_MOST, max(CONNECTIONS_LEAST, soft - RESERVED_FILES))
    )


def raw_response(error: HoldfastError) -> bytes:
    """Return the bytes of the last response on a connection whose request was not parsed."""
    answer = error_response(error)
    body = encode_json(answer.content)
    headers = {
        **SECURITY_HEADERS,
        **answer.headers,
        "content-type": answer.media_type,
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
    return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", body])


BAD_REQUEST: Final = raw_response(
    Invalid(
        Code.INVALID_REQUEST,
        "This is not a valid HTTP/1.1 request: it is malformed, too large, too slow, or ambiguous.",
    )
)
TOO_MANY_CONNECTIONS: Final = raw_response(
    Unavailable(
        Code.SYSTEM_LIMIT,
        "Too many connections are open; close some, or retry later.",
        {"retry_after": RETRY_SECONDS},
    )
)


class ResponseBudget:
    """Memory budget of responses that are being sent."""

    def __init__(self) -> None:
        self._of: Counter[TokenId | None] = Counter()
        self._all = 0
        self._waiting = 0
        self._freed = asyncio.Event()
        # One at a time: several encoders would only compete for the interpreter lock.
        self.encoding: Final = asyncio.Semaphore(1)
        # Limits how many responses are read before their size is known and reserved.
        self.starting: Final = asyncio.Semaphore(STARTING_MOST)
        # Limits how many large responses produce their next chunk at the same time.
        self.making: Final = asyncio.Semaphore(2)
        # For content that must be read completely before its size is known.
        self.reading: Final = asyncio.Semaphore(2)

    @property
    def held(self) -> int:
        """Return how many bytes are reserved now."""
        return self._all

    def take(self, caller: Caller | None, size: int, *, always: bool = False) -> "Reservation":
        """Reserve bytes for a caller, or refuse; with `always` the reservation never fails."""
        if not always and not self._fits(caller, size):
            raise _budget_exceeded()
        who = caller.token_id if caller else None
        self._of[who] += size
        self._all += size
        return Reservation(self, who, size)

    def require(self, caller: Caller | None) -> None:
        """Refuse a caller whose unread responses have used up the budget."""
        if not self._fits(caller, LARGE):
            raise _budget_exceeded()

    def require_turn(self, caller: Caller | None) -> None:
        """Refuse a caller whose budget is used up while too many responses wait for theirs."""
        own = self._of[caller.token_id if caller else None]
        if own + LARGE > CALLER_BYTES and self._waiting >= WAITING_MOST:
            raise _budget_exceeded()

    async def wait(self, caller: Caller | None, size: int) -> "Reservation":
        """Reserve bytes as soon as they are free; refuse after a timeout or when too many wait."""
        if self._fits(caller, size) or self._waiting >= WAITING_MOST:
            return self.take(caller, size)
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._fits(caller, size):
                    await self._freed.wait()
        except TimeoutError:
            raise _budget_exceeded() from None
        finally:
            self._waiting -= 1
        return self.take(caller, size)

    def release(self, who: TokenId | None, size: int) -> None:
        """Return bytes to the budget."""
        self._of[who] -= size
        if self._of[who] <= 0:
            del self._of[who]
        self._all -= size
        self._freed.set()
        self._freed = asyncio.Event()

    def _fits(self, caller: Caller | None, size: int) -> bool:
        own = self._of[caller.token_id if caller else None]
        # A response that is larger than the budget is admitted alone.
        is_own = own == 0 or own + size <= CALLER_BYTES
        return is_own and (self._all == 0 or self._all + size <= TOTAL_BYTES)


class Reservation:
    """A reservation of bytes in the budget, until it is released."""

    def __init__(self, response_budget: ResponseBudget, who: TokenId | None, size: int) -> None:
        self._budget = response_budget
        self._who = who
        self._size = size

    def release(self) -> None:
        """Return the bytes to the budget; idempotent."""
        size, self._size = self._size, 0
        if size:
            self._budget.release(self._who, size)


def _budget_exceeded() -> LimitReached:
    return LimitReached(
        Code.ANSWER_LIMIT,
        "Too many large responses are being sent; read or cancel the others, request less "
        "with `limit`, or retry later.",
        {"retry_after": RETRY_SECONDS},
    )
