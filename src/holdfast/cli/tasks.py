"""Waiting for several things at once, and leaving nothing behind."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def first_of(*things: Awaitable[Any]) -> None:
    """Wait until one of several has come; tasks go on, what only waited is not left behind."""
    tasks = [asyncio.ensure_future(each) for each in things]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await ended(*(task for task in tasks if task not in things))


async def ended(*tasks: asyncio.Future[Any] | None) -> None:
    """Stop tasks, and return when they have stopped."""
    under_way = [each for each in tasks if each is not None]
    for task in under_way:
        task.cancel()
    if under_way:
        await asyncio.wait(under_way)
