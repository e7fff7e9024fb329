"""A child process under a supervisor, and the pipes between the supervisor and Holdfast.

Three file descriptors connect them: the order, the control pipe, which the supervisor watches for
requests and for the death of Holdfast, and the report pipe with the result. Commands, MCP servers,
ACP agents and their terminals are all started here; `ChildOrder` says what differs.
"""

import asyncio
import errno
import marshal
import os
import sys
import tempfile
from asyncio import Future, ReadTransport, StreamReader, StreamWriter, SubprocessTransport, Task
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.process.sandbox import Confinement, Means, sandbox_order
from holdfast.process.streams import LINE_LIMIT, open_reader, open_writer

# Deadline in seconds for the supervisor after a stop request; its own grace period is shorter.
KILL_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 2.0
# Errors that may not occur again on a retry.
_TRANSIENT_ERRORS: Final = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ETXTBSY}

# Replaces the package modules, because their `__init__` would import all of Holdfast.
_BOOT: Final = """
import sys
for name, path in (("holdfast", sys.argv[1]), ("holdfast.process", sys.argv[1] + "/process")):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from holdfast.process.supervisor.{module} import main
main()
"""


def supervisor_argv(module: str) -> tuple[str, ...]:
    """Return the argv that runs `main` of a supervisor module in a bare interpreter."""
    boot = _BOOT.format(module=module)
    return (sys.executable, "-I", "-S", "-c", boot, str(Path(__file__).parents[1]))


class ChildOrder(Struct, frozen=True, kw_only=True):
    """What to start, in which folder, and with which limits.

    The identities are those that were approved; the supervisor refuses any other file (TOCTOU).
    With `is_pinned`, the folder must be a real path: the start fails if a symbolic link has
    replaced it. Without a confinement, the child has all rights of the user, and only `limits`
    (pairs of RLIMIT number and value) and `nice` apply.
    """

    argv: tuple[str, ...]
    program: str
    program_identity: tuple[int, ...] = ()
    folder: str
    folder_identity: tuple[int, ...] = ()
    is_pinned: bool = False
    environment: Mapping[str, str]
    confinement: Confinement | None
    limits: tuple[tuple[int, int], ...] = ()
    nice: int = 0
    umask: int = 0o077
    # Seconds between SIGTERM and SIGKILL after a stop request.
    grace: float = GRACE_SECONDS
    # Whether descendants may continue when the program has ended, until a stop request.
    keeps_background: bool = False


class ChildNotStarted(Exception):  # noqa: N818 — named after the state
    """A child that did not run, and the step that failed."""

    def __init__(self, stage: str, problem: int = 0) -> None:
        super().__init__(f"{stage} ({errno.errorcode.get(problem, problem)})")
        self.stage = stage
        self.problem = problem
        self.reason = os.strerror(problem).lower()

    @property
    def can_pass(self) -> bool:
        """Return whether a retry may succeed."""
        return self.problem in _TRANSIENT_ERRORS


