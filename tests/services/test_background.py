"""Tasks that live as long as a block."""

import asyncio

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.services.background import Background

pytestmark = pytest.mark.anyio


async def _for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def test_what_was_started_is_stopped_when_the_block_is_left() -> None:
    ended: list[str] = []

    async with Background() as background:
        task = background.start(_for_ever(ended))
        await asyncio.sleep(0)

    assert (ended, task.cancelled()) == (["ended"], True)


async def test_what_the_block_raises_is_its_callers_and_still_all_is_stopped() -> None:
    ended: list[str] = []

    async def block() -> None:
        async with Background() as background:
            background.start(_for_ever(ended))
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()

    assert ended == ["ended"]


async def test_nothing_is_started_once_the_block_is_left() -> None:
    ended: list[str] = []
    async with Background() as background:
        pass

    with pytest.raises(Unavailable) as caught:
        background.start(_for_ever(ended))

    assert (caught.value.code, ended) == (Code.STORE_CLOSED, [])
