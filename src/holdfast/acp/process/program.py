"""A program that speaks ACP on its input and output: its start, its complaints, its end.

Who it is for and what is said to it is `runtime.py`'s to know, how it is started `launching.py`'s.
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

from holdfast.acp.process.children import Child, launch
from holdfast.acp.process.identities import MARK, boot, is_marked, members
from holdfast.acp.process.launching import Start
from holdfast.acp.process.rings import Ring, fill, newest, plain
from holdfast.acp.transport.censors import CARELESS, Censor
from holdfast.acp.transport.connection import Bounds, Connection
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity

log = logging.getLogger(__name__)

# `exited` by itself, `ended` by us, the next two because we had to end it for that reason, and
# `lost` when nobody knows.
ExitReason: TypeAlias = Literal["exited", "ended", "stdout_closed", "stuck", "lost"]

COMPLAINTS_MOST: Final = 64 << 10
COMPLAINTS_SHOWN: Final = 4 << 10
_LOOK: Final = 0.02
_GONE_WITHIN: Final = 2.0


class Patience(Struct, frozen=True, kw_only=True):
    """How long a program has, in seconds, at each step of its end."""

    farewell: float = 2.0
    closing: float = 2.0
    # With the 5 s of a cancel that was ignored all is over within ten, and not a moment later.
    terminating: float = 2.8
    killing: float = 2.0
    # After its exit somebody else may hold its output; so long that is listened to.
    last_words: float = 1.0


PATIENT: Final = Patience()
# Who has said so much that is no message, and no message yet, is no agent.
AGENT_BOUNDS: Final = Bounds(noise_lines=100, noise_bytes=1 << 20)


class Program:
    """A running program. Whoever spawned it has to `end` it, even when it ended by itself."""

    def __init__(self, child: Child, connection: Connection, patience: Patience, mark: str) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.birth = child.birth
        self.exited: Future[ProcessExit] = loop.create_future()
        self._child = child
        self._patience = patience
        self._mark = mark
        self._reason: ExitReason = "exited"
        self._complaints = Ring(COMPLAINTS_MOST)
        # Read to its end all the time, because who complains into a full pipe hangs.
        self._hearing = loop.create_task(fill(self._complaints, child.outputs[1]))
        self._watching = loop.create_task(self._watch())
        self._ending: Task[ProcessExit] | None = None

    @classmethod
    async def spawn(
        cls,
        start: Start,
        *,
        patience: Patience = PATIENT,
        bounds: Bounds = AGENT_BOUNDS,
        on_line: Callable[[bytes], None] | None = None,
        censor: Censor = CARELESS,
    ) -> "Program":
        """Start a program and return when it runs; raises `NotStarted`."""
        child = await launch(start, is_talked_to=True)
        assert child.stdin is not None  # noqa: S101 — it is talked to
        connection = Connection(
            child.outputs[0], child.stdin, bounds=bounds, on_line=on_line, censor=censor
        )
        return cls(child, connection, patience, start.environment.get(MARK, ""))

    @property
    def stderr_tail(self) -> str:
        """Return the last 4 KiB it complained, without colours and without secrets."""
        told = plain(self._complaints.text()).replace("\x00", "\ufffd")
        # Cut last: half a secret is not recognised.
        return newest(self.connection.censor.text(told), COMPLAINTS_SHOWN)

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
        child, patience = self._child, self._patience
        if self._reason == "exited" and not child.exited.done():
            self._reason = "ended"
        if farewell is not None and not child.exited.done():
            with suppress(Exception):
                async with asyncio.timeout(patience.farewell):
                    await farewell()
        self.connection.hang_up()
        await asyncio.wait([child.exited], timeout=patience.closing)
        child.terminate()
        await asyncio.wait([child.gone], timeout=patience.terminating)
        await child.quell(patience.killing)
        # Some say at their end what they had to say all the time.
        await asyncio.wait([self._hearing], timeout=patience.last_words)
        await self.connection.aclose()
        child.close()
        await asyncio.wait([self._watching, self._hearing])
        status = child.exited.result()
        if status is None:
            # Its keeper was killed, and could not tend to who was left.
            await reap(self.birth, self._mark)
        return exit_of(status, self._reason)

    async def _watch(self) -> None:
        """Tell of the exit, and end a program that lives but cannot be talked to."""
        child, patience = self._child, self._patience
        loop = asyncio.get_running_loop()
        silent = loop.create_task(self.connection.ended())
        either: list[Future[Any]] = [child.exited, silent]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.exited.done():
            # Most close their output by going, and are gone the next moment.
            await asyncio.wait([child.exited], timeout=patience.last_words)
        if not child.exited.done() and self._ending is None:
            self._reason = "stuck" if self.connection.lost == "stuck" else "stdout_closed"
            self._begin_end(None)
        await asyncio.wait([child.exited])
        # Whoever waited for it may have been cancelled, and it with them.
        if not self.exited.done():
            self.exited.set_result(exit_of(child.exited.result(), self._reason))
        await self.connection.listen(patience.last_words)
        self.connection.lose("exited")
        await silent


async def reap(birth: ProcessIdentity, mark: str) -> bool:
    """End what a former run of ours left of a program; `False` when nothing of it is there.

    `mark` is the value of `HOLDFAST_SESSION_ID`. The group is killed only when its number, start
    and mark prove that it is the same one.
    """
    if not _is_left(birth, mark):
        return False
    loop = asyncio.get_running_loop()
    until = loop.time() + _GONE_WITHIN
    while loop.time() < until and _is_left(birth, mark):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(birth.group, signal.SIGKILL)
        await asyncio.sleep(_LOOK)
    return True


def _is_left(birth: ProcessIdentity, mark: str) -> bool:
    """Tell whether somebody of the group proves that it is the one we started.

    The program itself may be gone: a group keeps its number until its last one is.
    """
    if birth.boot != boot() or not birth.started or birth.group <= 1 or not mark:
        return False
    found = list(members(birth.group))
    if any(each.pid == birth.pid and each.started != birth.started for each in found):
        return False
    return any(each.started >= birth.started and is_marked(each.pid, mark) for each in found)


def exit_of(status: int | None, reason: ExitReason) -> ProcessExit:
    """Return what a wait status says; without one nobody knows."""
    if status is None:
        return ProcessExit(reason="lost")
    if os.WIFSIGNALED(status):
        return ProcessExit(signal=os.WTERMSIG(status), reason=reason)
    return ProcessExit(code=os.WEXITSTATUS(status), reason=reason)
