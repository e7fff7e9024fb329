"""Readers at the same place share what is sent to them, and only in the same words."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.http.sse_reader import Frame, listening
from tests.http.v1.client import Visitor

pytestmark = pytest.mark.anyio

WORDS = ("", "&deltas=none", "&deltas=both", "&deltas=message", "&words=house")
EACH = 3


async def _ended(visitor: Visitor, path: str) -> list[Frame]:
    async with listening(visitor.app, path, visitor.secret) as reader:
        return (await reader.ended())[1:]


async def test_who_follows_live_hears_what_a_replay_in_the_same_words_tells(
    visitor: Visitor,
) -> None:
    session: dict[str, Any] = await visitor.session()
    path = f"/v1/sessions/{session['id']}/events"
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(
                listening(visitor.app, f"{path}?since=0{words}", visitor.secret)
            )
            for words in WORDS
            for _ in range(EACH)
        ]
        for reader in readers:
            assert (await reader.next()).event == "connected"
        await visitor.told(session, "How much is 2+2?")
        replays = [(await _ended(visitor, f"{path}?until=settled{w}"))[:-1] for w in WORDS]
        heard = await asyncio.gather(
            *(_some(reader, len(replays[number // EACH])) for number, reader in enumerate(readers))
        )

    assert heard == [replay for replay in replays for _ in range(EACH)]
    assert len({tuple(frame.event for frame in replay) for replay in replays}) == len(WORDS)


async def _some(reader: Any, count: int) -> list[Frame]:
    return [await reader.next() for _ in range(count)]
