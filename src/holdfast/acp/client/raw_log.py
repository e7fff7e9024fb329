"""The raw log of an agent's lines; written in the background, so that it never delays a turn."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey

log = logging.getLogger(__name__)

# Writes lines into the active zone of a session; `False` if there is none.
RawLogWriter = Callable[[SessionKey, Sequence[bytes]], Awaitable[bool]]

# How long lines are batched, unless a turn ends.
_BATCH_SECONDS: Final = 0.25
# Batch size limit, because the search for secrets must not block the event loop for long.
_BATCH_BYTES: Final = 256 << 10
# Pause after each batch as a multiple of its duration: the log uses at most a fifth of the time.
_PAUSE_FACTOR: Final = 4.0
LINE_MOST: Final = 1 << 20
WAITING_MOST: Final = 8 << 20
_CLOSE_SECONDS: Final = 1.0


class RawLog:
    """The raw log of one process; the owner must `aclose` it."""

    def __init__(self, writer: RawLogWriter, key: SessionKey) -> None:
        self._writer = writer
        self._key = key
        self._waiting: list[bytes] = []
        self._size = 0
        self._left_out = 0
        self._is_closing = False
        self._has_lines = asyncio.Event()
        self._must_flush = asyncio.Event()
        self._writing = asyncio.get_running_loop().create_task(self._write())

    def add(self, line: bytes) -> None:
        """Buffer a line; never blocks, and drops the line when the buffer is full."""
        if self._writing.done():
            return
        if len(line) > LINE_MOST or self._size + len(line) > WAITING_MOST:
            self._left_out += 1
            return
        self._waiting.append(line)
        self._size += len(line)
        self._has_lines.set()

    def flush(self) -> None:
        """Write the buffered lines now, because the turn has ended."""
        if self._waiting:
            self._must_flush.set()

    async def aclose(self) -> None:
        """Write the remaining lines within a short timeout, and stop."""
        self._is_closing = True
        self._has_lines.set()
        self._must_flush.set()
        await asyncio.wait({self._writing}, timeout=_CLOSE_SECONDS)
        if not self._writing.done():
            self._writing.cancel()
            await asyncio.wait({self._writing})
        if self._left_out:
            log.info("%d lines of an agent were dropped from its zone", self._left_out)

    async def _write(self) -> None:
        while self._waiting or not self._is_closing:
            await self._has_lines.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BATCH_SECONDS):
                    await self._must_flush.wait()
            self._must_flush.clear()
            while self._waiting:
                began = _now()
                if not await self._write_batch(self._take_batch()):
                    return
                if self._waiting and not self._is_closing:
                    await asyncio.sleep((_now() - began) * _PAUSE_FACTOR)
            self._has_lines.clear()

    def _take_batch(self) -> list[bytes]:
        """Remove and return the next batch of lines, at least one."""
        size = count = 0
        for line in self._waiting:
            if count and size + len(line) > _BATCH_BYTES:
                break
            size, count = size + len(line), count + 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._size -= size
        return taken

    async def _write_batch(self, lines: Sequence[bytes]) -> bool:
        """Write lines; `False` when the session has no active zone, so that writing stops."""
        try:
            return await self._writer(self._key, lines)
        except HoldfastError as error:
            # Logged once, because the same storage error is reported by all other writers, too.
            if not self._left_out:
                log.warning("lines of an agent were not written to its zone: %s", error.message)
            self._left_out += len(lines)
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
