"""Standard input and output of this process as the streams of a connection.

Redirects file descriptor 1 to standard error: output of a library or a child process between
two lines would corrupt the protocol stream.
"""

import asyncio
import os
import stat
import sys
from typing import Final

from holdfast.acp.rpc.framing import ByteReader, ByteWriter
from holdfast.process.streams import open_reader, open_writer

_INPUT: Final = 0
_OUTPUT: Final = 1
_ERROR: Final = 2


async def standard_streams() -> tuple[ByteReader, ByteWriter]:
    """Take over standard input and output, and return them as a reader and a writer."""
    sys.stdout.flush()
    output = os.dup(_OUTPUT)
    os.dup2(_ERROR, _OUTPUT)
    source = os.dup(_INPUT)
    # A child process that inherits standard input must not consume the client's messages.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _INPUT)
    os.close(nothing)
    reader: ByteReader = (
        (await open_reader(source))[0] if _is_stream(source) else FileReader(source)
    )
    writer: ByteWriter = await open_writer(output) if _is_stream(output) else FileWriter(output)
    return reader, writer


def _is_stream(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class FileReader:
    """Reads a regular file, which the event loop cannot poll, in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes; empty at end of file."""
        return await asyncio.to_thread(os.read, self._descriptor, count)


class FileWriter:
    """Writes to a regular file."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", 0)

    def write(self, content: bytes, /) -> None:
        """Write a whole line."""
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]

    async def drain(self) -> None:
        """Do nothing, because writes are not buffered."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def wait_closed(self) -> None:
        """Do nothing, because `close` is synchronous."""
