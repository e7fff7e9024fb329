"""A turn that breaks in its middle, or may not be played, leaves nothing open behind it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import DeletePolicy, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.calls import is_open
from holdfast.domain.events import TurnEnded
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.houses import news_until, open_house, played
from tests.services.test_calls import left_in_doubt, survivor
from tests.services.test_media import read, shelf_of
from tests.stand_ins import GatedRuntime, a_start, an_intent
from tests.tooled import Recorder, open_tooled, outcomes, own_tool

pytestmark = pytest.mark.anyio

__all__ = ["survivor"]


@pytest.mark.parametrize(
    "play",
    [
        [(an_intent(),), RuntimeError("broken")],
        [(an_intent(),), (a_start(),), RuntimeError("broken")],
        [(an_intent(),)],
    ],
)
async def test_a_runtime_that_breaks_leaves_no_call_open(
    home: Path, outside: Environment, play: list[Any]
) -> None:
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "go")
        await news_until(house, session.id, TurnEnded)

        calls = (await house.calls.list(house.owner, session.id)).items

    assert [call.id for call in calls if is_open(call)] == []


async def test_a_detached_fork_keeps_the_contents_it_inherited(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        root = await house.open()
        handle = await (await shelf_of(house, root)).keep(b"of the root")
        await house.send(root.id, "one")
        fork = await house.sessions.fork(house.owner, root.id)

        await house.sessions.delete(house.owner, root.id, policy=DeletePolicy.DETACH)

        assert await read(house, fork, handle) == b"of the root"


async def test_a_retry_that_a_message_joins_past_the_cap_is_answered(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    config, session, _ = await left_in_doubt(home, outside, turn_cap=1)
    tool = own_tool("post", Recorder())
    async with open_tooled(config, tool, outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
    async with open_tooled(config, tool, outside=survivor, scope=RunScope.NONE) as house:
        await house.calls.settle(
            house.owner, session.id, "c1", SettlementRequest(how=SettlementAction.RETRY, by="ada")
        )
        await house.send(session.id, "and now?")

    async with open_tooled(config, tool, outside=survivor) as house:
        rows = await played(house, session.id)
        calls = (await house.calls.list(house.owner, session.id)).items

    assert [call.id for call in calls if is_open(call)] == []
    assert len(outcomes(rows)) == 3