class SupervisedChild:
    """A process under a supervisor, with its streams; the caller must `close` it.

    `exited` resolves to the wait status of the program, or to `None` if it is unknown. `gone`
    resolves when the supervisor has exited; unless it is killed, it exits after all descendants.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stdin: StreamWriter | None = None
        self.stdout = StreamReader()
        self.stderr: StreamReader | None = None
        # 0 where the program runs in a PID namespace of its own.
        self.pid = 0
        # Clock ticks since boot, or 0 if unknown.
        self.start_time = 0
        self.exited: Future[int | None] = loop.create_future()
        self.gone: Future[None] = loop.create_future()
        # Protected paths that the command had created, renamed when it ended.
        self.moved_aside: tuple[str, ...] = ()
        self._supervisor: SubprocessTransport | None = None
        self._control = -1
        self._pipes: list[ReadTransport] = []
        self._reading_report: Task[None] | None = None
        self._is_reported = asyncio.Event()
        self._refused: ChildNotStarted | None = None
        self._kill_timer: asyncio.TimerHandle | None = None

    async def wait_started(self) -> None:
        """Wait until the program runs; raises `ChildNotStarted`. Not for PID namespaces."""
        await self._is_reported.wait()
        if self._refused is not None:
            raise self._refused
        if not self.pid:
            raise ChildNotStarted("supervisor", errno.EAGAIN)

    def stop(self) -> None:
        """Ask it and all its descendants to end: SIGTERM, then SIGKILL after the grace period."""
        # A closed descriptor number may have been reused for another file.
        if self._kill_timer is None and self._control >= 0:
            with suppress(BrokenPipeError):
                os.write(self._control, b"T")
            self._kill_timer = asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    async def wait_ended(self) -> int:
        """Wait until no process is left and return the exit code; raises `ChildNotStarted`.

        Death by signal n is exit code 128 + n.
        """
        if self._reading_report is not None:
            await asyncio.wait([self._reading_report])
        if self._refused is not None:
            raise self._refused
        status = self.exited.result()
        if status is not None:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self._kill_timer is None:
            raise ChildNotStarted("supervisor")
        return 128 + 9

    async def end(self, patience: float = KILL_SECONDS) -> None:
        """Wait until no process is left; the supervisor ends what still runs."""
        control, self._control = self._control, -1
        if control >= 0:
            os.close(control)
        if self._supervisor is not None:
            await asyncio.wait([self.gone], timeout=patience)
            self._kill()
            await asyncio.wait([self.gone])
        if self._reading_report is not None:
            await asyncio.wait([self._reading_report])
        if self._kill_timer is not None:
            self._kill_timer.cancel()

    async def close(self, patience: float = KILL_SECONDS) -> None:
        """Release the process and its pipes; if it still runs, its supervisor ends it first."""
        await self.end(patience)
        # Closed only after the exit, because closing the transport earlier would wait a second
        # time.
        if self._supervisor is not None:
            self._supervisor.close()
        if self.stdin is not None:
            if self.stdin.transport.get_write_buffer_size():
                self.stdin.transport.abort()
            self.stdin.close()
        for pipe in self._pipes:
            pipe.close()

    async def start(
        self, order: bytes, theirs: list[int], *, stdin: int, stderr: int, limit: int
    ) -> None:
        """Start the supervisor; the caller closes the descriptors in `theirs`."""
        theirs.append(_content_descriptor(order))
        listens, self._control = os.pipe()
        theirs.append(listens)
        report = await self._open_output(theirs)
        self._reading_report = asyncio.get_running_loop().create_task(self._read_report(report))
        given = tuple(theirs)
        self.stdout = await self._open_output(theirs, limit)
        output = theirs[-1]
        if stdin == PIPE:
            listens, tells = os.pipe()
            theirs.append(listens)
            self.stdin = await open_writer(tells)
            stdin = listens
        if stderr == PIPE:
            self.stderr = await self._open_output(theirs, limit)
            stderr = theirs[-1]
        self._supervisor, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: _ExitProtocol(self.gone),
            *supervisor_argv("main"),
            *map(str, given),
            stdin=stdin,
            stdout=output,
            stderr=stderr,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=given,
        )

    async def _open_output(self, theirs: list[int], limit: int = LINE_LIMIT) -> StreamReader:
        ours, writes = os.pipe()
        theirs.append(writes)
        stream, pipe = await open_reader(ours, limit)
        self._pipes.append(pipe)
        return stream

    async def _read_report(self, report: StreamReader) -> None:
        """Read the report of the supervisor until it has exited."""
        while line := await report.readline():
            match line.decode().split():
                case ["born", pid, start_time]:
                    self.pid, self.start_time = int(pid), int(start_time)
                case ["refused", stage, problem]:
                    self._refused = ChildNotStarted(stage, int(problem))
                case ["exited", status] if not self.exited.done():
                    self.exited.set_result(int(status))
                case ["aside", path]:
                    self.moved_aside += (os.fsdecode(bytes.fromhex(path)),)
            self._is_reported.set()
        if not self.exited.done():
            self.exited.set_result(None)
        self._is_reported.set()

    def _kill(self) -> None:
        if self._supervisor is not None:
            with suppress(ProcessLookupError):
                self._supervisor.kill()


async def start_child(
    order: ChildOrder,
    means: Means,
    *,
    stdin: int = DEVNULL,
    stderr: int = PIPE,
    limit: int = LINE_LIMIT,
) -> SupervisedChild:
    """Start a child; raises `ChildNotStarted` if its supervisor cannot be started.

    A program that cannot be started is reported by `started` and `ended`. `stdin` is `PIPE` or
    `DEVNULL`, `stderr` one of them or `STDOUT`; `limit` is the maximum length of an output line.
    """
    child = SupervisedChild()
    theirs: list[int] = []
    try:
        encoded = _encode_order(order, means)
        await child.start(encoded, theirs, stdin=stdin, stderr=stderr, limit=limit)
    except BaseException as trouble:
        _close_all(theirs)
        await child.close(0)
        if isinstance(trouble, OSError):
            raise ChildNotStarted("supervisor", trouble.errno or errno.EAGAIN) from trouble
        raise
    _close_all(theirs)
    return child


class _ExitProtocol(asyncio.SubprocessProtocol):
    """Resolve `gone` when the supervisor exits.

    The streams may stay open longer, because other processes may have inherited them.
    """

    def __init__(self, gone: Future[None]) -> None:
        self._gone = gone

    def process_exited(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


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
    given = asdict(order) | {"environment": dict(order.environment), "guard": None}
    given |= {"is_confined": order.confinement is not None, "unshare": 0, "has_own_pids": False}
    del given["confinement"]
    if order.confinement is not None:
        sandbox = sandbox_order(order.confinement, means)
        # Both apply: a later limit never raises an earlier one.
        given |= sandbox | {"limits": [*sandbox["limits"], *order.limits]}
    return marshal.dumps(given)
