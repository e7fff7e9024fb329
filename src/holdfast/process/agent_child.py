"""A long-running agent process under `agent_supervisor.py`, and the pipes to both.

The protocol spoken over the pipes belongs to the caller. Commands of tools use `child.py`.
"""

import asyncio
import errno
import marshal
import os
import shutil
import sys
import tempfile
from asyncio import Future, ReadTransport, StreamReader, StreamWriter, SubprocessTransport, Task
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.agent_processes import ProcessIdentity
from holdfast.process.process_table import boot_id
from holdfast.process.streams import open_reader, open_writer

_UMASK: Final = 0o077
# Errors that may not occur again on a retry.
_TRANSIENT_ERRORS: Final = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ETXTBSY}


class AgentLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of an agent process; unlimited by default."""

    nice: int = 0
    address_space: int | None = None
    cpu_seconds: int | None = None
    processes: int | None = None


UNLIMITED: Final = AgentLimits()


class AgentStart(Struct, frozen=True, kw_only=True):
    """What to start, in which folder, and with which complete environment.

    The environment must contain `HOLDFAST_SESSION_ID`, which identifies orphans. `wrap` is a
    command that runs the other one, such as a sandbox with its options. With `is_pinned`, the
    folder must be a real path; the start fails if a symbolic link has replaced it (TOCTOU).
    """

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    limits: AgentLimits = UNLIMITED
    wrap: tuple[str, ...] = ()
    is_pinned: bool = False


class AgentNotStarted(Exception):  # noqa: N818 — named after the state
    """An agent process that did not start: the failed step and the errno.

    Steps: `find`, `keeper`, `session`, `folder`, `limits`, `start`.
    """

    def __init__(self, stage: str, problem: int) -> None:
        super().__init__(f"{stage}: {os.strerror(problem)}")
        self.stage = stage
        self.problem = problem
        self.reason = os.strerror(problem).lower()

    @property
    def can_pass(self) -> bool:
        """Return whether a retry may succeed."""
        return self.problem in _TRANSIENT_ERRORS


def find_command(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the file of a command; a bare name is searched in the environment's `PATH`.

    Relative paths are never used, because they would find programs inside the repository.
    """
    if os.path.dirname(command):
        is_program = os.path.isabs(command) and shutil.which(command) is not None
        return command if is_program else None
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    absolute = os.pathsep.join(each for each in folders if os.path.isabs(each))
    return shutil.which(command, path=absolute) if absolute else None


def encode_order(start: AgentStart) -> bytes:
    """Return the encoded supervisor order; raises `AgentNotStarted` if the program is missing."""
    argv = (*start.wrap, *start.argv)
    program = find_command(argv[0], start.environment)
    if program is None:
        raise AgentNotStarted("find", errno.ENOENT)
    given: dict[str, Any] = {
        "program": program,
        "argv": list(argv),
        "folder": start.folder,
        "is_pinned": start.is_pinned,
        "environment": dict(start.environment),
        "umask": _UMASK,
        "nice": start.limits.nice,
        "address_space": start.limits.address_space,
        "cpu_seconds": start.limits.cpu_seconds,
        "processes": start.limits.processes,
    }
    return marshal.dumps(given)


_SUPERVISOR: Final = str(Path(__file__).with_name("agent_supervisor.py"))


