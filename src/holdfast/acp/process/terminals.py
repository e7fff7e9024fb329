"""Commands that the agent has run by us: their output within a bound, and their end.

Whether a command may run, and in which folder, was decided before.
"""

import asyncio
from asyncio import Task
from typing import Final

from msgspec import Struct

from holdfast.acp.process.children import Child, launch
from holdfast.acp.process.launching import NotStarted, Start
from holdfast.acp.process.program import PATIENT, Patience, exit_of
from holdfast.acp.process.rings import Ring, fill
from holdfast.acp.transport.framing import INTERNAL_ERROR, NOT_FOUND, RpcError
from holdfast.acp.transport.losses import Refused
from holdfast.domain.agent_processes import ProcessExit

AT_ONCE: Final = 16
OUTPUT_MOST: Final = 1 << 20


class Output(Struct, frozen=True, kw_only=True):
    """What a terminal shows: the newest of its output, and how it ended if it did."""

    text: str
    truncated: bool
    exit: ProcessExit | None = None


class _Terminal:
    """One command from its start to its last byte."""

    def __init__(self, child: Child, output_most: int, patience: Patience) -> None:
        loop = asyncio.get_running_loop()
        self._child = child
        self._patience = patience
        self._ring = Ring(output_most)
        self._hearing = loop.create_task(fill(self._ring, child.outputs[0]))
        self._living = loop.create_task(self._live())
        self._ending: Task[None] | None = None

    def output(self) -> Output:
        is_over = self._living.done()
        text = self._ring.text(is_over=is_over)
        return Output(
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
        await asyncio.wait([self._hearing], timeout=self._patience.last_words)
        return exit_of(self._child.exited.result(), "exited" if self._ending is None else "ended")

    async def _end(self) -> None:
        child = self._child
        child.terminate()
        await asyncio.wait([child.gone], timeout=self._patience.terminating)
        await child.quell(self._patience.killing)
        await asyncio.wait([self._living])
        child.close()
        await asyncio.wait([self._hearing])


class Terminals:
    """The terminals of one session. An id that is not known, or not any more, is `Refused`."""

    def __init__(self, *, patience: Patience = PATIENT) -> None:
        self._patience = patience
        self._open: dict[str, _Terminal] = {}
        self._starting = 0
        self._last = 0
        self._is_closed = False

    async def create(self, start: Start, *, output_most: int | None = None) -> str:
        """Start a command and return its id; the 17th, and one that cannot run, is `Refused`."""
        if len(self._open) + self._starting >= AT_ONCE:
            raise _refusal(f"at most {AT_ONCE} terminals at once; release one first")
        self._starting += 1
        try:
            child = await launch(start, is_talked_to=False)
        except NotStarted as refused:
            raise _refusal(f"the command cannot be run: {refused.reason}") from None
        finally:
            self._starting -= 1
        most = OUTPUT_MOST if output_most is None else max(0, min(output_most, OUTPUT_MOST))
        terminal = _Terminal(child, most, self._patience)
        if self._is_closed:
            # Closed while it was started, so nobody else would end it.
            await terminal.end()
            raise _refusal("the session is ending")
        self._last += 1
        self._open[f"terminal-{self._last}"] = terminal
        return f"terminal-{self._last}"

    def output(self, id: str) -> Output:
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
            raise Refused(RpcError(NOT_FOUND, "there is no such terminal"))
        return terminal


def _refusal(message: str) -> Refused:
    return Refused(RpcError(INTERNAL_ERROR, message))
