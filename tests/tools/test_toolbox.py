"""The toolbox itself: what a tool returns, before anybody else sees it."""

from typing import Any

import pytest
from msgspec import Struct

from holdfast.domain.messages import ResultStatus
from holdfast.domain.scrubbing import Scrubber
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Effect
from holdfast.domain.weights import is_light
from holdfast.ports import Asked, Done, Planned, Workplace
from holdfast.tools.tool import Tool, nothing_to_ask
from holdfast.tools.toolbox import LocalToolbox
from tests.tools.hosts import a_place, asked

pytestmark = pytest.mark.anyio

CANARY = "canary-0123456789"


class Nothing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tool takes."""


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_no_secret_leaves_the_toolbox_however_large_the_result(size: int) -> None:
    async def act(_: Workplace, __: Nothing, ___: Asked) -> Any:
        return {"text": "x" * size, "found": [f"{CANARY}!"]}

    tool = Tool(
        name="tell",
        description="Tells.",
        arguments=Nothing,
        effect=lambda _: Effect.PURE,
        plan=nothing_to_ask,
        act=act,
    )
    scrubber = Scrubber([("key", Secret(CANARY))])
    toolbox = LocalToolbox([tool], scrubber=lambda: scrubber)
    place = a_place(tools=frozenset({"tell"}))
    planned = await toolbox.plan(place, asked("tell"))
    assert isinstance(planned, Planned)

    done = await toolbox.run(place, planned)

    told = {"text": "x" * size, "found": ["[secret:key]!"]}
    assert done == Done(status=ResultStatus.OK, result=told)
    # Both ways are taken here.
    assert is_light(told) is (size == 10)