class AgentChild:
    """An agent process under its supervisor; the caller must call `kill_all` and `close`.

    `exited` resolves to the wait status of the program, or `None` if it is unknown. `gone` resolves
    when no descendant of the program is left.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.birth = ProcessIdentity(pid=0, group=0, started=0, boot="")
        self.stdin: StreamWriter | None = None
        self.outputs: list[StreamReader] = []
        self.exited: Future[int | None] = loop.create_future()
        self.gone: Future[None] = loop.create_future()
        self._supervisor: SubprocessTransport | None = None
        self._control = -1
        self._report = StreamReader()
        self._pipes: list[ReadTransport] = []
        self._hearing: Task[None] | None = None

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        self._order(b"T")

    def kill(self) -> None:
        """Kill the program and all its descendants."""
        self._order(b"K")

    async def kill_all(self, patience: float) -> None:
        """Kill all remaining processes, and wait until they are gone."""
        self.kill()
        if self._supervisor is not None:
            await asyncio.wait([self.gone], timeout=patience)
            with suppress(ProcessLookupError):
                self._supervisor.kill()
            await asyncio.wait([self.gone])
        if self._hearing is not None:
            await asyncio.wait([self._hearing])

    def close(self) -> None:
        """Close the pipes; call it after all processes are gone."""
        if self._supervisor is not None:
            self._supervisor.close()
        if self.stdin is not None:
            if self.stdin.transport.get_write_buffer_size():
                self.stdin.transport.abort()
            self.stdin.close()
        for pipe in self._pipes:
            pipe.close()
        control, self._control = self._control, -1
        if control >= 0:
            os.close(control)

    async def start(self, order: bytes, theirs: list[int], *, is_talked_to: bool) -> None:
        """Start the supervisor; the caller closes the descriptors in `theirs`."""
        theirs.append(_content_descriptor(order))
        given = [theirs[0], self._controlled(theirs), await self._reported(theirs)]
        output = await self._heard(theirs)
        error = await self._heard(theirs) if is_talked_to else output
        source = await self._open_input(theirs) if is_talked_to else _open_null(theirs)
        self._supervisor, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: _ExitProtocol(self.gone),
            *(sys.executable, "-I", "-S", _SUPERVISOR, *map(str, given)),
            stdin=source,
            stdout=output,
            stderr=error,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=given,
        )

    async def born(self) -> None:
        """Wait until the program runs; raises `AgentNotStarted`."""
        reported = (await self._report.readline()).decode().split()
        if reported[:1] == ["born"]:
            pid, started = int(reported[1]), int(reported[2])
            self.birth = ProcessIdentity(pid=pid, group=pid, started=started, boot=boot_id())
            self._hearing = asyncio.get_running_loop().create_task(self._hear())
        elif reported[:1] == ["failed"]:
            raise AgentNotStarted(reported[1], int(reported[2]))
        else:
            raise AgentNotStarted("keeper", errno.EAGAIN)

    async def _hear(self) -> None:
        reported = (await self._report.readline()).decode().split()
        self.exited.set_result(int(reported[1]) if reported else None)

    def _order(self, word: bytes) -> None:
        # A closed descriptor number may have been reused for another file.
        if self._control >= 0:
            with suppress(OSError):
                os.write(self._control, word)

    def _controlled(self, theirs: list[int]) -> int:
        listens, self._control = os.pipe()
        theirs.append(listens)
        return listens

    async def _reported(self, theirs: list[int]) -> int:
        heard, tells = os.pipe()
        theirs.append(tells)
        self._report, pipe = await open_reader(heard)
        self._pipes.append(pipe)
        return tells

    async def _heard(self, theirs: list[int]) -> int:
        heard, says = os.pipe()
        theirs.append(says)
        stream, pipe = await open_reader(heard)
        self.outputs.append(stream)
        self._pipes.append(pipe)
        return says

    async def _open_input(self, theirs: list[int]) -> int:
        listens, tells = os.pipe()
        theirs.append(listens)
        self.stdin = await open_writer(tells)
        return listens


async def launch(start: AgentStart, *, is_talked_to: bool) -> AgentChild:
    """Start a program and return when it runs; raises `AgentNotStarted`.

    With `is_talked_to` it gets stdin, stdout and stderr pipes; otherwise only one output pipe.
    """
    order = encode_order(start)
    child = AgentChild()
    theirs: list[int] = []
    try:
        await child.start(order, theirs, is_talked_to=is_talked_to)
        while theirs:
            os.close(theirs.pop())
        await child.born()
    except BaseException as trouble:
        await child.kill_all(0)
        child.close()
        if isinstance(trouble, OSError):
            raise AgentNotStarted("keeper", trouble.errno or errno.EAGAIN) from trouble
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return child


class _ExitProtocol(asyncio.SubprocessProtocol):
    """Resolve `gone` when the supervisor exits, and with it all its descendants."""

    def __init__(self, gone: Future[None]) -> None:
        self._gone = gone

    def process_exited(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


def _open_null(theirs: list[int]) -> int:
    theirs.append(os.open(os.devnull, os.O_RDONLY))
    return theirs[-1]


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
