"""MCP over the input and output of a process that we start, and that does not outlive us.

Framed here and not by the protocol's package, because a line needs an end and an environment a
list. Imported where it is used, because that package is.
"""

import asyncio
import logging
import os
import signal
from asyncio import StreamReader, StreamWriter, TaskGroup
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from msgspec import Struct

log = logging.getLogger(__name__)

LINE_LARGEST: Final = 8 << 20
_LAST_WORDS: Final = 0.5
_STAYS: Final = 1.0
_GRACE: Final = 2.0


class Program(Struct, frozen=True, kw_only=True):
    """What to start, where, and all that it will know of its surroundings."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


@asynccontextmanager
async def over_pipes(program: Program, ended: Callable[[], None]) -> AsyncIterator[MessageStream]:
    """Start the process and yield both directions; `ended` is called when it says no more.

    Leaving ends the process and its whole group, in every case.
    """
    exited = asyncio.Event()
    process = await _started(program, exited)
    stdin, stdout = cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout)
    try:
        async with create_client_server_memory_streams() as (ours, theirs), TaskGroup() as tasks:
            reading = tasks.create_task(_read(stdout, theirs, ended))
            writing = tasks.create_task(_write(stdin, theirs))
            watching = tasks.create_task(_watch(exited, reading, ended))
            yield ours
            for task in (reading, writing, watching):
                task.cancel()
    finally:
        await _end(process, stdin)


class _Protocol(SubprocessStreamProtocol):
    """Tells at once when the process is gone, even if a child of it holds its output open."""

    def __init__(self, exited: asyncio.Event) -> None:
        super().__init__(limit=LINE_LARGEST, loop=asyncio.get_running_loop())
        self._exited = exited

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()


async def _started(program: Program, exited: asyncio.Event) -> Process:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: _Protocol(exited),
        *program.argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=dict(program.environment),
        cwd=program.folder,
        start_new_session=True,
    )
    return Process(transport, protocol, loop)


async def _watch(
    exited: asyncio.Event, reading: asyncio.Task[None], ended: Callable[[], None]
) -> None:
    await exited.wait()
    # Its last words may still be on their way.
    await asyncio.wait({reading}, timeout=_LAST_WORDS)
    ended()


async def _read(stdout: StreamReader, theirs: MessageStream, ended: Callable[[], None]) -> None:
    to_us = theirs[1]
    try:
        async with to_us:
            while True:
                line = await stdout.readuntil(b"\n")
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    # Some print what belongs on the other output; it is no message.
                    continue
                await to_us.send(SessionMessage(message))
    except asyncio.LimitOverrunError:
        log.warning("an MCP server sent a line of more than %d bytes; it is ended", LINE_LARGEST)
    except Exception:  # noqa: BLE001 — it ended, or nobody listens any more: the same to us
        log.debug("an MCP server says no more")
    finally:
        ended()


async def _write(stdin: StreamWriter, theirs: MessageStream) -> None:
    with suppress(OSError):
        async for each in theirs[0]:
            if isinstance(each, Exception):
                continue
            line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(line.encode() + b"\n")
            await stdin.drain()


async def _end(process: Process, stdin: StreamWriter) -> None:
    """Close its input, ask it to go, then leave it no choice; its children go with it."""
    try:
        stdin.close()
        if not await _gone_within(process, _STAYS):
            _signal(process, signal.SIGTERM)
            await _gone_within(process, _GRACE)
    finally:
        _signal(process, signal.SIGKILL)
        _forget(process)


async def _gone_within(process: Process, seconds: float) -> bool:
    # Not by waiting for its pipes: a child of it may hold them open.
    deadline = asyncio.get_running_loop().time() + seconds
    while process.returncode is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    # To the group that it leads, which lives as long as one of its children does.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _forget(process: Process) -> None:
    # The pipes stay open while anybody holds them, and only the transport can close ours.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
