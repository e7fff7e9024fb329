"""A child process, and the supervisor that stands between it and us.

Three descriptors connect the two: the supervisor reads its order from the first, listens to the
second for as long as we live, and tells on the third how it came out.
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

# How long the supervisor has after the request to end; its own grace is 2 s.
KILL_SECONDS: Final = 5.0

# Stands in for the package, whose own beginning would import all of Holdfast.
_BOOT: Final = """
import sys
for name, path in (("holdfast", sys.argv[1]), ("holdfast.process", sys.argv[1] + "/process")):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from holdfast.process.supervisor.main import main
main()
"""


class ChildOrder(Struct, frozen=True, kw_only=True):
    """What to start, where, and within which bounds.

    The identities are those that somebody agreed to: the supervisor starts nothing else.
    """

    argv: tuple[str, ...]
    program: str
    program_identity: tuple[int, ...] = ()
    folder: str
    folder_identity: tuple[int, ...] = ()
    environment: Mapping[str, str]
    confinement: Confinement
    umask: int = 0o077


class ChildNotStarted(Exception):  # noqa: N818 — it says what is, not what went wrong
    """A child that did not run, and at which step that was decided."""

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
        # Protected paths that it had made, moved aside when it ended.
        self.moved_aside: tuple[str, ...] = ()

    def stop(self) -> None:
        """Ask it and all that come from it to end: TERM, and 2 s later KILL."""
        if self._fuse is None:
            self._ends.ask_to_end()
            self._fuse = asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    async def ended(self) -> int:
        """Wait until nobody is left and return the exit code; raises `NotStarted`."""
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
        """Let go of the process; one that runs still is ended by its supervisor first."""
        self._ends.close()
        # Not closed before it is gone, because closing would wait for it a second time.
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
    """Start a child; whether it could be started is known when it has `ended`."""
    loop = asyncio.get_running_loop()
    with _descriptors(_encode_order(order, means)) as (given, control, heard):
        reader = asyncio.StreamReader()
        # From here on closed by the transport.
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
    """The streams of a supervisor's child, and the moment at which the supervisor is gone.

    That moment is not the end of the streams: somebody else may hold those.
    """

    def __init__(self, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited: asyncio.Future[None] = loop.create_future()

    def process_exited(self) -> None:
        super().process_exited()
        if not self.exited.done():
            self.exited.set_result(None)


class _PipeEnds:
    """Our ends of the pipes to a supervisor."""

    def __init__(
        self, control: int, report: asyncio.StreamReader, pipe: asyncio.ReadTransport
    ) -> None:
        self.report = report
        self._control = control
        self._pipe = pipe
        self._is_closed = False

    def ask_to_end(self) -> None:
        # To be let go of is to be asked, too; and the number may be somebody else's by now.
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
    """Yield the supervisor's ends for order, control and report, and ours of the last two."""
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
    """Return a descriptor that reads the content, which is on no disk where that can be had."""
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
