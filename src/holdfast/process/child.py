"""A child process under a supervisor, and the pipes between the supervisor and Holdfast.

Three file descriptors connect them: the order, the control pipe, which the supervisor watches for
requests and for the death of Holdfast, and the report pipe with the result.
"""

import asyncio
import errno
import marshal
import os
import sys
import tempfile
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast.process.sandbox import Confinement, Means, sandbox_order

# Deadline in seconds for the supervisor after a stop request; its own grace period is 2 s.
KILL_SECONDS: Final = 5.0

# Replaces the package modules, because their `__init__` would import all of Holdfast.
_BOOT: Final = """
import sys
for name, path in (("holdfast", sys.argv[1]), ("holdfast.process", sys.argv[1] + "/process")):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from holdfast.process.supervisor.main import main
main()
"""


class ChildOrder(Struct, frozen=True, kw_only=True):
    """What to start, in which folder, and with which limits.

    The identities are those that were approved; the supervisor refuses any other file (TOCTOU).
    """

    argv: tuple[str, ...]
    program: str
    program_identity: tuple[int, ...] = ()
    folder: str
    folder_identity: tuple[int, ...] = ()
    environment: Mapping[str, str]
    confinement: Confinement
    umask: int = 0o077


class ChildNotStarted(Exception):  # noqa: N818 — named after the state
    """A child that did not run, and the step that failed."""

    def __init__(self, stage: str, problem: int = 0) -> None:
        super().__init__(f"{stage} ({errno.errorcode.get(problem, problem)})")
        self.stage = stage
        self.problem = problem
        self.reason = os.strerror(problem).lower()


class SupervisedChild:
    """A process under a supervisor, with its streams."""

    def __init__(
        self, transport: asyncio.SubprocessTransport, streams: "_Streams", ends: "_PipeEnds"
    ) -> None:
        process = Process(transport, streams, asyncio.get_running_loop())
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._transport = transport
        self._exited = streams.exited
        self._ends = ends
        self._fuse: asyncio.TimerHandle | None = None
        # Protected paths that the command had created, renamed when it ended.
        self.moved_aside: tuple[str, ...] = ()

    def stop(self) -> None:
        """Ask it and all its descendants to end: SIGTERM, then SIGKILL after 2 s."""
        if self._fuse is None:
            self._ends.ask_to_end()
            self._fuse = asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    async def ended(self) -> int:
        """Wait until no process is left and return the exit code; raises `ChildNotStarted`."""
        reported = [line.split() for line in (await self._ends.report.read()).decode().splitlines()]
        self.moved_aside = tuple(
            os.fsdecode(bytes.fromhex(words[1])) for words in reported if words[0] == "aside"
        )
        for words in reported:
            if words[0] == "refused":
                raise ChildNotStarted(words[1], int(words[2]))
        codes = [int(words[1]) for words in reported if words[0] == "ended"]
        if codes:
            return codes[-1]
        if self._fuse is None:
            raise ChildNotStarted("supervisor")
        return 128 + 9

    async def close(self) -> None:
        """Release the process; if it still runs, its supervisor ends it first."""
        self._ends.close()
        # Closed only after the exit, because closing the transport earlier would wait a second
        # time.
        await asyncio.wait([self._exited], timeout=KILL_SECONDS)
        self._kill()
        await self._exited
        if self._fuse is not None:
            self._fuse.cancel()
        self._transport.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._transport.kill()


async def start_child(
    order: ChildOrder, means: Means, *, stdin: int, stderr: int, limit: int
) -> SupervisedChild:
    """Start a child; a failed start is reported by `ended`."""
    loop = asyncio.get_running_loop()
    with _descriptors(_encode_order(order, means)) as (given, control, heard):
        reader = asyncio.StreamReader()
        # The transport owns this descriptor and closes it.
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(heard), "rb", 0)
        )
        ends = _PipeEnds(os.dup(control), reader, pipe)
        try:
            transport, streams = await loop.subprocess_exec(
                lambda: _Streams(limit=limit, loop=loop),
                *(sys.executable, "-I", "-S", "-c", _BOOT),
                *(str(Path(__file__).parents[1]), *map(str, given)),
                stdin=stdin,
                stderr=stderr,
                env={},
                cwd="/",
                start_new_session=True,
                pass_fds=given,
            )
        except BaseException:
            ends.close()
            raise
    return SupervisedChild(transport, streams, ends)


class _Streams(SubprocessStreamProtocol):
    """Streams of a supervised child, and a future that resolves when the supervisor exits.

    The streams may stay open longer, because other processes may have inherited them.
    """

    def __init__(self, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited: asyncio.Future[None] = loop.create_future()

    def process_exited(self) -> None:
        super().process_exited()
        if not self.exited.done():
            self.exited.set_result(None)


class _PipeEnds:
    """Holdfast's ends of the pipes to a supervisor."""

    def __init__(
        self, control: int, report: asyncio.StreamReader, pipe: asyncio.ReadTransport
    ) -> None:
        self.report = report
        self._control = control
        self._pipe = pipe
        self._is_closed = False

    def ask_to_end(self) -> None:
        # Closing the pipe is also a stop request; a closed descriptor number may have been reused.
        if not self._is_closed:
            with suppress(BrokenPipeError):
                os.write(self._control, b"T")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self._control)
            self._pipe.close()


@contextmanager
def _descriptors(content: bytes) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """Yield the supervisor's order, control and report descriptors, and our control and report."""
    opened: list[int] = []
    try:
        opened.append(_content_descriptor(content))
        opened += os.pipe()
        opened += os.pipe()
        source, listens, control, heard, report = opened
        yield (source, listens, report), control, heard
    finally:
        for each in opened:
            os.close(each)


def _content_descriptor(content: bytes) -> int:
    """Return a descriptor that reads the content from memory, or else from a temporary file."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _encode_order(order: ChildOrder, means: Means) -> bytes:
    given: dict[str, Any] = {
        "argv": list(order.argv),
        "program": order.program,
        "program_identity": order.program_identity,
        "folder": order.folder,
        "folder_identity": order.folder_identity,
        "environment": dict(order.environment),
        "umask": order.umask,
        **sandbox_order(order.confinement, means),
    }
    return marshal.dumps(given)
