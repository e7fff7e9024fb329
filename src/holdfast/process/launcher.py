"""The one way to start a process: confined, bounded in time and output, and never left behind.

What a child may reach is `sandbox.py`'s to say, what it is told `environments.py`'s.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.process import landlock as proces_landlock
from holdfast.process import seccomp as proces_seccomp
from holdfast.process.cancellation import run_to_end
from holdfast.process.child import (
    KILL_SECONDS,
    ChildNotStarted,
    ChildOrder,
    SupervisedChild,
    start_child,
)
from holdfast.process.sandbox import (
    Confinement,
    Means,
    Namespaces,
    SandboxStrength,
    can_limit_processes,
    describe_strength,
)
from holdfast.process.streams import OutputBuffer

OUTPUT_MOST: Final = 4 << 20
_DRAIN: Final = 1.0
_CHUNK: Final = 1 << 18


class CommandResult(Struct, frozen=True, kw_only=True):
    """How a command came out; death by signal n is the code 128 + n."""

    exit_code: int
    output: OutputBuffer
    errors: OutputBuffer
    duration_ms: int
    timed_out: bool
    # Protected paths that it had made, moved aside when it ended.
    moved_aside: tuple[str, ...] = ()

    @property
    def stdout(self) -> str:
        """Return what it printed."""
        return self.output.text()

    @property
    def stderr(self) -> str:
        """Return what it complained about."""
        return self.errors.text()


class Launcher:
    """Starts children with the means of this system, which it finds out once."""

    def __init__(self, means: Means | None = None) -> None:
        self._means = means
        self._probing = asyncio.Lock()

    async def means(self) -> Means:
        """Return what this system can do."""
        if self._means is None:
            async with self._probing:
                if self._means is None:
                    self._means = await _probe_means()
        return self._means

    async def strength(self) -> SandboxStrength:
        """Say what holds here and what is weaker."""
        return describe_strength(await self.means())

    async def run(
        self, order: ChildOrder, *, time_limit: float, output_most: int = OUTPUT_MOST
    ) -> CommandResult:
        """Run a command to its end, which the time limit brings about.

        When cancelled it is ended first, with all that come from it.
        """
        run = _Run(order, await self.means(), output_most)
        return await run_to_end(run.whole(time_limit), stop=run.stop)

    async def start(
        self, order: ChildOrder, *, limit: int = _CHUNK, is_heard: bool = False
    ) -> SupervisedChild:
        """Start a child that lives on and can be talked to.

        `limit` bounds a line of its output. Its complaints go nowhere unless they are to be heard,
        and then somebody has to listen all the time. Whoever started it has to `close` it.
        """
        stderr = PIPE if is_heard else DEVNULL
        return await start_child(order, await self.means(), stdin=PIPE, stderr=stderr, limit=limit)


async def _start_piped(order: ChildOrder, means: Means) -> SupervisedChild:
    return await start_child(order, means, stdin=DEVNULL, stderr=PIPE, limit=_CHUNK)


class _Run:
    """One command from its start to its last byte."""

    def __init__(self, order: ChildOrder, means: Means, output_most: int) -> None:
        self._order = order
        self._means = means
        self._outputs = (OutputBuffer(output_most), OutputBuffer(output_most))
        self._child: SupervisedChild | None = None
        self._is_late = False
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True
        if self._child is not None:
            self._child.stop()

    async def whole(self, time_limit: float) -> CommandResult:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        self._child = child = await _start_piped(self._order, self._means)
        alarm = loop.call_later(time_limit, self._late)
        try:
            if self._is_stopped:
                child.stop()
            code = await self._heard(child)
        finally:
            alarm.cancel()
            await child.close()
        output, errors = self._outputs
        return CommandResult(
            exit_code=code,
            output=output,
            errors=errors,
            duration_ms=round((time.monotonic() - began) * 1000),
            timed_out=self._is_late,
            moved_aside=child.moved_aside,
        )

    def _late(self) -> None:
        if not self._is_stopped:
            self._is_late = True
            self.stop()

    async def _heard(self, child: SupervisedChild) -> int:
        """Listen until the command has ended, and a moment longer."""
        streams = zip((child.stdout, child.stderr), self._outputs, strict=True)
        listening = [asyncio.ensure_future(kept.fill(stream)) for stream, kept in streams if stream]
        try:
            code = await child.ended()
            # Without namespaces somebody may hold the pipe who was never ours to end.
            await asyncio.wait(listening, timeout=_DRAIN)
        finally:
            for each in listening:
                each.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
        return code


async def _probe_means() -> Means:
    """Find out by trying: from the most that could be had down to what works."""
    known = Means(landlock=proces_landlock.version(), seccomp=proces_seccomp.is_known())
    if sys.platform != "linux":
        return known
    world = Namespaces.ROOT if os.geteuid() == 0 else Namespaces.USER
    means = replace(known, namespaces=world, mounts=True, network=True)
    while (refused := await _probe_refusal(means)) is not None:
        means = _without(means, refused)
    return replace(means, counts=can_limit_processes(means))


async def _probe_refusal(means: Means) -> ChildNotStarted | None:
    """Return what this system refuses when all of the means are used and nothing is started."""
    nothing = ChildOrder(argv=(), program="", folder="/", environment={}, confinement=Confinement())
    try:
        await _Run(nothing, means, 0).whole(KILL_SECONDS)
    except ChildNotStarted as refused:
        return refused
    return None


def _without(means: Means, refused: ChildNotStarted) -> Means:
    """Return the means without the one that was refused."""
    match refused.stage:
        case "mounts":
            return replace(means, mounts=False)
        case "network":
            return replace(means, network=False)
        case "landlock":
            return replace(means, landlock=0)
        case "seccomp":
            return replace(means, seccomp=False)
        case "namespaces" | "proc" | "init" if means.namespaces is Namespaces.ROOT:
            return replace(means, namespaces=Namespaces.USER, mounts=True, network=True)
        case "namespaces" | "proc" | "init" if means.namespaces is Namespaces.USER:
            return replace(means, namespaces=Namespaces.NONE, mounts=False, network=False)
    raise refused
