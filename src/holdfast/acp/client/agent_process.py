"""A running agent process that speaks ACP on its pipes: start, stderr and end.

Also the terminals that we run for the agent: bounded output and their end.

"""

import asyncio
import logging
import os
import signal
from asyncio import Future, Task
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from holdfast.acp.client.agent_command import AgentStart, child_order
from holdfast.acp.rpc.connection import AcpConnection, ConnectionLimits
from holdfast.acp.rpc.framing import INTERNAL_ERROR, NOT_FOUND, JsonRpcError, RequestRefused
from holdfast.acp.rpc.redaction import NO_REDACTION, LineRedactor
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity
from holdfast.process.cancellation import run_to_end
from holdfast.process.child import ChildNotStarted, SupervisedChild, start_child
from holdfast.process.process_table import SESSION_VARIABLE, boot_id, group_members, has_mark
from holdfast.process.streams import TailBuffer, last_bytes, strip_escapes
from holdfast.process.supervisor.path_survey import ASIDE

log = logging.getLogger(__name__)
# Sends the last messages to a process before it is ended.
ClosingMessages: TypeAlias = Callable[[], Awaitable[object]]
# `exited` by itself, `ended` by us, `stdout_closed` or `stuck` when we ended it for that reason,
# `lost` when the exit status is unknown.
ExitReason: TypeAlias = Literal["exited", "ended", "stdout_closed", "stuck", "lost"]
STDERR_MOST: Final = 64 << 10
STDERR_SHOWN: Final = 4 << 10
_POLL_SECONDS: Final = 0.02
_REAP_SECONDS: Final = 2.0


class StopTimeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of each step of ending a process, in seconds."""

    closing_messages: float = 2.0
    closing: float = 2.0
    # With the 5 s of an ignored cancel, the whole end stays below ten seconds.
    terminating: float = 2.8
    killing: float = 2.0
    # Another process may hold the pipe open after the exit; output is read this much longer.
    drain_seconds: float = 1.0


DEFAULT_TIMEOUTS: Final = StopTimeouts()
# A program that writes this much without any message does not speak ACP.
AGENT_LIMITS: Final = ConnectionLimits(noise_lines=100, noise_bytes=1 << 20)


class AgentProcess:
    """A running agent process. The owner must call `end`, even after it has exited."""

    def __init__(
        self, child: SupervisedChild, connection: AcpConnection, timeouts: StopTimeouts, mark: str
    ) -> None:
        assert child.stderr is not None  # noqa: S101 — it has its own pipe
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.birth = ProcessIdentity(
            pid=child.pid, group=child.pid, started=child.start_time, boot=boot_id()
        )
        self.exited: Future[ProcessExit] = loop.create_future()
        self._child = child
        self._timeouts = timeouts
        self._mark = mark
        self._reason: ExitReason = "exited"
        self._stderr = TailBuffer(STDERR_MOST)
        # Drained all the time, because a process blocks on a full stderr pipe (deadlock).
        self._hearing = loop.create_task(self._stderr.fill(child.stderr))
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
        """Start a program and return once it runs; raises `ChildNotStarted`."""
        child = await _start(start, timeouts, has_input=True)
        assert child.stdin is not None  # noqa: S101 — it has input
        connection = AcpConnection(
            child.stdout, child.stdin, bounds=bounds, on_line=on_line, redactor=redactor
        )
        return cls(child, connection, timeouts, start.environment.get(SESSION_VARIABLE, ""))

    @property
    def stderr_tail(self) -> str:
        """Return the last 4 KiB of stderr, without escape sequences and secrets."""
        stderr_text = strip_escapes(self._stderr.text()).replace("\x00", "\ufffd")
        # Truncated after the redaction, because half a secret would not be recognised.
        return last_bytes(self.connection.redactor.text(stderr_text), STDERR_SHOWN)

    async def end(self, *, closing_messages: ClosingMessages | None = None) -> ProcessExit:
        """End the process and its descendants, gracefully first; a second call waits for the first.

        `closing_messages` runs while the process still reads; its errors and timeout are ignored.
        On cancellation the end is completed first, then `CancelledError` is raised.
        """
        return await run_to_end(self._begin_end(closing_messages))

    def _begin_end(self, closing_messages: ClosingMessages | None) -> Task[ProcessExit]:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(closing_messages))
        return self._ending

    async def _end(self, closing_messages: ClosingMessages | None) -> ProcessExit:
        child, timeouts = self._child, self._timeouts
        if self._reason == "exited" and not child.exited.done():
            self._reason = "ended"
        if closing_messages is not None and not child.exited.done():
            with suppress(Exception):
                async with asyncio.timeout(timeouts.closing_messages):
                    await closing_messages()
        self.connection.hang_up()
        await asyncio.wait([child.exited], timeout=timeouts.closing)
        child.stop()
        await asyncio.wait([child.gone], timeout=timeouts.terminating)
        await child.end(timeouts.killing)
        # Some processes flush their output only when they exit.
        await asyncio.wait([self._hearing], timeout=timeouts.drain_seconds)
        await self.connection.aclose()
        await child.close()
        await asyncio.wait([self._watching, self._hearing])
        if child.moved_aside:
            log.warning("what an agent created to redirect git was renamed: %s", child.moved_aside)
        status = child.exited.result()
        if status is None:
            # The supervising process was killed and could not end the descendants.
            await reap(self.birth, self._mark)
        return process_exit(status, self._reason)

    async def _watch(self) -> None:
        """Report the exit, and end a process that runs but cannot be reached any more."""
        child, timeouts = self._child, self._timeouts
        loop = asyncio.get_running_loop()
        silent = loop.create_task(self.connection.wait_ended())
        either: list[Future[Any]] = [child.exited, silent]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.exited.done():
            # Usually stdout closes because the process is exiting, so wait briefly for that.
            await asyncio.wait([child.exited], timeout=timeouts.drain_seconds)
        if not child.exited.done() and self._ending is None:
            self._reason = "stuck" if self.connection.lost == "stuck" else "stdout_closed"
            self._begin_end(None)
        await asyncio.wait([child.exited])
        # A cancelled waiter may have cancelled the future with it.
        if not self.exited.done():
            self.exited.set_result(process_exit(child.exited.result(), self._reason))
        await self.connection.listen(timeouts.drain_seconds)
        self.connection.lose("exited")
        await silent


async def _start(start: AgentStart, timeouts: StopTimeouts, *, has_input: bool) -> SupervisedChild:
    """Start a program and return once it runs; raises `ChildNotStarted`.

    Without input, standard output and standard error share one pipe.
    """
    stdin, stderr = (PIPE, PIPE) if has_input else (DEVNULL, STDOUT)
    order = child_order(start, timeouts.terminating)
    child = await start_child(order, start.sandbox.means, stdin=stdin, stderr=stderr)
    try:
        await child.wait_started()
    except BaseException:
        await child.close(0)
        raise
    return child


async def reap(birth: ProcessIdentity, mark: str) -> bool:
    """Kill what a previous run has left of a process group; `False` when nothing is left.

    `mark` is the value of `HOLDFAST_SESSION_ID`. The group is killed only when process group id,
    start time and mark prove its identity, because ids are reused.
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
    """Return whether a member of the group proves that we started the group.

    The leader may be gone: a group id stays in use until its last member exits.
    """
    if birth.boot != boot_id() or not birth.started or birth.group <= 1 or not mark:
        return False
    found = list(group_members(birth.group))
    if any(each.pid == birth.pid and each.started != birth.started for each in found):
        return False
    return any(each.started >= birth.started and has_mark(each.pid, mark) for each in found)


def process_exit(status: int | None, reason: ExitReason) -> ProcessExit:
    """Return the exit that a wait status describes; `lost` without a status."""
    if status is None:
        return ProcessExit(reason="lost")
    if os.WIFSIGNALED(status):
        return ProcessExit(signal=os.WTERMSIG(status), reason=reason)
    return ProcessExit(code=os.WEXITSTATUS(status), reason=reason)


TERMINALS_MOST: Final = 16
TERMINAL_OUTPUT_MOST: Final = 1 << 20


class TerminalOutput(Struct, frozen=True, kw_only=True):
    """The latest output of a terminal, and its exit if it has ended."""

    text: str
    truncated: bool
    exit: ProcessExit | None = None


