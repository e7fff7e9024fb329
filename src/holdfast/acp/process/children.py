"""A program under its keeper, and the pipes between the keeper and us.

What the program says and what is said to it is not our business here.
"""

import asyncio
import errno
import os
import sys
import tempfile
from asyncio import Future, ReadTransport, StreamReader, StreamWriter, SubprocessTransport, Task
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.acp.process.identities import boot
from holdfast.acp.process.launching import NotStarted, Start, order_of
from holdfast.acp.transport.streams import reading, writing
from holdfast.domain.agent_processes import ProcessIdentity

_KEEPER: Final = str(Path(__file__).with_name("keeper.py"))


class Child:
    """A program under its keeper. Whoever launched it has to `quell` and to `close` it.

    `exited` is done with the program's wait status, or nothing where that is not known; `gone` when
    nobody is left who came from it.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.birth = ProcessIdentity(pid=0, group=0, started=0, boot="")
        self.stdin: StreamWriter | None = None
        self.outputs: list[StreamReader] = []
        self.exited: Future[int | None] = loop.create_future()
        self.gone: Future[None] = loop.create_future()
        self._keeper: SubprocessTransport | None = None
        self._control = -1
        self._report = StreamReader()
        self._pipes: list[ReadTransport] = []
        self._hearing: Task[None] | None = None

    def terminate(self) -> None:
        """Ask the group to end."""
        self._order(b"T")

    def kill(self) -> None:
        """Leave nobody who came from it."""
        self._order(b"K")

    async def quell(self, patience: float) -> None:
        """Kill who is still there, and wait until nobody is."""
        self.kill()
        if self._keeper is not None:
            await asyncio.wait([self.gone], timeout=patience)
            with suppress(ProcessLookupError):
                self._keeper.kill()
            await asyncio.wait([self.gone])
        if self._hearing is not None:
            await asyncio.wait([self._hearing])

    def close(self) -> None:
        """Let go of the pipes; nobody is there any more."""
        if self._keeper is not None:
            self._keeper.close()
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
        """Start the keeper, and wait until the program runs; `theirs` are closed by the caller."""
        theirs.append(_filed(order))
        given = [theirs[0], self._controlled(theirs), await self._reported(theirs)]
        output = await self._heard(theirs)
        error = await self._heard(theirs) if is_talked_to else output
        source = await self._told(theirs) if is_talked_to else _nothing(theirs)
        self._keeper, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Noticed(self.gone),
            *(sys.executable, "-I", "-S", _KEEPER, *map(str, given)),
            stdin=source,
            stdout=output,
            stderr=error,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=given,
        )

    async def born(self) -> None:
        """Wait until the program runs; raises `NotStarted`."""
        told = (await self._report.readline()).decode().split()
        if told[:1] == ["born"]:
            pid, started = int(told[1]), int(told[2])
            self.birth = ProcessIdentity(pid=pid, group=pid, started=started, boot=boot())
            self._hearing = asyncio.get_running_loop().create_task(self._hear())
        elif told[:1] == ["failed"]:
            raise NotStarted(told[1], int(told[2]))
        else:
            raise NotStarted("keeper", errno.EAGAIN)

    async def _hear(self) -> None:
        told = (await self._report.readline()).decode().split()
        self.exited.set_result(int(told[1]) if told else None)

    def _order(self, word: bytes) -> None:
        # The number may be somebody else's once it is closed.
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
        self._report, pipe = await reading(heard)
        self._pipes.append(pipe)
        return tells

    async def _heard(self, theirs: list[int]) -> int:
        heard, says = os.pipe()
        theirs.append(says)
        stream, pipe = await reading(heard)
        self.outputs.append(stream)
        self._pipes.append(pipe)
        return says

    async def _told(self, theirs: list[int]) -> int:
        listens, tells = os.pipe()
        theirs.append(listens)
        self.stdin = await writing(tells)
        return listens


async def launch(start: Start, *, is_talked_to: bool) -> Child:
    """Start a program and return when it runs; raises `NotStarted`.

    One that is talked to has an input and two outputs; any other has no input and one output.
    """
    order = order_of(start)
    child = Child()
    theirs: list[int] = []
    try:
        await child.start(order, theirs, is_talked_to=is_talked_to)
        while theirs:
            os.close(theirs.pop())
        await child.born()
    except BaseException as trouble:
        await child.quell(0)
        child.close()
        if isinstance(trouble, OSError):
            raise NotStarted("keeper", trouble.errno or errno.EAGAIN) from trouble
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return child


class _Noticed(asyncio.SubprocessProtocol):
    """Tells when the keeper is gone, and with it everybody."""

    def __init__(self, gone: Future[None]) -> None:
        self._gone = gone

    def process_exited(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


def _nothing(theirs: list[int]) -> int:
    theirs.append(os.open(os.devnull, os.O_RDONLY))
    return theirs[-1]


def _filed(content: bytes) -> int:
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
