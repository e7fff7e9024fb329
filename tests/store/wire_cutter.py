"""A wire between a store and its Postgres that is cut while a commit is on its way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from pathlib import Path


class Cut(Enum):
    """When the wire is cut: before the server hears of the commit, or before its answer comes."""

    NEVER = auto()
    BEFORE = auto()
    AFTER = auto()


class WireCutter:
    """Passes everything on, until it is told to cut; it cuts once."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.cut = Cut.NEVER
        # What is on the wire when a commit is: the word itself, or what the store tells others.
        self.sign = b"COMMIT"
        self.cuts = 0
        self.has_cut = asyncio.Event()
        # Whether nobody gets through any more, once it has cut.
        self.is_final = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one client says."""
        if self.is_final and self.cuts:
            writer.close()
            return
        back, forth = await asyncio.open_unix_connection(str(self._target))
        answers = asyncio.create_task(_passed_on(back, writer))
        try:
            while data := await reader.read(1 << 16):
                how = self.cut if self.sign in data else Cut.NEVER
                if how is not Cut.NEVER:
                    self.cut, self.cuts = Cut.NEVER, self.cuts + 1
                    self.has_cut.set()
                if how is Cut.BEFORE:
                    break
                if how is Cut.AFTER:
                    answers.cancel()
                    with suppress(asyncio.CancelledError):
                        await answers
                forth.write(data)
                if how is Cut.AFTER:
                    # Its answer, which nobody will hear.
                    await back.read(1 << 16)
                    break
        finally:
            answers.cancel()
            writer.close()
            forth.close()


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A server that is killed may reset the wire, and whoever waits for an answer has to hear of it.
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def wire_to(server: Path, folder: Path) -> AsyncIterator[WireCutter]:
    """Lay a wire in a folder to the server whose socket is in another one."""
    cutter = WireCutter(server / ".s.PGSQL.5432")
    listening = await asyncio.start_unix_server(cutter.serve, folder / ".s.PGSQL.5432")
    try:
        yield cutter
    finally:
        listening.close()
