"""Who reads the keys: the line that a person types, or a question, which goes first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Keyboard:
    """Lent to one reader at a time; who types steps aside when a question comes up."""

    def __init__(self) -> None:
        self.is_wanted = asyncio.Event()
        self._taken = asyncio.Lock()

    @asynccontextmanager
    async def for_question(self) -> AsyncIterator[None]:
        """Have the keys as soon as who types has stepped aside."""
        self.is_wanted.set()
        try:
            async with self._taken:
                self.is_wanted.clear()
                yield
        finally:
            # Also where the question was taken back before it had the keys.
            self.is_wanted.clear()

    @asynccontextmanager
    async def for_line(self) -> AsyncIterator[None]:
        """Have the keys while no question wants them."""
        async with self._taken:
            yield
