"""A running agent program that speaks ACP on its pipes: its start, its stderr, its end.

Also the terminals that the agent has us run: their output within a bound, and their end.

"""

import asyncio
import logging
import os
import signal
from asyncio import Future, Task
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from holdfast.acp.rpc.connection import AcpConnection, ConnectionLimits
from holdfast.acp.rpc.framing import INTERNAL_ERROR, NOT_FOUND, JsonRpcError, RequestRefused
from holdfast.acp.rpc.redaction import NO_REDACTION, LineRedactor
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity
from holdfast.process.agent_child import AgentChild, AgentNotStarted, AgentStart, launch
from holdfast.process.process_table import SESSION_VARIABLE, boot_id, group_members, has_mark
from holdfast.process.streams import TailBuffer, fill_tail, last_bytes, strip_escapes

log = logging.getLogger(__name__)
# `exited` by itself, `ended` by us, the next two because we had to end it for that reason, and
# `lost` when nobody knows.
ExitReason: TypeAlias = Literal["exited", "ended", "stdout_closed", "stuck", "lost"]
STDERR_MOST: Final = 64 << 10
STDERR_SHOWN: Final = 4 << 10
_POLL_SECONDS: Final = 0.02
_REAP_SECONDS: Final = 2.0


class StopTimeouts(Struct, frozen=True, kw_only=True):
    """How long a program has, in seconds, at each step of its end."""

    farewell: float = 2.0
    closing: float = 2.0
    # With the 5 s of a cancel that was ignored all is over within ten, and not a moment later.
    terminating: float = 2.8
    killing: float = 2.0
    # After its exit somebody else may hold its output; so long that is listened to.
    last_words: float = 1.0


DEFAULT_TIMEOUTS: Final = StopTimeouts()
# Who has said so much that is no message, and no message yet, is no agent.
AGENT_LIMITS: Final = ConnectionLimits(noise_lines=100, noise_bytes=1 << 20)


