"""Standard input and output of this process, as the two streams of a conversation.

From then on whatever else writes to standard output, a library or a child, writes to standard
error instead: one word of it between two lines would end the conversation.
"""

import asyncio
import os
import stat
import sys
from typing import Final

from holdfast.acp.rpc.connection import ByteReader, ByteWriter
from holdfast.process.streams import open_reader, open_writer

_INPUT: Final = 0
_OUTPUT: Final = 1
_ERROR: Final = 2


async def standard_streams() -> tuple[ByteReader, ByteWriter]:
    """Take both over."""
    sys.stdout.flush()
    output = os.dup(_OUTPUT)
    os.dup2(_ERROR, _OUTPUT)
    source = os.dup(_INPUT)
    # A child that inherits it must not take the client's words away.
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
    """Reads what the loop cannot watch, because it is always ready: a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def read(self, count: int = -1, /) -> bytes:
        """Return what comes next."""
        return await asyncio.to_thread(os.read, self._descriptor, count)


class FileWriter:
    """Writes to a file."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", 0)

    def write(self, content: bytes, /) -> None:
        """Write a whole line."""
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]

    async def drain(self) -> None:
        """Do nothing: a file takes all."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def wait_closed(self) -> None:
        """Do nothing: it is closed at once."""
