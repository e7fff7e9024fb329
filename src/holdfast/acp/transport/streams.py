"""Pipes as streams of the loop."""

import asyncio
import os
from asyncio import ReadTransport, StreamReader, StreamReaderProtocol, StreamWriter


async def reading(descriptor: int) -> tuple[StreamReader, ReadTransport]:
    """Return a stream that reads a pipe, and what closes it; the descriptor is taken over."""
    reader = StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def writing(descriptor: int) -> StreamWriter:
    """Return a stream that writes a pipe; the descriptor is taken over.

    It is drained when the system has taken all, so that who reads nothing is noticed.
    """
    loop = asyncio.get_running_loop()
    # Nothing is read by it: it is there because it knows when the pipe is closed.
    transport, protocol = await loop.connect_write_pipe(
        lambda: StreamReaderProtocol(StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    transport.set_write_buffer_limits(high=0)
    return StreamWriter(transport, protocol, None, loop)
