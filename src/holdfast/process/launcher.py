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
        return await _run(order, await self.means(), time_limit, output_most)

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


async def _run(
    order: ChildOrder, means: Means, time_limit: float, output_most: int
) -> CommandResult:
    began, is_late = time.monotonic(), False
    output, errors = OutputBuffer(output_most), OutputBuffer(output_most)
    child = await start_child(order, means, limit=_CHUNK)

    def stop_late() -> None:
        nonlocal is_late
        is_late = True
        child.stop()

    alarm = asyncio.get_running_loop().call_later(time_limit, stop_late)
    try:
        code = await run_to_end(_collect_output(child, output, errors), stop=child.stop)
    finally:
        alarm.cancel()
        await run_to_end(child.close())
    return CommandResult(
        exit_code=code,
        output=output,
        errors=errors,
        duration_ms=round((time.monotonic() - began) * 1000),
        timed_out=is_late,
        moved_aside=child.moved_aside,
    )


async def _collect_output(
    child: SupervisedChild, output: OutputBuffer, errors: OutputBuffer
) -> int:
    """Read the output until the command has ended, plus a short drain time."""
    streams = ((child.stdout, output), (child.stderr, errors))
    listening = [asyncio.ensure_future(kept.fill(stream)) for stream, kept in streams if stream]
    try:
        code = await child.wait_ended()
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
        await _run(nothing, means, KILL_SECONDS, 0)
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
