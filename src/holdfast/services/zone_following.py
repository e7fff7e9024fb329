"""Following an output: its lines as they come, wherever they are read from."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from holdfast.domain.zone_lines import LineQuery, Lines

# How often a follower looks: nobody notices less, and a look is one row.
LOOK: Final = 0.2

Read = Callable[[LineQuery], Awaitable[Lines]]


async def followed(
    read: Read, start: int | None, *, pause: float = LOOK
) -> AsyncGenerator[Lines, None]:
    """Yield lines from a number on, else from the end, and what comes.

    Where the output was cleared or replaced, what is there then begins anew.
    """
    seen = await read(LineQuery(start=0, limit=1))
    at = seen.total if start is None else start
    generation = seen.generation
    while True:
        page = await read(LineQuery(start=at))
        if page.generation != generation:
            at, generation = 0, page.generation
            continue
        whole = _whole(page)
        if whole.lines:
            yield whole
            at = whole.end
        else:
            await asyncio.sleep(pause)


def _whole(page: Lines) -> Lines:
    """Return a page without a last line that may still be growing, because nothing ends it."""
    is_growing = page.tail_open and page.lines and page.end == page.total
    return replace(page, lines=page.lines[:-1]) if is_growing else page
