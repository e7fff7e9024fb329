"""The only way to start a command: sandboxed, with time and output limits, never orphaned.

`sandbox.py` decides what a child may access, `environment.py` which variables it gets.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.process import landlock, seccomp
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
    """The result of a command; death by signal n is exit code 128 + n."""

    exit_code: int
    output: OutputBuffer
    errors: OutputBuffer
    duration_ms: int
    timed_out: bool
    # Protected paths that the command had created, renamed when it ended.
    moved_aside: tuple[str, ...] = ()

    @property
    def stdout(self) -> str:
        """Return the standard output."""
        return self.output.text()

    @property
    def stderr(self) -> str:
        """Return the standard error output."""
        return self.errors.text()


class Launcher:
    """Start children with the sandbox means of this system, which are probed once."""

    def __init__(self, means: Means | None = None) -> None:
        self._means = means
        self._probing = asyncio.Lock()

    async def means(self) -> Means:
        """Return the sandbox means of this system."""
        if self._means is None:
            async with self._probing:
                if self._means is None:
                    self._means = await _probe_means()
        return self._means

    async def strength(self) -> SandboxStrength:
        """Describe which protections are active here and which are missing."""
        return describe_strength(await self.means())

    async def run(
        self, order: ChildOrder, *, time_limit: float, output_most: int = OUTPUT_MOST
    ) -> CommandResult:
        """Run a command until it exits or reaches the time limit.

        On cancellation the command and all its descendants are ended first.
        """
        run = _Run(order, await self.means(), output_most)
        return await run_to_end(run.whole(time_limit), stop=run.stop)

    async def start(
        self, order: ChildOrder, *, limit: int = _CHUNK, is_heard: bool = False
    ) -> SupervisedChild:
        """Start a long-running child with open pipes.

        `limit` is the maximum length of an output line. Standard error is discarded unless
        `is_heard` is set; then the caller must read it continuously. The caller must `close` the
        child.
        """
        stderr = PIPE if is_heard else DEVNULL
        return await start_child(order, await self.means(), stdin=PIPE, stderr=stderr, limit=limit)


class _Run:
    """One command from its start to EOF of its output."""

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
        self._child = child = await start_child(self._order, self._means, limit=_CHUNK)
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
        """Read the output until the command has ended, plus a short drain time."""
        streams = zip((child.stdout, child.stderr), self._outputs, strict=True)
        listening = [asyncio.ensure_future(kept.fill(stream)) for stream, kept in streams if stream]
        try:
            code = await child.ended()
            # Without namespaces, a process that is not a descendant may still have the pipe open.
            await asyncio.wait(listening, timeout=_DRAIN)
        finally:
            for each in listening:
                each.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
        return code


async def _probe_means() -> Means:
    """Probe the means: start with all of them and drop each one that is refused."""
    known = Means(landlock=landlock.version(), seccomp=seccomp.is_known())
    if sys.platform != "linux":
        return known
    world = Namespaces.ROOT if os.geteuid() == 0 else Namespaces.USER
    means = replace(known, namespaces=world, mounts=True, network=True)
    while (refused := await _probe_refusal(means)) is not None:
        means = _without(means, refused)
    return replace(means, counts=can_limit_processes(means))


async def _probe_refusal(means: Means) -> ChildNotStarted | None:
    """Return the refusal when an empty order is started with these means, or `None`."""
    nothing = ChildOrder(argv=(), program="", folder="/", environment={}, confinement=Confinement())
    try:
        await _Run(nothing, means, 0).whole(KILL_SECONDS)
    except ChildNotStarted as refused:
        return refused
    return None


def _without(means: Means, refused: ChildNotStarted) -> Means:
    """Return the means without the refused one."""
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
