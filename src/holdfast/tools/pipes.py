"""MCP over the input and output of a process that we start, and that does not outlive us.

Framed here and not by the protocol's package, because a line needs an end. Imported where it is
used, because that package is. How a process is started and ended is `launcher.py`'s.
"""

import asyncio
import logging
from asyncio import StreamReader, StreamWriter, TaskGroup
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, cast

from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from holdfast.domain.text import visible
from holdfast.domain.tools import ResultCode
from holdfast.tools.children import FUSE, Child, NotStarted, Order
from holdfast.tools.launcher import Launcher
from holdfast.tools.outputs import Kept
from holdfast.tools.patience import to_its_end
from holdfast.tools.tool import ToolTrouble

log = logging.getLogger(__name__)

LINE_LARGEST: Final = 8 << 20
# Of what a server complains about so much is kept: its first words and its last.
COMPLAINTS_MOST: Final = 16 << 10
_LAST_WORDS: Final = 0.5
_STAYS: Final = 1.0


class Listener(Protocol):
    """Who wants to know what becomes of a server."""

    def heard(self, trouble: ToolTrouble) -> None:
        """Be told why it could not be started."""

    def ended(self) -> None:
        """Be told that it says no more."""


@asynccontextmanager
async def over_pipes(
    launcher: Launcher, order: Order, listener: Listener
) -> AsyncIterator[MessageStream]:
    """Start the process and yield both directions.

    Leaving ends the process and all that come from it, in every case; so does our own death.
    """
    process = _Process(await launcher.start(order, limit=LINE_LARGEST, is_heard=True), order)
    stdin, stdout = process.streams
    try:
        async with create_client_server_memory_streams() as (ours, theirs), TaskGroup() as tasks:
            reading = tasks.create_task(_read(stdout, theirs, listener))
            writing = tasks.create_task(_write(stdin, theirs))
            watching = tasks.create_task(_watch(process, reading, listener))
            yield ours
            for task in (reading, writing, watching):
                task.cancel()
    finally:
        await to_its_end(process.end(listener), stop=process.child.stop)


class _Process:
    """A server from its start to its end, and what it complained about meanwhile."""

    def __init__(self, child: Child, order: Order) -> None:
        self.child = child
        self.streams = cast(StreamWriter, child.stdin), cast(StreamReader, child.stdout)
        self.gone = asyncio.ensure_future(child.ended())
        self._name = visible(order.argv[0])
        self._complaints = Kept(COMPLAINTS_MOST)
        stderr = cast(StreamReader, child.stderr)
        # Read to its end all the time, because who complains into a full pipe hangs.
        self._hearing = asyncio.ensure_future(self._complaints.fill(stderr))

    async def end(self, listener: Listener) -> None:
        """Close its input, ask it to go, then leave it no choice."""
        self.streams[0].close()
        await asyncio.wait([self.gone], timeout=_STAYS)
        if not self.gone.done():
            self.child.stop()
            await asyncio.wait([self.gone], timeout=FUSE)
        await self.child.close()
        await asyncio.wait([self.gone])
        if isinstance(refused := self.gone.exception(), NotStarted):
            listener.heard(_not_started(refused))
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        if complaints := self._complaints.text().strip():
            log.info("an MCP server (%s) complained: %s", self._name, visible(complaints))


async def _watch(process: _Process, reading: asyncio.Task[None], listener: Listener) -> None:
    await asyncio.wait([process.gone])
    # Its last words may still be on their way.
    await asyncio.wait([reading], timeout=_LAST_WORDS)
    listener.ended()


async def _read(stdout: StreamReader, theirs: MessageStream, listener: Listener) -> None:
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
        listener.ended()


async def _write(stdin: StreamWriter, theirs: MessageStream) -> None:
    with suppress(OSError):
        async for each in theirs[0]:
            if isinstance(each, Exception):
                continue
            line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(line.encode() + b"\n")
            await stdin.drain()


def _not_started(refused: NotStarted) -> ToolTrouble:
    if refused.stage.endswith("-changed"):
        why = "its program or its folder was replaced while it was started"
    elif refused.stage == "start":
        why = f"its command cannot be run: {refused.reason}"
    else:
        why = f"it could not be confined here: {refused}"
    return ToolTrouble(ResultCode.UNAVAILABLE, why)