class AgentProcess:
    """A running program. Whoever spawned it has to `end` it, even when it ended by itself."""

    def __init__(
        self, child: AgentChild, connection: AcpConnection, timeouts: StopTimeouts, mark: str
    ) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.birth = child.birth
        self.exited: Future[ProcessExit] = loop.create_future()
        self._child = child
        self._timeouts = timeouts
        self._mark = mark
        self._reason: ExitReason = "exited"
        self._stderr = TailBuffer(STDERR_MOST)
        # Read to its end all the time, because who complains into a full pipe hangs.
        self._hearing = loop.create_task(fill_tail(self._stderr, child.outputs[1]))
        self._watching = loop.create_task(self._watch())
        self._ending: Task[ProcessExit] | None = None

    @classmethod
    async def spawn(
        cls,
        start: AgentStart,
        *,
        timeouts: StopTimeouts = DEFAULT_TIMEOUTS,
        bounds: ConnectionLimits = AGENT_LIMITS,
        on_line: Callable[[bytes], None] | None = None,
        redactor: LineRedactor = NO_REDACTION,
    ) -> "AgentProcess":
        """Start a program and return when it runs; raises `NotStarted`."""
        child = await launch(start, is_talked_to=True)
        assert child.stdin is not None  # noqa: S101 — it is talked to
        connection = AcpConnection(
            child.outputs[0], child.stdin, bounds=bounds, on_line=on_line, redactor=redactor
        )
        return cls(child, connection, timeouts, start.environment.get(SESSION_VARIABLE, ""))

    @property
    def stderr_tail(self) -> str:
        """Return the last 4 KiB it complained, without colours and without secrets."""
        stderr_text = strip_escapes(self._stderr.text()).replace("\x00", "\ufffd")
        # Cut last: half a secret is not recognised.
        return last_bytes(self.connection.redactor.text(stderr_text), STDERR_SHOWN)

    async def end(self, *, farewell: Callable[[], Awaitable[object]] | None = None) -> ProcessExit:
        """End it and all that come from it, kindly first; a second call waits for the first.

        The farewell is said while it still listens; what that raises or takes too long is passed
        over. When cancelled it is ended all the same, and the cancellation is heard then.
        """
        ending = self._begin_end(farewell)
        is_cancelled = False
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError
        return ending.result()

    def _begin_end(self, farewell: Callable[[], Awaitable[object]] | None) -> Task[ProcessExit]:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(farewell))
        return self._ending

    async def _end(self, farewell: Callable[[], Awaitable[object]] | None) -> ProcessExit:
        child, timeouts = self._child, self._timeouts
        if self._reason == "exited" and not child.exited.done():
            self._reason = "ended"
        if farewell is not None and not child.exited.done():
            with suppress(Exception):
                async with asyncio.timeout(timeouts.farewell):
                    await farewell()
        self.connection.hang_up()
        await asyncio.wait([child.exited], timeout=timeouts.closing)
        child.terminate()
        await asyncio.wait([child.gone], timeout=timeouts.terminating)
        await child.kill_all(timeouts.killing)
        # Some say at their end what they had to say all the time.
        await asyncio.wait([self._hearing], timeout=timeouts.last_words)
        await self.connection.aclose()
        child.close()
        await asyncio.wait([self._watching, self._hearing])
        status = child.exited.result()
        if status is None:
            # Its keeper was killed, and could not tend to who was left.
            await reap(self.birth, self._mark)
        return process_exit(status, self._reason)

    async def _watch(self) -> None:
        """Tell of the exit, and end a program that lives but cannot be talked to."""
        child, timeouts = self._child, self._timeouts
        loop = asyncio.get_running_loop()
        silent = loop.create_task(self.connection.ended())
        either: list[Future[Any]] = [child.exited, silent]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.exited.done():
            # Most close their output by going, and are gone the next moment.
            await asyncio.wait([child.exited], timeout=timeouts.last_words)
        if not child.exited.done() and self._ending is None:
            self._reason = "stuck" if self.connection.lost == "stuck" else "stdout_closed"
            self._begin_end(None)
        await asyncio.wait([child.exited])
        # Whoever waited for it may have been cancelled, and it with them.
        if not self.exited.done():
            self.exited.set_result(process_exit(child.exited.result(), self._reason))
        await self.connection.listen(timeouts.last_words)
        self.connection.lose("exited")
        await silent


async def reap(birth: ProcessIdentity, mark: str) -> bool:
    """End what a former run of ours left of a program; `False` when nothing of it is there.

    `mark` is the value of `HOLDFAST_SESSION_ID`. The group is killed only when its number, start
    and mark prove that it is the same one.
    """
    if not _is_left_over(birth, mark):
        return False
    loop = asyncio.get_running_loop()
    until = loop.time() + _REAP_SECONDS
    while loop.time() < until and _is_left_over(birth, mark):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(birth.group, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)
    return True


def _is_left_over(birth: ProcessIdentity, mark: str) -> bool:
    """Tell whether somebody of the group proves that it is the one we started.

    The program itself may be gone: a group keeps its number until its last one is.
    """
    if birth.boot != boot_id() or not birth.started or birth.group <= 1 or not mark:
        return False
    found = list(group_members(birth.group))
    if any(each.pid == birth.pid and each.started != birth.started for each in found):
        return False
    return any(each.started >= birth.started and has_mark(each.pid, mark) for each in found)


def process_exit(status: int | None, reason: ExitReason) -> ProcessExit:
    """Return what a wait status says; without one nobody knows."""
    if status is None:
        return ProcessExit(reason="lost")
    if os.WIFSIGNALED(status):
        return ProcessExit(signal=os.WTERMSIG(status), reason=reason)
    return ProcessExit(code=os.WEXITSTATUS(status), reason=reason)


TERMINALS_MOST: Final = 16
TERMINAL_OUTPUT_MOST: Final = 1 << 20


class TerminalOutput(Struct, frozen=True, kw_only=True):
    """What a terminal shows: the newest of its output, and how it ended if it did."""

    text: str
    truncated: bool
    exit: ProcessExit | None = None


