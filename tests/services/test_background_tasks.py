"""Tasks that live as long as a block."""

import asyncio

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.services.background_tasks import Background, sleep_despite_memory_error

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


async def test_work_that_is_stopped_before_it_began_is_no_loose_end() -> None:
    ended: list[str] = []

    async with Background() as background:
        task = background.start(_for_ever(ended))

    assert (ended, task.cancelled()) == ([], True)


async def test_a_lack_of_memory_ends_nothing_but_the_work_that_met_it() -> None:
    ended: list[str] = []

    async def starve() -> None:
        raise MemoryError

    async with Background() as background:
        beside = background.start(_for_ever(ended))
        await background.start(starve())
        assert not beside.done()

    assert ended == ["ended"]


async def test_who_has_no_memory_to_wait_lets_others_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    sleep = asyncio.sleep

    async def starved(seconds: float) -> None:
        asked.append(seconds)
        if seconds:
            raise MemoryError
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", starved)
    await sleep_despite_memory_error(60.0)

    assert asked == [60.0, 0]