class _Terminal:
    """One command, from its start to its last byte of output."""

    def __init__(
        self,
        child: SupervisedChild,
        output_most: int,
        timeouts: StopTimeouts,
        *,
        keeps_background: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._child = child
        self._keeps_background = keeps_background
        self._timeouts = timeouts
        self._ring = TailBuffer(output_most)
        self._hearing = loop.create_task(self._ring.fill(child.stdout))
        self._living = loop.create_task(self._live())
        self._ending: Task[None] | None = None

    def output(self) -> TerminalOutput:
        is_over = self._living.done()
        text = self._ring.text(is_over=is_over) + "".join(
            f"{path} is protected: the new file was renamed to end in {ASIDE}\n"
            for path in self._child.moved_aside
        )
        return TerminalOutput(
            text=text.replace("\x00", "\ufffd"),
            truncated=self._ring.dropped > 0,
            exit=self._living.result() if is_over else None,
        )

    async def wait(self) -> ProcessExit:
        await asyncio.wait([self._living])
        return self._living.result()

    async def end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        # Shielded, so that the end completes even when a waiter is cancelled.
        await asyncio.shield(self._ending)

    async def _live(self) -> ProcessExit:
        """Wait for the exit, then briefly for output of others that hold the pipe open."""
        await asyncio.wait([self._child.exited])
        if not self._keeps_background:
            # What it left running is ended, and protected paths that it created are renamed.
            with suppress(ChildNotStarted):
                await self._child.wait_ended()
        await asyncio.wait([self._hearing], timeout=self._timeouts.drain_seconds)
        return process_exit(
            self._child.exited.result(), "exited" if self._ending is None else "ended"
        )

    async def _end(self) -> None:
        child = self._child
        child.stop()
        await asyncio.wait([child.gone], timeout=self._timeouts.terminating)
        await child.end(self._timeouts.killing)
        await asyncio.wait([self._living])
        await child.close()
        await asyncio.wait([self._hearing])


class Terminals:
    """The terminals of one session. An unknown or released id raises `RequestRefused`."""

    def __init__(self, *, timeouts: StopTimeouts = DEFAULT_TIMEOUTS) -> None:
        self._timeouts = timeouts
        self._open: dict[str, _Terminal] = {}
        self._starting = 0
        self._last = 0
        self._is_closed = False

    async def create(self, start: AgentStart, *, output_most: int | None = None) -> str:
        """Start a command and return its id; raises `RequestRefused` at the limit or on failure."""
        if len(self._open) + self._starting >= TERMINALS_MOST:
            raise _terminal_error(f"at most {TERMINALS_MOST} terminals at once; release one first")
        self._starting += 1
        try:
            child = await _start(start, self._timeouts, has_input=False)
        except ChildNotStarted as refused:
            raise _terminal_error(f"the command cannot be run: {refused.reason}") from None
        finally:
            self._starting -= 1
        most = (
            TERMINAL_OUTPUT_MOST
            if output_most is None
            else max(0, min(output_most, TERMINAL_OUTPUT_MOST))
        )
        terminal = _Terminal(child, most, self._timeouts, keeps_background=start.keeps_background)
        if self._is_closed:
            # Closed during the start, so `aclose` did not see this terminal.
            await terminal.end()
            raise _terminal_error("the session is ending")
        self._last += 1
        self._open[f"terminal-{self._last}"] = terminal
        return f"terminal-{self._last}"

    def output(self, id: str) -> TerminalOutput:
        """Return the current output."""
        return self._require_terminal(id).output()

    async def wait(self, id: str) -> ProcessExit:
        """Wait for the exit; allows any number of waiters."""
        return await self._require_terminal(id).wait()

    async def kill(self, id: str) -> None:
        """End the command; its output stays readable."""
        await self._require_terminal(id).end()

    async def release(self, id: str) -> None:
        """End the command if it runs, and remove it."""
        terminal = self._require_terminal(id)
        del self._open[id]
        await terminal.end()

    async def aclose(self) -> None:
        """Release all terminals and start no more."""
        self._is_closed = True
        terminals, self._open = self._open, {}
        await asyncio.gather(*(each.end() for each in terminals.values()))

    def _require_terminal(self, id: str) -> _Terminal:
        terminal = self._open.get(id)
        if terminal is None:
            raise RequestRefused(JsonRpcError(NOT_FOUND, "unknown terminal"))
        return terminal


def _terminal_error(message: str) -> RequestRefused:
    return RequestRefused(JsonRpcError(INTERNAL_ERROR, message))