class _Terminal:
    """One command from its start to its last byte."""

    def __init__(self, child: AgentChild, output_most: int, timeouts: StopTimeouts) -> None:
        loop = asyncio.get_running_loop()
        self._child = child
        self._timeouts = timeouts
        self._ring = TailBuffer(output_most)
        self._hearing = loop.create_task(fill_tail(self._ring, child.outputs[0]))
        self._living = loop.create_task(self._live())
        self._ending: Task[None] | None = None

    def output(self) -> TerminalOutput:
        is_over = self._living.done()
        text = self._ring.text(is_over=is_over)
        return TerminalOutput(
            text=text.replace("\x00", "\ufffd"),
            truncated=self._ring.is_cut,
            exit=self._living.result() if is_over else None,
        )

    async def wait(self) -> ProcessExit:
        await asyncio.wait([self._living])
        return self._living.result()

    async def end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        # Ended to the end, whoever gives up waiting for it.
        await asyncio.shield(self._ending)

    async def _live(self) -> ProcessExit:
        """Wait for the exit; somebody else may hold the output, and is heard a moment longer."""
        await asyncio.wait([self._child.exited])
        await asyncio.wait([self._hearing], timeout=self._timeouts.last_words)
        return process_exit(
            self._child.exited.result(), "exited" if self._ending is None else "ended"
        )

    async def _end(self) -> None:
        child = self._child
        child.terminate()
        await asyncio.wait([child.gone], timeout=self._timeouts.terminating)
        await child.kill_all(self._timeouts.killing)
        await asyncio.wait([self._living])
        child.close()
        await asyncio.wait([self._hearing])


class Terminals:
    """The terminals of one session. An id that is not known, or not any more, is `Refused`."""

    def __init__(self, *, timeouts: StopTimeouts = DEFAULT_TIMEOUTS) -> None:
        self._timeouts = timeouts
        self._open: dict[str, _Terminal] = {}
        self._starting = 0
        self._last = 0
        self._is_closed = False

    async def create(self, start: AgentStart, *, output_most: int | None = None) -> str:
        """Start a command and return its id; the 17th, and one that cannot run, is `Refused`."""
        if len(self._open) + self._starting >= TERMINALS_MOST:
            raise _terminal_error(f"at most {TERMINALS_MOST} terminals at once; release one first")
        self._starting += 1
        try:
            child = await launch(start, is_talked_to=False)
        except AgentNotStarted as refused:
            raise _terminal_error(f"the command cannot be run: {refused.reason}") from None
        finally:
            self._starting -= 1
        most = (
            TERMINAL_OUTPUT_MOST
            if output_most is None
            else max(0, min(output_most, TERMINAL_OUTPUT_MOST))
        )
        terminal = _Terminal(child, most, self._timeouts)
        if self._is_closed:
            # Closed while it was started, so nobody else would end it.
            await terminal.end()
            raise _terminal_error("the session is ending")
        self._last += 1
        self._open[f"terminal-{self._last}"] = terminal
        return f"terminal-{self._last}"

    def output(self, id: str) -> TerminalOutput:
        """Return what it shows now."""
        return self._known(id).output()

    async def wait(self, id: str) -> ProcessExit:
        """Wait until it has ended; any number may wait."""
        return await self._known(id).wait()

    async def kill(self, id: str) -> None:
        """End it; what it showed stays to be read."""
        await self._known(id).end()

    async def release(self, id: str) -> None:
        """End it if it runs, and forget it."""
        terminal = self._known(id)
        del self._open[id]
        await terminal.end()

    async def aclose(self) -> None:
        """Release all, and start none any more."""
        self._is_closed = True
        terminals, self._open = self._open, {}
        await asyncio.gather(*(each.end() for each in terminals.values()))

    def _known(self, id: str) -> _Terminal:
        terminal = self._open.get(id)
        if terminal is None:
            raise RequestRefused(JsonRpcError(NOT_FOUND, "there is no such terminal"))
        return terminal


def _terminal_error(message: str) -> RequestRefused:
    return RequestRefused(JsonRpcError(INTERNAL_ERROR, message))
